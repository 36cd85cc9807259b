"""Switchboard, wired: the door in, the buffer, routing, the way out, and the connectors its modules bring."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from starlette.routing import Mount

from butlers.butler.config import ButlerConfig
from butlers.butler.identity import Caller, Role
from butlers.butler.module import Module
from butlers.connectors.telegram import TelegramConnector
from butlers.contracts.envelope import invalid
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.contracts.route import RouteEnvelope
from butlers.daemon.compose.base import Butler, base_migrations, build_butler, finish_butler
from butlers.daemon.compose.calendar import calendar_module
from butlers.daemon.compose.memory import memory_migrations
from butlers.daemon.compose.operators import add_operators, operator_audit
from butlers.daemon.compose.process import Process
from butlers.daemon.compose.routing import add_routing, together
from butlers.daemon.services import repeated
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.retry import RetryPolicy
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from butlers.switchboard.admission.admission import Admission
from butlers.switchboard.admission.decision import AdmissionPolicy
from butlers.switchboard.api import Api, ApiPolicy
from butlers.switchboard.buffer import BufferPolicy, DurableBuffer
from butlers.switchboard.dispatch import Dispatcher
from butlers.switchboard.fanout.circuits import Circuits
from butlers.switchboard.fanout.executor import Fanout
from butlers.switchboard.fanout.targets import TargetReader
from butlers.switchboard.holds.holds import Holds
from butlers.switchboard.holds.surface import HoldTools, hold_routes
from butlers.switchboard.inbox import MessageInbox
from butlers.switchboard.ingress import Ingress, MessageRef
from butlers.switchboard.lifecycle import RequestProcessor
from butlers.switchboard.lineage import LineageReader
from butlers.switchboard.notify import NotifyDispatcher
from butlers.switchboard.operators.api import AddRoutes
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.registry import Registry
from butlers.switchboard.request_telemetry import RequestTelemetry
from butlers.switchboard.requests import RequestReader
from butlers.switchboard.retention import InboxKeeper
from butlers.switchboard.routing.cascade import Cascade
from butlers.switchboard.routing.classifier import LocalClassifier
from butlers.switchboard.service_levels.accept_times import AcceptTimes
from butlers.switchboard.service_levels.levels import ServiceLevels
from butlers.switchboard.service_levels.surface import ServiceLevelDesk
from butlers.switchboard.signals.signals import Signals
from butlers.switchboard.tools import SwitchboardTools

DISPATCH_RETRY = RetryPolicy(max_attempts=3, initial_delay=0.5, max_delay=5.0, jitter=0.3)
ANSWER_MARGIN_S = 5.0  # a caller waits longer than the callee may take
RETENTION_CHECK_S = 3600.0
SIGNAL_SWEEP_S, SIGNAL_DRAIN_S = 20.0, 5.0


def migration_sets(config: ButlerConfig) -> list[MigrationSet]:
    schema = config.schema_name
    return [
        base_migrations(schema),
        MigrationSet(schema=schema, package="butlers.switchboard", component="switchboard"),
        *memory_migrations(config),
    ]


class _DirectIngest:
    """The connectors' way in when they live in this process."""

    def __init__(self, ingress: Ingress, connector: str) -> None:
        self._ingress = ingress
        self._submitted_by = Caller(name=connector, role=Role.CONNECTOR)

    async def ingest(self, envelope: IngestEnvelope) -> IngestReply:
        return await self._ingress.accept(envelope, submitted_by=self._submitted_by)


def build(process: Process, config: ButlerConfig) -> Butler:
    modules = {name: Module(name=name) for name in config.modules.enabled()}
    calendar = calendar_module(process, config)
    if calendar is not None:
        modules["calendar"] = calendar[0]
    butler = build_butler(process, config, modules=modules)
    database, clock, new_id, schema = process.database, process.clock, process.new_id, config.schema_name
    queries = Queries.load("butlers.switchboard", schema=schema)
    registry = Registry(database=database, schema=schema, clock=clock, new_id=new_id)
    inbox = MessageInbox(database=database, schema=schema, clock=clock, new_id=new_id)
    lineage = LineageReader(database=database, queries=queries)
    notify = NotifyDispatcher(
        lineage=lineage,
        transport=butler.transport,
        database=database,
        queries=queries,
        clock=clock,
        new_id=new_id,
        telemetry=butler.telemetry,
        timeout_s=_timeout_of(process.roster, "messenger") + ANSWER_MARGIN_S,
        patience_s=process.settings.messenger_patience_s,
    )
    signals = Signals(
        settings=config.lifecycle,
        notifier=notify,
        database=database,
        queries=Queries.load("butlers.switchboard.signals", schema=schema),
        clock=clock,
    )
    dead_letters = DeadLetters(database=database, schema=schema, clock=clock, new_id=new_id)
    routing = add_routing(butler)
    dispatcher = _dispatcher(butler)

    def offer(ref: MessageRef) -> None:  # the buffer and its processor know each other
        buffer.offer(ref)

    processor = RequestProcessor(
        inbox=inbox,
        database=database,
        registry=registry,
        cascade=Cascade(
            settings=config.routing, local=LocalClassifier(), threads=routing.threads, llm=routing.llm
        ),
        fanout=Fanout(dispatcher=dispatcher),
        signals=signals,
        dead_letters=dead_letters,
        settings=config.routing,
        observe=RequestTelemetry(telemetry=butler.telemetry, clock=clock),
        worker=process.instance,
        lease=process.lease,
        patience_s=process.settings.request_patience_s,
        clock=clock,
        offer=offer,
        after=routing.extractor.offer,
    )
    admission = _admission(butler)
    buffer = DurableBuffer(
        inbox=inbox,
        process=admission.counting_down(processor.process),
        policy=BufferPolicy(**config.buffer.model_dump()),
        recheck_after_s=process.settings.lease_ttl_s + 1,
        clock=clock,
        telemetry=butler.telemetry,
    )
    accept_times, service_levels = _service_levels(butler)
    ingress = _ingress(butler, buffer, registry, admission, signals, accept_times)
    audit = operator_audit(butler)
    operator_tools, operator_routes = add_operators(
        butler,
        registry=registry,
        dead_letters=dead_letters,
        audit=audit,
        processor=processor,
        buffer=buffer,
        signals=signals,
    )
    holds = Holds(
        database=database,
        queries=Queries.load("butlers.switchboard.holds", schema=schema),
        clock=clock,
        new_id=new_id,
    )
    requests = RequestReader(
        database=database, queries=queries, transport=butler.transport, dead_letters=dead_letters, audit=audit
    )
    finish_butler(
        butler,
        handle=_refuse_route,
        jobs={"eligibility_sweep": lambda _arguments: registry.sweep()},
        trace=_tracer(requests),
        tools=[
            *SwitchboardTools(
                ingress=ingress,
                registry=registry,
                notify=notify,
                lineage=lineage,
                registered=dispatcher.circuits.reset,
            ).tools(),
            *operator_tools,
            *routing.tools,
            *service_levels.tools(),
            *HoldTools(holds=holds).tools(),
            *(calendar[1] if calendar else ()),
        ],
    )
    more_routes = together(operator_routes, routing.add_routes, hold_routes(holds), service_levels.add_routes)
    _add_api(butler, ingress, requests, registry, more_routes)
    _add_loops(butler, buffer, processor)
    butler.loops["signals"] = repeated(clock, SIGNAL_SWEEP_S, signals.sweep)
    _add_connectors(butler, ingress)
    butler.drains.append(_drain(config, buffer, processor, ingress, signals))
    return butler


async def _spare_the_collector() -> None:
    """What start-up made stays. While hundreds of requests wait for one commit the garbage collector would walk all of
    it again and again: up to a third of a millisecond for every accepted message.
    """
    gc.freeze()


async def _end_sparing() -> None:
    gc.unfreeze()


def _admission(butler: Butler) -> Admission:
    admission = Admission(
        policy=AdmissionPolicy.of(butler.config.admission),
        database=butler.process.database,
        schema=butler.config.schema_name,
        clock=butler.process.clock,
        telemetry=butler.telemetry,
    )
    butler.before_serving.append(admission.look)
    butler.loops["admission"] = admission.run
    butler.before_loops.append(_spare_the_collector)
    butler.closes.append(_end_sparing)
    return admission


def _service_levels(butler: Butler) -> tuple[AcceptTimes, ServiceLevelDesk]:
    process, schema = butler.process, butler.config.schema_name
    accept_times = AcceptTimes(database=process.database, schema=schema, clock=process.clock)
    levels = ServiceLevels(
        database=process.database,
        queries=Queries.load("butlers.switchboard.service_levels", schema=schema),
        accept_times=accept_times,
    )
    butler.loops["accept times"] = accept_times.run
    butler.drains.append(accept_times.flush)
    return accept_times, ServiceLevelDesk(levels=levels, clock=process.clock)


def _ingress(
    butler: Butler,
    buffer: DurableBuffer,
    registry: Registry,
    admission: Admission,
    signals: Signals,
    accept_times: AcceptTimes,
) -> Ingress:
    process = butler.process
    return Ingress(
        database=process.database,
        schema=butler.config.schema_name,
        hot_path=buffer,
        admission=admission,
        roster=frozenset(process.roster),
        registry=registry,
        clock=process.clock,
        new_id=process.new_id,
        telemetry=butler.telemetry,
        content_window_s=process.settings.content_dedupe_window_s,
        shows_end=signals.wanted,
        accepted=accept_times.note,
    )


def _dispatcher(butler: Butler) -> Dispatcher:
    roster = butler.process.roster
    return Dispatcher(
        transport=butler.transport,
        timeout_of=lambda name: _timeout_of(roster, name) + ANSWER_MARGIN_S,
        retry=DISPATCH_RETRY,
        circuits=_circuits(butler),
        targets=TargetReader(database=butler.process.database, schema=butler.config.schema_name),
        clock=butler.process.clock,
        telemetry=butler.telemetry,
    )


def _circuits(butler: Butler) -> Circuits:
    settings = butler.config.routing.circuit
    policy = BreakerPolicy(
        failure_threshold=settings.failure_threshold,
        recovery_timeout=settings.recovery_s,
        success_threshold=settings.success_threshold,
    )
    return Circuits(policy=policy, clock=butler.process.clock, telemetry=butler.telemetry)


def _timeout_of(roster: Mapping[str, ButlerConfig], name: str) -> float:
    config = roster.get(name)
    return config.butler.registry.route_timeout_s if config else 60.0


async def _refuse_route(_envelope: RouteEnvelope) -> dict[str, Any]:
    raise invalid("target.butler", "switchboard takes messages at its ingest door and no routed work")


def _tracer(requests: RequestReader) -> Any:
    async def trace(request_id: UUID) -> dict[str, Any]:
        found = await requests.trace(request_id)
        if found is None:
            raise invalid("request_id", "no such request")
        return found

    return trace


def _add_api(
    butler: Butler, ingress: Ingress, requests: RequestReader, registry: Registry, operator_routes: AddRoutes
) -> None:
    settings = butler.process.settings
    api = Api(
        ingress=ingress,
        requests=requests,
        registry=registry,
        tokens=butler.process.tokens,
        transport=butler.transport,
        telemetry=butler.telemetry,
        operator_routes=operator_routes,
        butlers=frozenset(butler.process.roster),
        policy=ApiPolicy(
            max_body_bytes=settings.max_body_bytes,
            token_required=settings.token_required,
            loopback_only=settings.loopback_only,
        ),
    )
    butler.routes.append(Mount("/api", app=api.app()))


def _add_loops(butler: Butler, buffer: DurableBuffer, processor: RequestProcessor) -> None:
    process, schema = butler.process, butler.config.schema_name

    keeper = InboxKeeper(
        database=process.database,
        schema=schema,
        queries=Queries.load("butlers.switchboard", schema=schema),
        clock=process.clock,
        keep_months=process.settings.inbox_keep_months,
        keep_dedupe_days=process.settings.dedupe_keep_days,
    )
    butler.before_serving.append(keeper.keep)
    butler.loops["inbox keeper"] = repeated(process.clock, RETENTION_CHECK_S, keeper.keep)
    butler.loops["buffer"] = buffer.run
    butler.loops["lease keeper"] = processor.keep_renewed


def _add_connectors(butler: Butler, ingress: Ingress) -> None:
    process, telegram = butler.process, butler.config.modules.telegram
    if telegram is None or not telegram.bot.enabled:
        return
    connector = TelegramConnector(
        token=process.environment[telegram.bot.token_env],
        base_url=process.settings.telegram_api_url,
        ingest=_DirectIngest(ingress, "connector.telegram"),
        clock=process.clock,
        poll_s=process.settings.telegram_poll_s,
    )
    butler.sources["telegram connector"] = connector.run
    butler.closes.append(connector.close)


def _drain(
    config: ButlerConfig, buffer: DurableBuffer, processor: RequestProcessor, ingress: Ingress, signals: Signals
) -> Any:
    async def drain() -> None:
        """Finish what is in hand while its targets are still up; what waits stays in the inbox."""
        await ingress.close()
        buffer.stop()
        await processor.drain(config.butler.shutdown.timeout_s)
        await signals.drain(SIGNAL_DRAIN_S)

    return drain
