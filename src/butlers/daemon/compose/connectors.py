"""Connectors, wired: those of this process, and for all of them heartbeats, the jobs about these, and backfill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from butlers import __version__
from butlers.butler.health import Check, Finding
from butlers.butler.identity import Caller, Grant
from butlers.butler.schedules import Job
from butlers.butler.toolbox import AnyTool
from butlers.channels.connector import HeartbeatReporter, Standing, make_connector
from butlers.channels.plugins import ChannelSettings
from butlers.channels.registry import channel_of
from butlers.contracts.envelope import holds_nul, invalid
from butlers.contracts.heartbeat import HeartbeatEnvelope, HeartbeatReply
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.daemon.compose.base import Butler, Process
from butlers.daemon.compose.channels import channel_settings
from butlers.daemon.services import Service
from butlers.errors import InternalError
from butlers.operations.operation import Role
from butlers.pipeline.job import Window
from butlers.pipeline.process import run_in_process
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.backfill import BackfillJobs
from butlers.switchboard.connectors.registry import Connectors, Heartbeats, Speakers, make_log_months
from butlers.switchboard.connectors.rollups import Rollups, RunJob
from butlers.switchboard.connectors.rollups import Window as Interval
from butlers.switchboard.connectors.statistics import ConnectorStatistics
from butlers.switchboard.ingress.ingress import Ingress

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
    own: set[UUID]  # instances of this process
    jobs: Mapping[str, Job]
    tools: Sequence[AnyTool]


def add_connectors(butler: Butler) -> ConnectorParts:
    process, schema = butler.process, butler.config.schema_name
    queries = Queries.load("butlers.switchboard.connectors", schema=schema)
    speakers = Speakers(database=process.database, queries=queries)
    heartbeats = Heartbeats(
        database=process.database, queries=queries, speakers=speakers, clock=process.clock, new_id=process.new_id
    )
    own: set[UUID] = set()
    connectors = Connectors(database=process.database, queries=queries, clock=process.clock, own=own)
    backfill = BackfillJobs(
        database=process.database,
        queries=queries,
        clock=process.clock,
        new_id=process.new_id,
        connectors=connectors,
        speakers=speakers,
        report=butler.report,
    )
    statistics = ConnectorStatistics(
        database=process.database,
        queries=Queries.load("butlers.switchboard.connectors.statistics", schema=schema),
        rollups=queries,
        clock=process.clock,
    )
    butler.add(Service(name="connectors", drain=heartbeats.close, health=connectors.findings))
    return ConnectorParts(
        heartbeats=heartbeats,
        own=own,
        jobs=_jobs(butler, queries),
        tools=[*connectors.tools(heartbeats), *statistics.tools(), *backfill.tools()],
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


class _DirectDoor:
    """The connectors' way in when they live in this process."""

    def __init__(self, ingress: Ingress, heartbeats: Heartbeats, connector: Caller) -> None:
        self._ingress = ingress
        self._heartbeats = heartbeats
        self._submitted_by = connector

    async def ingest(self, envelope: IngestEnvelope) -> IngestReply:
        """Like the other doors, which read JSON: what PostgreSQL cannot store is refused before anything happens."""
        if holds_nul(envelope.payload.raw):
            raise invalid("payload.raw", "must not contain NUL characters")
        return await self._ingress.accept(envelope, submitted_by=self._submitted_by)

    async def beat(self, envelope: HeartbeatEnvelope) -> HeartbeatReply:
        return await self._heartbeats.accept(envelope, self._submitted_by)


def add_sources(butler: Butler, ingress: Ingress, parts: ConnectorParts) -> None:
    """The connectors of this process. They come last, so that they drain first and nothing new comes in."""
    for name in butler.config.modules.enabled():
        channel = channel_of(name)
        for settings in channel_settings(butler.process, butler.config, channel) if channel.has_connector else ():
            if settings.identity_scope == "bot":
                _add_connector(butler, ingress, parts, settings)


def _add_connector(butler: Butler, ingress: Ingress, parts: ConnectorParts, settings: ChannelSettings) -> None:
    process, name = butler.process, settings.channel
    instance_id = process.new_id()
    parts.own.add(instance_id)
    principal = Caller(name=f"connector.{name}", role=Role.CONNECTOR, grants=(Grant(channel=name),))
    door = _DirectDoor(ingress, parts.heartbeats, principal)
    connector = make_connector(settings, door)
    reporter = HeartbeatReporter(
        connector=connector,
        port=door,
        clock=process.clock,
        instance_id=instance_id,
        every_s=process.settings.connector_heartbeat_s,
        version=__version__,
    )
    source, heartbeat = f"{name} connector", f"{name} connector's heartbeat"
    butler.add(
        Service(
            name=source,
            run=connector.run,
            drain=partial(butler.supervisor.stop, source, heartbeat),
            stop=connector.close,
            health=_standing_check(connector.standing),
        ),
        Service(name=heartbeat, run=reporter.run),
    )


def _standing_check(standing: Callable[[], Standing]) -> Check:
    """A connector of this process: before its source has told it who it is, it has no heartbeat to be known by."""

    async def check() -> Finding:
        found = standing()
        if found.state == "healthy":
            return Finding()
        remedy = f"{found.remedy[:1].upper()}{found.remedy[1:]}." if found.remedy else ""
        return Finding.degraded(f"{found.error_message or found.state}.", remedy=remedy)

    return check
