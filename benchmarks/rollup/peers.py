"""The same rollup without Spark: DuckDB over the files, and PostgreSQL over its own table."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.dataset

from butlers.pipeline.connection import connect
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.transforms.connector_stats import STATES
from butlers.switchboard.connectors.deltas import COUNTERS

_SQL = (Path(__file__).parent / "hourly.sql").read_text()
_SUMS = ", ".join(f"sum({name})::bigint" for name in (*COUNTERS, "heartbeat_count", *STATES))
_TYPES = {"id": "uuid", "instance_id": "uuid"}


class DuckDb:
    def __init__(self, lake: Path, *, memory: str, scratch: Path) -> None:
        self._connection = duckdb.connect(config={"memory_limit": memory, "temp_directory": str(scratch / "duckdb")})
        self._connection.execute("SET TimeZone = 'UTC'")
        files = lake / HEARTBEATS.name / "date=*" / "*.parquet"
        self._connection.execute(f"CREATE VIEW heartbeats AS SELECT * FROM read_parquet('{files}')")

    def roll_up(self) -> None:
        self._connection.execute(f"CREATE OR REPLACE TABLE hours AS {_SQL}")

    def totals(self) -> tuple[int, ...]:
        return self._connection.execute(f"SELECT count(*), {_SUMS} FROM hours").fetchone() or ()


class InPostgres:
    """The same statement over an unlogged table."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def load(self, lake: Path) -> None:
        """Not measured: a service has its rows already."""
        rows = pyarrow.dataset.dataset(lake / HEARTBEATS.name, format="parquet", exclude_invalid_files=True)
        columns = [name for name in HEARTBEATS.schema.fieldNames() if name != "change"]
        listed = ", ".join(f"{name}::{_TYPES[name]}" if name in _TYPES else name for name in columns)
        with connect(self._dsn) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA IF NOT EXISTS switchboard")
            reader = rows.scanner(columns=columns).to_reader()
            cursor.adbc_ingest("staged", reader, mode="replace", db_schema_name="switchboard")
            cursor.execute(
                f"CREATE UNLOGGED TABLE switchboard.connector_heartbeat_log AS SELECT {listed} FROM switchboard.staged"
            )
            cursor.execute("DROP TABLE switchboard.staged")
            cursor.execute("CREATE INDEX ON switchboard.connector_heartbeat_log (received_at)")
            cursor.execute("ANALYZE switchboard.connector_heartbeat_log")
            connection.commit()

    def roll_up(self) -> tuple[int, ...]:
        query = _SQL.replace("FROM heartbeats", "FROM switchboard.connector_heartbeat_log")
        with connect(self._dsn) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*), {_SUMS} FROM ({query}) AS hours")
            row = cursor.fetchone()
        return tuple(int(value) for value in row or ())
