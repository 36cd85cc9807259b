"""Switchboard's side of the connectors, wired: heartbeats, the three jobs about them, and backfill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from butlers.butler.schedules import Job
from butlers.butler.toolbox import AnyTool
from butlers.daemon.compose.base import Butler
from butlers.daemon.compose.process import Process
from butlers.daemon.services import Service
from butlers.errors import InternalError
from butlers.pipeline.job import Window
from butlers.pipeline.process import run_in_process
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.backfill import BackfillJobs
from butlers.switchboard.connectors.registry import Connectors, Heartbeats, Speakers, make_log_months
from butlers.switchboard.connectors.rollups import Rollups, RunJob
from butlers.switchboard.connectors.rollups import Window as Interval

NOWHERE = "none"  # the master of an installation whose jobs somebody else starts
MONTHS_CHECK_S = 3600.0


def pipeline_jobs(process: Process) -> RunJob:
    """Runs a job over a window as the settings say, and waits for its end without holding anybody up."""
    settings, places = process.settings, process.places

    async def run(job: str, window: Interval, **arguments: str) -> dict[str, Any]:
        if settings.spark_master == NOWHERE:
            return {"skipped": "spark_master is none: whoever set it starts the jobs (butlers pipeline run)"}
        done = await run_in_process(
            job,
            Window(start=window.start, end=window.end),
            dsn=process.dsn,
            lake=places.lake,
            scratch=places.pipeline,
            arguments=arguments,
            master=settings.spark_master,
            memory=settings.spark_memory,
            limit_s=settings.spark_limit_s,
        )
        if done["outcome"] != "succeeded":
            raise InternalError(f"the job {job} needs attention: `butlers pipeline status {done['run_id']}` says why")
        return {"run_id": done["run_id"], **done["details"]}

    return run


def service_levels_job(process: Process) -> Job:
    """The last whole hour, and the long error budgets up to its end, which Messenger's judge reads."""
    run = pipeline_jobs(process)

    async def levels(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        end = process.clock.now().replace(minute=0, second=0, microsecond=0)
        return await run("service-levels", Interval(start=end - timedelta(hours=1), end=end))

    return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorParts:
    heartbeats: Heartbeats
    jobs: Mapping[str, Job]
    tools: Sequence[AnyTool]


def add_connectors(butler: Butler) -> ConnectorParts:
    process, schema = butler.process, butler.config.schema_name
    queries = Queries.load("butlers.switchboard.connectors", schema=schema)
    speakers = Speakers(database=process.database, queries=queries)
    heartbeats = Heartbeats(
        database=process.database, queries=queries, speakers=speakers, clock=process.clock, new_id=process.new_id
    )
    connectors = Connectors(database=process.database, queries=queries, clock=process.clock)
    backfill = BackfillJobs(
        database=process.database,
        queries=queries,
        clock=process.clock,
        new_id=process.new_id,
        connectors=connectors,
        speakers=speakers,
        report=butler.report,
    )
    butler.add(Service(name="connectors", drain=heartbeats.close, health=connectors.findings))
    return ConnectorParts(
        heartbeats=heartbeats,
        jobs=_jobs(butler, queries),
        tools=[*connectors.tools(heartbeats), *backfill.tools()],
    )


def _jobs(butler: Butler, queries: Queries) -> dict[str, Job]:
    process = butler.process
    rollups = Rollups(database=process.database, queries=queries, clock=process.clock, run_job=pipeline_jobs(process))
    make_months = partial(make_log_months, process.database, butler.config.schema_name, process.clock)
    butler.add(
        Service(
            name="heartbeat log's months",
            before_doors=True,
            start=make_months,
            run=make_months,
            every_s=MONTHS_CHECK_S,
        )
    )
    return {
        "connector_stats_hourly_rollup": rollups.hourly,
        "connector_stats_daily_rollup": rollups.daily,
        "connector_stats_pruning": rollups.pruning,
        "service_levels": service_levels_job(process),  # for whoever creates a schedule of it; none is shipped
    }
