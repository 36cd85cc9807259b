"""Switchboard's side of the connectors, wired: heartbeats, the three jobs about them, and backfill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from butlers.butler.schedules import Job
from butlers.butler.toolbox import AnyTool
from butlers.daemon.compose.base import Butler
from butlers.daemon.compose.pipeline import pipeline_jobs, service_levels_job
from butlers.daemon.services import repeated
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.backfill import BackfillJobs, BackfillTools
from butlers.switchboard.connectors.heartbeats import HeartbeatLogMonths, Heartbeats
from butlers.switchboard.connectors.registry import Connectors, ConnectorTools
from butlers.switchboard.connectors.rollups import Rollups
from butlers.switchboard.ingress.authority import Speakers

MONTHS_CHECK_S = 3600.0


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
    desk = ConnectorTools(heartbeats=heartbeats, connectors=connectors)
    backfill = BackfillTools(
        jobs=BackfillJobs(database=process.database, queries=queries, clock=process.clock, new_id=process.new_id),
        connectors=connectors,
        speakers=speakers,
        report=butler.report,
    )
    butler.health.register("connectors", connectors.findings)
    butler.drains.append(heartbeats.close)
    return ConnectorParts(
        heartbeats=heartbeats,
        jobs=_jobs(butler, queries),
        tools=[*desk.tools(), *backfill.tools()],
    )


def _jobs(butler: Butler, queries: Queries) -> dict[str, Job]:
    process, schema = butler.process, butler.config.schema_name
    rollups = Rollups(database=process.database, queries=queries, clock=process.clock, run_job=pipeline_jobs(process))
    months = HeartbeatLogMonths(database=process.database, schema=schema, clock=process.clock)
    butler.before_serving.append(months.make_months)
    butler.loops["heartbeat log's months"] = repeated(process.clock, MONTHS_CHECK_S, months.make_months)
    return {
        "connector_stats_hourly_rollup": rollups.hourly,
        "connector_stats_daily_rollup": rollups.daily,
        "connector_stats_pruning": rollups.pruning,
        "service_levels": service_levels_job(process),  # for whoever creates a schedule of it; none is shipped
    }
