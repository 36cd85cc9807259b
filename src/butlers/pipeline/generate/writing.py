"""Where made-up heartbeats go: into a lake, or into the log of a database; day by day, so that progress can be told.

Rows lie in the order in which they came, as in a lake that was streamed: what reads them gets no order for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.connection import transaction
from butlers.pipeline.generate.fleet import FleetPlan, logged_heartbeats
from butlers.pipeline.lake.events import CHANGE, DATE, HEARTBEATS
from butlers.pipeline.lake.files import publish, stage
from butlers.pipeline.lake.log import Commit, LakeLog
from butlers.pipeline.lake.wholeness import GENERATED
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.tables import CONNECTOR_HEARTBEAT_LOG, Table
from butlers.storage.queries import quote_identifier
from butlers.storage.retention import add_months

Tell = Callable[[date, int], None]  # a day, and how many of its rows were written


def write_lake(spark: SparkSession, plan: FleetPlan, lake: Path, *, tell: Tell) -> int:
    """Files of the event `heartbeats`; the number of rows. A lake that is there is not touched."""
    must_be_free(lake)
    folder = lake / HEARTBEATS.name
    log = LakeLog(folder)
    log.create(server=GENERATED)
    for day in plan.dates:
        files = publish(stage(_as_in_the_lake(logged_heartbeats(spark, plan, day)), folder), folder)
        log.commit(lambda _, files=files: Commit(kind="append", add=files))  # type: ignore[misc]
        tell(day, sum(file.rows for file in files))
    return log.state().rows


def must_be_free(lake: Path) -> None:
    if LakeLog(lake / HEARTBEATS.name).exists:
        raise invalid("out", "has heartbeats already: name another folder")


def write_database(spark: SparkSession, plan: FleetPlan, dsn: str, *, run_id: UUID, schema: str, tell: Tell) -> int:
    """Rows of `connector_heartbeat_log`."""
    table = CONNECTOR_HEARTBEAT_LOG.within(schema)
    _make_months(dsn, table, plan)
    total = 0
    for day in plan.dates:
        rows = merge_into(logged_heartbeats(spark, plan, day), dsn, table, run_id=run_id)
        tell(day, rows)
        total += rows
    return total


def _as_in_the_lake(made: DataFrame) -> DataFrame:
    stored = [name for name in HEARTBEATS.schema.fieldNames() if name != CHANGE]
    dated = made.select(*stored, sf.lit(0).cast("long").alias(CHANGE), sf.to_date(HEARTBEATS.born).alias(DATE))
    return dated.sortWithinPartitions(DATE, HEARTBEATS.born)


def _make_months(dsn: str, table: Table, plan: FleetPlan) -> None:
    """Places for the rows, under the names that the services give them."""
    month, last = plan.start.replace(day=1), plan.dates[-1] + timedelta(days=1)  # what is late comes a day later
    with transaction(dsn) as cursor:
        while month <= last:
            name = quote_identifier(f"{table.name}_p{month:%Y%m}")
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {quote_identifier(table.schema)}.{name} PARTITION OF {table.qualified}"
                f" FOR VALUES FROM ('{month} 00:00:00+00') TO ('{add_months(month, 1)} 00:00:00+00')"
            )
            month = add_months(month, 1)
