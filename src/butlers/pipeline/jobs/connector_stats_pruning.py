"""connector-stats-pruning: what is older than it is kept, as seen from the end of the window."""

from __future__ import annotations

import asyncio
from typing import Final

from butlers.pipeline.job import Job, JobContext, JobResult, Tense
from butlers.pipeline.sinks.pruning import Pruner, Removed
from butlers.pipeline.tables import (
    CONNECTOR_FANOUT_DAILY,
    CONNECTOR_HEARTBEAT_LOG,
    CONNECTOR_PROCESSES,
    CONNECTOR_STATS_DAILY,
    CONNECTOR_STATS_HOURLY,
)
from butlers.storage.database import Database
from butlers.telemetry import get_logger

NAME: Final = "connector-stats-pruning"
TABLES: Final = (
    CONNECTOR_HEARTBEAT_LOG,
    CONNECTOR_STATS_HOURLY,
    CONNECTOR_STATS_DAILY,
    CONNECTOR_FANOUT_DAILY,
    CONNECTOR_PROCESSES,
)

log = get_logger("butlers.pipeline")


def run(context: JobContext) -> JobResult:
    removed = asyncio.run(_prune(context))
    for what in removed:
        if what.rows:
            told = {name: str(value) for name, value in what.described().items() if name != "rows"}
            log.info("connector statistics pruned", count=what.rows, **told)
    rows = sum(what.rows for what in removed)
    return JobResult(rows_in=rows, rows_out=0, details={"removed": [what.described() for what in removed]})


async def _prune(context: JobContext) -> list[Removed]:
    async with await Database.connect(context.dsn, max_size=1) as database:
        pruner = Pruner(database=database, schema=context.schemas.pipeline, job=NAME, run_id=context.run_id)
        heartbeats = CONNECTOR_HEARTBEAT_LOG.within(context.schemas.switchboard)
        assert heartbeats.kept is not None
        removed = await pruner.drop_months(heartbeats, context.window.end - heartbeats.kept)
        for table in TABLES:
            assert table.kept is not None
            kept_from = context.window.end - table.kept
            removed.append(await pruner.prune(table.within(context.schemas.switchboard), kept_from))
    return removed


JOB = Job(
    name=NAME,
    about="remove heartbeats and statistics of connectors that are older than they are kept, and log what was removed",
    run=run,
    tense=Tense.OVER,
)
