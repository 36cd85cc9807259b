"""Where rows wait between the tasks that wrote them and the one transaction that takes them over.

    pipeline_staging.s_<run>_<n>            the rows, UNLOGGED, each marked with the attempt that wrote it
    pipeline_staging.s_<run>_<n>_accepted   the attempts that Spark accepted, with the number of their rows; logged, so
                                            that a server that falls forgets the rows and not that there were some

Spark may run a task twice (speculation, a lost executor) and accept one of them; the other may still be writing when
everything is over. So rows are taken by the list of accepted attempts, never by "everything that is there".

As long as the driver works on a staging table it holds an advisory lock of that name. A lock that can be had belongs to
a driver that died: whoever comes next drops the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID, uuid4

from adbc_driver_manager.dbapi import Cursor
from pyspark.sql.types import DataType, DecimalType, StructType

from butlers.errors import InternalError
from butlers.pipeline.connection import connect, transaction
from butlers.storage.queries import quote_identifier

SCHEMA = "pipeline_staging"
ATTEMPT, ROWS = "staged_by", "staged_rows"

# By what Spark calls a type: COPY is binary, so a column must be of the very type that Arrow has.
_KINDS: Mapping[str, str] = {
    "string": "text",
    "timestamp": "timestamptz",
    "date": "date",
    "boolean": "boolean",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "double": "double precision",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    name: str

    @property
    def rows(self) -> str:
        return f"{SCHEMA}.{quote_identifier(self.name)}"

    @property
    def accepted(self) -> str:
        return f"{SCHEMA}.{quote_identifier(self.accepted_name)}"

    @property
    def accepted_name(self) -> str:
        return f"{self.name}_accepted"

    @property
    def accepted_rows(self) -> str:
        """What to select from: the rows that count."""
        return f"(SELECT * FROM {self.rows} WHERE {ATTEMPT} IN (SELECT {ATTEMPT} FROM {self.accepted})) AS staged"

    def count(self, cursor: Cursor) -> int:
        """How many they are; refused when they are not all that tasks wrote."""
        found = _number(cursor, f"SELECT count(*) FROM {self.accepted_rows}")
        if found != _number(cursor, f"SELECT coalesce(sum({ROWS}), 0)::bigint FROM {self.accepted}"):
            raise InternalError(
                "the server was restarted and lost staged rows, so nothing was written: run the job again"
            )
        return found


@contextmanager
def staging_for(dsn: str, columns: StructType, run_id: UUID) -> Iterator[Staging]:
    """A staging table for these columns; dropped at the end, whatever happens."""
    staging = Staging(name=f"s_{run_id.hex}_{uuid4().hex[:8]}")
    _prepare_schema(dsn)
    # Not in a transaction: tasks must see the table while the lock is held.
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        _clear_abandoned(cursor)
        cursor.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))::text", (staging.name,))
        cursor.fetchone()
        cursor.execute(f"CREATE UNLOGGED TABLE {staging.rows} ({_definitions(columns)}, {ATTEMPT} text NOT NULL)")
        cursor.execute(f"CREATE TABLE {staging.accepted} ({ATTEMPT} text PRIMARY KEY, {ROWS} bigint NOT NULL)")
        try:
            yield staging
        finally:
            _drop(cursor, staging)


def _number(cursor: Cursor, query: str) -> int:
    cursor.execute(query)
    row = cursor.fetchone()
    return int(row[0]) if row else 0


def _definitions(columns: StructType) -> str:
    return ", ".join(f"{quote_identifier(field.name)} {_kind(field.dataType)}" for field in columns)


def _kind(kind: DataType) -> str:
    return f"numeric({kind.precision},{kind.scale})" if isinstance(kind, DecimalType) else _KINDS[kind.simpleString()]


def _prepare_schema(dsn: str) -> None:
    with transaction(dsn) as cursor:
        # Two processes that create the same schema at once would collide in the catalog.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))::text", (SCHEMA,))
        cursor.fetchone()
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")


def _clear_abandoned(cursor: Cursor) -> None:
    cursor.execute(
        "SELECT tablename::text FROM pg_tables WHERE schemaname = $1 AND tablename NOT LIKE '%\\_accepted'", (SCHEMA,)
    )
    for (name,) in cursor.fetchall():
        cursor.execute("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", (name,))
        row = cursor.fetchone()
        if row and row[0]:
            _drop(cursor, Staging(name=name))


def _drop(cursor: Cursor, staging: Staging) -> None:
    cursor.execute(f"DROP TABLE IF EXISTS {staging.rows}, {staging.accepted}")
    cursor.execute("SELECT pg_advisory_unlock(hashtextextended($1, 0))", (staging.name,))
    cursor.fetchone()
