"""The same rollup without Spark: DuckDB over the files, and PostgreSQL over its own table."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.dataset

from benchmarks.rollup.on_spark import window_of
from butlers.pipeline.connection import connect
from butlers.pipeline.generate.fleet import FleetPlan
from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.transforms.hourly import COUNTERS, STATES, YOUNG_S
from butlers.storage.queries import Queries
from butlers.switchboard.fleet.steps import EARLIER

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
    """The service's own query, over an unlogged table with the service's index."""

    def __init__(self, dsn: str, plan: FleetPlan) -> None:
        self._dsn = dsn
        self._plan = plan

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
                "CREATE UNLOGGED TABLE switchboard.connector_heartbeat_log AS"
                f" SELECT DISTINCT ON (received_at, id) {listed} FROM switchboard.staged ORDER BY received_at, id"
            )
            cursor.execute("DROP TABLE switchboard.staged")
            cursor.execute(
                "CREATE INDEX ON switchboard.connector_heartbeat_log"
                " (connector_type, endpoint_identity, instance_id, received_at DESC)"
            )
            cursor.execute("CREATE INDEX ON switchboard.connector_heartbeat_log (received_at)")
            cursor.execute("ANALYZE switchboard.connector_heartbeat_log")
            connection.commit()

    def roll_up(self) -> tuple[int, ...]:
        window = window_of(self._plan)
        query = Queries.load("butlers.switchboard.fleet", schema="switchboard").steps_between_heartbeats.rstrip("; \n")
        with connect(self._dsn) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"SELECT count(*), {_SUMS} FROM ({query}) AS hours",
                (window.start, window.end, "hour", YOUNG_S, EARLIER),
            )
            row = cursor.fetchone()
        return tuple(int(value) for value in row or ())
