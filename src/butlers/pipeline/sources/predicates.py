"""Conditions as SQL text that means on the server exactly what it means in Spark; for others there is no text.

Values stand in the text and not in parameters, because a `COPY` takes no parameters. Where the two sides differ:

    text order      Spark goes by bytes, the server by the database's collation -> COLLATE "C"
    uuid            Spark sees text: only equality with a uuid in its usual form means the same
    jsonb           Spark sees text: only "is null" means the same
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from adbc_driver_manager.dbapi import Cursor
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DecimalType, StructField, StructType

from butlers.errors import ConfigurationError
from butlers.pipeline.job import Window
from butlers.pipeline.tables import TYPES, Table
from butlers.storage.queries import quote_identifier

if TYPE_CHECKING:
    import pyarrow

_OPERATORS: Mapping[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "IS NOT DISTINCT FROM",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_SAME = (EqualTo, EqualNullSafe)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COMPARABLE: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "uuid": (str,),
    "boolean": (bool,),
    "smallint": (int,),
    "integer": (int,),
    "bigint": (int,),
    "double precision": (int, float),
    "timestamp with time zone": (datetime,),
    "date": (date,),
}


def literal(value: Any) -> str | None:
    """A value as SQL text, None when there is no safe way to write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return f"({value})"
        case float():
            return f"({value!r})::float8" if math.isfinite(value) else None
        case str():
            return None if "\0" in value else "'" + value.replace("'", "''") + "'"
        case datetime():
            return f"'{_in_utc(value).isoformat()}'::timestamptz"
        case date():
            return f"'{value.isoformat()}'::date"
    return None


def filter_condition(condition: Filter, types: Mapping[str, str]) -> str | None:
    """A filter of Spark's as SQL; None: only Spark can do it. `types` are the server's, by column."""
    if isinstance(condition, Not):
        inner = filter_condition(condition.child, types)
        return f"NOT ({inner})" if inner else None
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(path) != 1 or path[0] not in types:
        return None
    column, kind = quote_identifier(path[0]), types[path[0]]
    if isinstance(condition, IsNull | IsNotNull):
        return f"{column} IS {'NOT ' if isinstance(condition, IsNotNull) else ''}NULL"
    if isinstance(condition, In):
        return _one_of(column, kind, condition)
    return _compared(column, kind, condition)


def window_condition(column: str, kind: str, window: Window) -> str:
    """The rows of a window; a day belongs to the window that its first moment in UTC lies in."""
    quoted = quote_identifier(column)
    start: datetime | date = window.start
    end: datetime | date = window.end
    if kind == "date":
        start, end = _first_day_from(window.start), _first_day_from(window.end)
    return f"{quoted} >= {literal(start)} AND {quoted} < {literal(end)}"


def _one_of(column: str, kind: str, condition: In) -> str | None:
    values = [_value(kind, value, same=True) for value in condition.value]
    known = [value for value in values if value is not None]
    return f"{column} IN ({', '.join(known)})" if known and len(known) == len(values) else None


def _compared(column: str, kind: str, condition: Filter) -> str | None:
    operator = _OPERATORS.get(type(condition))
    same = isinstance(condition, _SAME)
    value = _value(kind, getattr(condition, "value", None), same=same)
    if operator is None or value is None:
        return None
    collation = ' COLLATE "C"' if kind == "text" and not same else ""
    return f"{column}{collation} {operator} {value}"


def _value(kind: str, value: Any, *, same: bool) -> str | None:
    allowed = _COMPARABLE.get(kind, ())
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        return None
    if isinstance(value, datetime) and datetime not in allowed:
        return None
    if kind == "uuid":
        return f"'{value}'::uuid" if same and _UUID.fullmatch(str(value)) else None
    return literal(value)


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _first_day_from(moment: datetime) -> date:
    in_utc = _in_utc(moment)
    begun = in_utc.time() != datetime.min.time()
    return in_utc.date() + timedelta(days=1) if begun else in_utc.date()


# The server's type -> what Spark sees, and the cast that makes it so.
_SEEN: Mapping[str, tuple[str, str]] = {
    "text": ("string", ""),
    "uuid": ("string", "::text"),
    "jsonb": ("string", "::text"),
    "timestamp with time zone": ("timestamp", ""),
    **{kind: (kind, "") for kind in ("date", "boolean", "smallint", "bigint")},
    "integer": ("int", ""),
    "xid8": ("bigint", "::text::bigint"),
    "double precision": ("double", ""),
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


def batches_of(cursor: Cursor, schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """What a query found, in the types Spark wants to the letter: a numeric arrives as text, and fields carry notes of
    the driver's.
    """
    import pyarrow  # noqa: PLC0415 - on executors only

    expected = to_arrow_schema(schema, timezone="UTC")
    for batch in cursor.fetch_record_batch():
        arrays = [column.cast(field.type) for column, field in zip(batch.columns, expected, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=expected)


def seen_as(kind: str) -> DataType | None:
    """What Spark sees of a type of the server's, None when there is no rule for it."""
    if kind.startswith(_NUMERIC):
        precision, scale = kind.removeprefix(_NUMERIC).rstrip(")").split(",")
        return DecimalType(int(precision), int(scale))
    return TYPES[_SEEN[kind][0]] if kind in _SEEN else None


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
