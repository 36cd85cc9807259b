"""Switchboard's side of the connectors, wired: heartbeats, the three jobs about them, and backfill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from butlers.butler.schedules import Job
from butlers.butler.surface import AnyTool
from butlers.daemon.compose.base import Butler
from butlers.daemon.compose.pipeline import pipeline_jobs, service_levels_job
from butlers.daemon.services import repeated
from butlers.storage.queries import Queries
from butlers.switchboard.fleet.backfill_jobs import BackfillJobs
from butlers.switchboard.fleet.backfill_surface import BackfillDesk
from butlers.switchboard.fleet.connectors import Connectors
from butlers.switchboard.fleet.heartbeats import Heartbeats
from butlers.switchboard.fleet.months import FleetKeeper
from butlers.switchboard.fleet.rollups import Rollups
from butlers.switchboard.fleet.speakers import Speakers
from butlers.switchboard.fleet.surface import ConnectorDesk

MONTHS_CHECK_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    heartbeats: Heartbeats
    jobs: Mapping[str, Job]
    tools: Sequence[AnyTool]


def add_fleet(butler: Butler) -> Fleet:
    process, schema = butler.process, butler.config.schema_name
    queries = Queries.load("butlers.switchboard.fleet", schema=schema)
    speakers = Speakers(database=process.database, queries=queries)
    heartbeats = Heartbeats(
        database=process.database, queries=queries, speakers=speakers, clock=process.clock, new_id=process.new_id
    )
    connectors = Connectors(database=process.database, queries=queries, clock=process.clock)
    desk = ConnectorDesk(heartbeats=heartbeats, connectors=connectors)
    backfill = BackfillDesk(
        jobs=BackfillJobs(database=process.database, queries=queries, clock=process.clock, new_id=process.new_id),
        connectors=connectors,
        speakers=speakers,
        report=butler.report,
    )
    butler.health.register("connectors", connectors.findings)
    butler.drains.append(heartbeats.close)
    return Fleet(
        heartbeats=heartbeats,
        jobs=_jobs(butler, queries),
        tools=[*desk.tools(), *backfill.tools()],
    )


def _jobs(butler: Butler, queries: Queries) -> dict[str, Job]:
    process, schema = butler.process, butler.config.schema_name
    rollups = Rollups(database=process.database, queries=queries, clock=process.clock, run_job=pipeline_jobs(process))
    keeper = FleetKeeper(database=process.database, schema=schema, clock=process.clock)
    butler.before_serving.append(keeper.make_months)
    butler.loops["heartbeat log's months"] = repeated(process.clock, MONTHS_CHECK_S, keeper.make_months)
    return {
        "connector_stats_hourly_rollup": rollups.hourly,
        "connector_stats_daily_rollup": rollups.daily,
        "connector_stats_pruning": rollups.pruning,
        "service_levels": service_levels_job(process),  # for whoever creates a schedule of it; none is shipped
    }
