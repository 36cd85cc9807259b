"""What every butler is made of, wired: tools, schedules, sessions, state, the route door and its HTTP side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any
from uuid import UUID

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from butlers import __version__
from butlers.butler.activity import ActivityReporter
from butlers.butler.core_tools import CoreTools, SpeakingTools, StateStore
from butlers.butler.health import Health
from butlers.butler.identity import Caller, TokenFile
from butlers.butler.modules import Module, ModuleHost
from butlers.butler.route_inbox import RouteExecutor, RouteHandler
from butlers.butler.runtime import LocalRuntime, Runtime
from butlers.butler.runtimes import build_runtime
from butlers.butler.schedules import REMIND, Job, Scheduler, remind_job
from butlers.butler.sessions import Spawner
from butlers.butler.toolbox import AnyTool, EnvelopeTool, ToolBox
from butlers.butler.transport import InProcessTransport, McpTransport, Notifier
from butlers.clock import Clock
from butlers.contacts import Contacts
from butlers.contracts.route import RouteEnvelope, RouteResponse
from butlers.daemon.compose.modules import add_memory, gated
from butlers.daemon.places import Places
from butlers.daemon.services import Action, Service, Supervisor
from butlers.daemon.settings import Settings
from butlers.operations.operation import ADDS_ONCE, Role
from butlers.roster import ButlerConfig
from butlers.storage.claims import LeasePolicy, SuspectGate
from butlers.storage.database import Database
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.system")

SCHEDULE_WORKERS = 3  # schedules that run at one time: a long one must not keep the others waiting
LOST_SESSIONS_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What all butlers of one process share."""

    settings: Settings
    places: Places
    roster: Mapping[str, ButlerConfig]
    environment: Mapping[str, str]  # credentials, the simulators' included
    database: Database
    dsn: str = field(repr=False)  # its address, for processes that this one starts
    tokens: TokenFile
    clock: Clock
    new_id: Callable[[], UUID]
    instance: str  # one per process, names its leases and wire logs
    tool_boxes: dict[str, ToolBox] = field(default_factory=dict)
    doors: dict[str, str] = field(default_factory=dict)  # addresses of this process's doors beside its butlers'
    suspects: SuspectGate = field(default_factory=SuspectGate)  # one for all that may die here
    health: Health = field(default_factory=Health)  # what all butlers of the process depend on: database, disk

    @property
    def lease(self) -> LeasePolicy:
        return LeasePolicy(ttl=self.settings.lease_ttl_s, renew_every=self.settings.lease_renew_s)

    def telemetry(self, butler: str) -> Telemetry:
        instance = f"{socket.gethostname()}-{self.instance[:8]}"
        return Telemetry.create(butler, instance, clock=self.clock, otlp_endpoint=self.settings.otlp_endpoint)

    def transport(self, butler: str) -> InProcessTransport:
        """How that butler calls others: directly when they live here, else over MCP with its own token."""
        remote = McpTransport(token=lambda: self.tokens.secret_of(butler), url_of=self.mcp_url)
        caller = Caller(name=butler, role=Role.BUTLER)
        return InProcessTransport(caller=caller, tool_boxes=self.tool_boxes, elsewhere=remote)

    def base_url(self, butler: str) -> str | None:
        config = self.roster.get(butler)
        if config is None:
            return None
        return f"http://{self.settings.host}:{self.settings.port(butler, config.butler.port)}"

    def mcp_url(self, butler: str) -> str | None:
        base = self.base_url(butler)
        return f"{base}/mcp" if base else None


def base_migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package="butlers.butler", component="butler")


@dataclass(slots=True, kw_only=True)
class Butler:
    """A butler, wired and ready to serve."""

    config: ButlerConfig
    process: Process
    telemetry: Telemetry
    transport: InProcessTransport
    notifier: Notifier
    contacts: Contacts
    spawner: Spawner
    report: ActivityReporter
    supervisor: Supervisor
    tools: ToolBox
    modules: ModuleHost
    health: Health
    scheduler: Scheduler | None = None
    routes: list[BaseRoute] = field(default_factory=list)
    state: str = "starting"
    services: list[Service] = field(default_factory=list)  # in the order in which they start
    notices: list[Callable[[], Awaitable[str | None]]] = field(default_factory=list)  # for the operator

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def port(self) -> int:
        return self.process.settings.port(self.name, self.config.butler.port)

    def add(self, *services: Service) -> None:
        """Services that start after, and drain and stop before, those that are there."""
        self.services += services
        for service in services:
            if service.health is not None:
                self.health.register(service.name, service.health)

    def service(self, name: str) -> Service:
        return next(service for service in self.services if service.name == name)

    async def start(self, *, before_doors: bool) -> None:
        """Start the services of one of both moments: before the doors open, or when all butlers are registered."""
        for service in self.services:
            if service.before_doors is before_doors:
                if service.start is not None:
                    await service.start()
                if service.run is not None:
                    self.supervisor.start(service.name, service.run, service.every_s)
        if not before_doors:
            self.state = "ok"

    async def drain(self) -> None:
        """Finish what is in hand, from the last service to the first; the doors are still open."""
        for service in reversed(self.services):
            if service.drain is not None:
                await insist("draining", service.drain)

    async def stop(self) -> None:
        """End all loops, then let every service go, from the last to the first."""
        await insist("closing", self.supervisor.stop)
        for service in reversed(self.services):
            if service.stop is not None:
                await insist("closing", service.stop)

    def status(self) -> dict[str, Any]:
        """How it is, as far as it knows without asking anybody."""
        failing = list(self.supervisor.failures())
        return {
            "status": "degraded" if failing and self.state == "ok" else self.state,
            "butler": self.name,
            "version": __version__,
            "runtime": self.spawner.runtime_name,
            "modules": self.modules.names,
            "failing_services": failing,
        }

    def liveness(self) -> dict[str, Any]:
        """For `/healthz`: who serves here. That it answers is the news."""
        return {"status": "ok", "butler": self.name, "version": __version__, "state": self.state}

    async def readiness(self) -> dict[str, Any]:
        """For `/readyz`: every part. Not ready: while starting or stopping, and when something essential fails."""
        report = await self.health.examine()
        serving = self.state == "ok"
        return self.status() | {
            "status": report.condition.value if serving else self.state,
            "ready": serving and report.ready,
            "parts": [part.to_wire() for part in report.parts],
        }

    async def app(self) -> Starlette:
        # Loading the MCP SDK takes as long as all the rest: recovery has begun by now and goes on meanwhile.
        http: Any = await asyncio.to_thread(import_module, "butlers.butler.http")
        built: Starlette = http.build_app(
            butler=self.name,
            tools=self.tools,
            tokens=self.process.tokens,
            telemetry=self.telemetry,
            liveness=self.liveness,
            readiness=self.readiness,
            loopback_only=self.process.settings.loopback_only,
            about=self.config.butler.description,
            routes=self.routes,
        )
        return built

    def card(self) -> dict[str, Any]:
        """What the butler tells the registry."""
        registry = self.config.butler.registry
        return {
            "name": self.name,
            "endpoint_url": self.process.base_url(self.name),
            "transport": "mcp",
            "description": self.config.butler.description,
            "triggers": registry.triggers,
            "required_information": registry.required_information,
            "capabilities": self.tools.names(),
            "modules": self.modules.names,
            "route_timeout_s": registry.route_timeout_s,
        }


def build_butler(process: Process, config: ButlerConfig, *, modules: Mapping[str, Module]) -> Butler:
    """The parts that need no system behind them."""
    telemetry = process.telemetry(config.name)
    transport = process.transport(config.name)
    report = ActivityReporter(butler=config.name, transport=transport, clock=process.clock)
    supervisor, health = Supervisor(process.clock), Health(shared=process.health)
    health.register("services", supervisor.check)
    butler = Butler(
        config=config,
        process=process,
        telemetry=telemetry,
        transport=transport,
        notifier=Notifier(butler=config.name, transport=transport),
        contacts=Contacts(database=process.database, clock=process.clock, new_id=process.new_id),
        spawner=_spawner(process, config, telemetry, report),
        report=report,
        supervisor=supervisor,
        health=health,
        tools=ToolBox(),
        modules=ModuleHost(modules, source=config.source),
    )
    butler.add(
        Service(name="transport", stop=transport.close),
        Service(name="activity reporter", run=report.run, stop=report.close),
        Service(name="modules", before_doors=True, start=butler.modules.start, stop=butler.modules.stop),
        Service(
            name="lost sessions",
            before_doors=True,
            start=butler.spawner.close_lost,
            run=butler.spawner.close_lost,
            every_s=LOST_SESSIONS_S,
        ),
    )
    return butler


def finish_butler(
    butler: Butler,
    *,
    handle: RouteHandler,
    jobs: Mapping[str, Job],
    trace: Callable[[UUID], Awaitable[dict[str, Any]]],
    tools: Sequence[AnyTool] = (),
    speaks: bool = True,
) -> None:
    """Add schedules, the route door and all tools."""
    process, config = butler.process, butler.config
    memory_tools, memory_jobs = add_memory(butler)
    own_jobs = memory_jobs | ({REMIND: remind_job(butler.notifier)} if speaks else {})
    butler.scheduler = Scheduler(
        database=process.database,
        schema=config.schema_name,
        jobs=own_jobs | dict(jobs),
        spawner=butler.spawner,
        clock=process.clock,
        telemetry=butler.telemetry,
        report=butler.report,
    )
    butler.scheduler.check(config.butler.schedule, source=config.source)
    sync = partial(butler.scheduler.sync, config.butler.schedule)
    butler.add(
        Service(name="configured schedules", before_doors=True, start=sync),
        *(Service(name=f"schedules {number}", run=butler.scheduler.run) for number in range(1, SCHEDULE_WORKERS + 1)),
    )
    core = CoreTools(
        butler=config.name,
        status=butler.status,
        trace=trace,
        state=StateStore(database=process.database, schema=config.schema_name, clock=process.clock),
        scheduler=butler.scheduler,
        spawner=butler.spawner,
    )
    speaking = SpeakingTools(
        butler=config.name,
        scheduler=butler.scheduler,
        notifier=butler.notifier,
        clock=process.clock,
        new_id=process.new_id,
    )
    own = [*core.tools(), *tools, *memory_tools, *(speaking.tools() if speaks else ())]
    butler.tools.add(_route_tool(butler, handle), *(gated(butler, own) if speaks else own))
    process.tool_boxes[config.name] = butler.tools


def route_queries(butler: Butler) -> Queries:
    return Queries.load("butlers.butler", schema=butler.config.schema_name)


def _route_tool(butler: Butler, handle: RouteHandler) -> EnvelopeTool:
    executor = RouteExecutor(
        butler=butler.name,
        trusted_callers=frozenset(butler.config.butler.security.trusted_route_callers),
        handle=handle,
        clock=butler.process.clock,
        telemetry=butler.telemetry,
    )

    return EnvelopeTool(
        name="route.execute",
        description="Routed work (route.v1) from a trusted caller; answers with route_response.v1.",
        arguments=RouteEnvelope,
        returns=RouteResponse,
        hints=ADDS_ONCE,
        call=executor.execute,
        callers=executor.trusted_callers,
    )


def _spawner(process: Process, config: ButlerConfig, telemetry: Telemetry, report: ActivityReporter) -> Spawner:
    section = config.butler.runtime
    runtime: Runtime = LocalRuntime(config.name, process.clock)
    if process.settings.llm == "on" and section.type != "local":
        runtime = build_runtime(
            section.type,
            section.model,
            section.command,
            clock=process.clock,
            environ=process.environment,
            hidden=(process.places.root,),
        )
    return Spawner(
        runtime=runtime,
        instructions=config.instructions,
        database=process.database,
        schema=config.schema_name,
        clock=process.clock,
        new_id=process.new_id,
        telemetry=telemetry,
        max_concurrent=section.max_concurrent_sessions,
        timeout_s=section.timeout_s,
        report=report,
    )


async def insist(what: str, end: Action) -> None:
    """One part that fails to stop must not keep the others running."""
    try:
        await end()
    except Exception as error:
        log.error("stopping went wrong", error=error, reason=what.replace(" ", "_"))
