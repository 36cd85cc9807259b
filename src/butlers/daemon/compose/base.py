"""What every butler is made of, wired: tools, schedules, sessions, state, the route door and its HTTP side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from uuid import UUID

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from butlers import __version__
from butlers.butler.activity import ActivityReporter
from butlers.butler.core_tools import CoreTools, StateStore
from butlers.butler.health import Health
from butlers.butler.identity import Caller
from butlers.butler.modules import Module, ModuleHost
from butlers.butler.notifier import Notifier
from butlers.butler.route_inbox import RouteExecutor, RouteHandler
from butlers.butler.runtime import LocalRuntime, Runtime
from butlers.butler.runtimes import build_runtime
from butlers.butler.schedules import REMIND, Job, Scheduler, remind_job
from butlers.butler.sessions import Spawner
from butlers.butler.toolbox import AnyTool, EnvelopeTool, ToolBox
from butlers.butler.transport import Transport
from butlers.contacts import Contacts
from butlers.contracts.route import RouteEnvelope, RouteResponse
from butlers.daemon.compose.modules import add_memory, gated
from butlers.daemon.compose.process import Process
from butlers.daemon.services import Loop, Services, services_check
from butlers.operations.operation import ADDS_ONCE
from butlers.roster import ButlerConfig
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from butlers.telemetry import Telemetry

TICK_S = 1.0
SCHEDULE_HANDS = 3  # schedules that run at one time: a long one must not keep the others waiting
LOST_SESSIONS_S = 60.0


def base_migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package="butlers.butler", component="butler")


@dataclass(slots=True, kw_only=True)
class Butler:
    """A butler, wired and ready to serve."""

    config: ButlerConfig
    process: Process
    telemetry: Telemetry
    transport: Transport
    notifier: Notifier
    contacts: Contacts
    spawner: Spawner
    report: ActivityReporter
    services: Services
    tools: ToolBox
    modules: ModuleHost
    health: Health
    scheduler: Scheduler | None = None
    routes: list[BaseRoute] = field(default_factory=list)
    state: str = "starting"
    before_serving: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    sources: dict[str, Loop] = field(default_factory=dict)  # connectors: stopped first, so that nothing new comes in
    before_doors: list[Callable[[], Awaitable[object]]] = field(default_factory=list)  # recovery that needs no door
    first_loops: dict[str, Loop] = field(default_factory=dict)  # started right after it
    loops: dict[str, Loop] = field(default_factory=dict)  # started when the servers are up
    timers: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = field(default_factory=dict)  # every so often
    before_loops: list[Callable[[], Awaitable[object]]] = field(default_factory=list)  # recovery, once
    drains: list[Callable[[], Awaitable[None]]] = field(default_factory=list)  # run before the servers close
    closes: list[Callable[[], Awaitable[None]]] = field(default_factory=list)  # run after
    notices: list[Callable[[], Awaitable[str | None]]] = field(default_factory=list)  # for whoever starts the system

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def port(self) -> int:
        return self.process.settings.port(self.name, self.config.butler.port)

    async def prepare(self) -> None:
        """What must be there before the doors open: modules and schedules."""
        await self.modules.start()
        await self.spawner.close_lost()
        if self.scheduler is not None:
            await self.scheduler.sync(self.config.butler.schedule)
        for prepare in self.before_serving:
            await prepare()

    async def recover(self) -> None:
        """What needs nobody else is taken up again before the doors open."""
        for recover in self.before_doors:
            await recover()
        for name, loop in self.first_loops.items():
            self.services.start(name, loop)

    async def begin(self) -> None:
        """Recover what an earlier process left, then start the loops."""
        for recover in self.before_loops:
            await recover()
        if self.scheduler is not None:
            for hand in range(1, SCHEDULE_HANDS + 1):
                self.services.every(f"schedules {hand}", TICK_S, self.scheduler.tick)
        self.services.every("lost sessions", LOST_SESSIONS_S, self.spawner.close_lost)
        for name, loop in (self.loops | self.sources).items():
            self.services.start(name, loop)
        for name, (seconds, action) in self.timers.items():
            self.services.every(name, seconds, action)
        self.state = "ok"

    def status(self) -> dict[str, Any]:
        """How it is, as far as it knows without asking anybody."""
        failing = self.services.failing
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
    services, health = Services(process.clock), Health(shared=process.health)
    health.register("services", services_check(services))
    return Butler(
        config=config,
        process=process,
        telemetry=telemetry,
        transport=transport,
        notifier=Notifier(butler=config.name, transport=transport),
        contacts=Contacts(database=process.database, clock=process.clock, new_id=process.new_id),
        spawner=_spawner(process, config, telemetry, report),
        report=report,
        services=services,
        health=health,
        tools=ToolBox(),
        modules=ModuleHost(modules, source=config.source),
        loops={"activity reporter": report.run},
        closes=[report.close, transport.close],
    )


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
    core = CoreTools(
        butler=config.name,
        status=butler.status,
        trace=trace,
        state=StateStore(database=process.database, schema=config.schema_name, clock=process.clock),
        scheduler=butler.scheduler,
        spawner=butler.spawner,
        notifier=butler.notifier,
        contacts=butler.contacts,
        clock=process.clock,
        new_id=process.new_id,
    )
    own = [*core.tools(), *tools, *memory_tools, *(core.speaking_tools() if speaks else ())]
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

    async def execute(caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        return (await executor.execute(caller, raw)).to_wire()

    return EnvelopeTool(
        name="route.execute",
        description="Routed work (route.v1) from a trusted caller; answers with route_response.v1.",
        arguments=RouteEnvelope,
        returns=RouteResponse,
        hints=ADDS_ONCE,
        handler=execute,
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
