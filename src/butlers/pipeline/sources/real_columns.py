"""The columns that a table really has, and how to ask for them in the types of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adbc_driver_manager.dbapi import Cursor
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    TimestampType,
)

from butlers.errors import ConfigurationError
from butlers.pipeline.tables import Table
from butlers.storage.queries import quote_identifier

# The server's type -> what Spark sees, and the cast that makes it so.
_SEEN: Mapping[str, tuple[DataType, str]] = {
    "text": (StringType(), ""),
    "uuid": (StringType(), "::text"),
    "jsonb": (StringType(), "::text"),
    "timestamp with time zone": (TimestampType(), ""),
    "date": (DateType(), ""),
    "boolean": (BooleanType(), ""),
    "smallint": (ShortType(), ""),
    "integer": (IntegerType(), ""),
    "bigint": (LongType(), ""),
    "xid8": (LongType(), "::text::bigint"),
    "double precision": (DoubleType(), ""),
}
_NUMERIC = "numeric("

_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod)
FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""


def real_columns(cursor: Cursor, table: Table) -> dict[str, str]:
    """The server's types of the contract's columns, checked against it."""
    cursor.execute(_COLUMNS, (table.qualified,))
    types = {str(name): str(kind) for name, kind in cursor.fetchall()}
    if not types:
        raise _unlike(table, "there is no such table")
    for field in table.columns:
        _check(table, field, types.get(field.name))
    return {field.name: types[field.name] for field in table.columns}


def selected(names: Iterable[str], types: Mapping[str, str]) -> str:
    """A select list in the contract's types; a numeric travels as text, which the reader turns into a decimal."""
    return ", ".join(f"{quote_identifier(name)}{_cast(types[name])} AS {quote_identifier(name)}" for name in names)


def seen_as(kind: str) -> DataType | None:
    """What Spark sees of a type of the server's, None when there is no rule for it."""
    if kind.startswith(_NUMERIC):
        precision, scale = kind.removeprefix(_NUMERIC).rstrip(")").split(",")
        return DecimalType(int(precision), int(scale))
    return _SEEN[kind][0] if kind in _SEEN else None


def _cast(kind: str) -> str:
    return "::text" if kind.startswith(_NUMERIC) else _SEEN[kind][1]


def _check(table: Table, field: StructField, kind: str | None) -> None:
    if kind is None:
        raise _unlike(table, f"there is no column {field.name}")
    if seen_as(kind) != field.dataType:
        raise _unlike(table, f"the column {field.name} is {kind}, not {field.dataType.simpleString()}")


def _unlike(table: Table, problem: str) -> ConfigurationError:
    return ConfigurationError(
        problem,
        source="database",
        key=str(table),
        remedy="start the system of this version once, so that its tables are brought up to date",
    )
