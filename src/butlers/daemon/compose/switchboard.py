"""Switchboard, wired: the door in (`ingress.py`), what is between the doors (`orchestration.py`, `routing.py`), and the
operators' side (`operators.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from butlers.butler.modules import Module
from butlers.butler.toolbox import AnyTool
from butlers.contracts.envelope import invalid
from butlers.contracts.route import RouteEnvelope
from butlers.daemon.compose.base import Butler, base_migrations, build_butler, finish_butler
from butlers.daemon.compose.connectors import add_connectors
from butlers.daemon.compose.ingress import add_admission, add_api, add_senders, add_service_levels, add_sources, door_in
from butlers.daemon.compose.modules import calendar_module, memory_migrations
from butlers.daemon.compose.orchestration import Orchestration, orchestration
from butlers.daemon.compose.process import Process
from butlers.daemon.compose.routing import add_routing
from butlers.daemon.services import Service
from butlers.errors import NotFound
from butlers.pipeline.schema import MIGRATIONS as PIPELINE_MIGRATIONS
from butlers.roster import ButlerConfig
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.buffer import DurableBuffer
from butlers.switchboard.ingress.ingress import Ingress, MessageRef
from butlers.switchboard.operators.audit import AuditLog, OperatorAudit, RecordKeeper
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.overrides import OnEnd, Operators
from butlers.switchboard.operators.tools import OperatorTools
from butlers.switchboard.registry import Registry
from butlers.switchboard.requests.inbox import InboxKeeper
from butlers.switchboard.requests.lifecycle import RequestProcessor
from butlers.switchboard.requests.reader import RequestReader
from butlers.switchboard.requests.signals import Signals, ended_of
from butlers.switchboard.tools import SwitchboardTools

RETENTION_CHECK_S = 3600.0
SIGNAL_DRAIN_S = 5.0


def operator_audit(butler: Butler) -> OperatorAudit:
    process = butler.process
    return OperatorAudit(database=process.database, schema=butler.config.schema_name, new_id=process.new_id)


def add_operators(
    butler: Butler,
    *,
    registry: Registry,
    dead_letters: DeadLetters,
    audit: OperatorAudit,
    processor: RequestProcessor,
    buffer: DurableBuffer,
    signals: Signals,
) -> list[AnyTool]:
    """The tools; the loops are added to the butler."""
    process, schema = butler.process, butler.config.schema_name
    queries = Queries.load("butlers.switchboard.operators", schema=schema)
    log = AuditLog(database=process.database, schema=schema, clock=process.clock, new_id=process.new_id)
    operators = Operators(
        database=process.database,
        queries=queries,
        registry=registry,
        dead_letters=dead_letters,
        audit=audit,
        log=log,
        clock=process.clock,
        offer=buffer.offer,
        stop_now=processor.abort,
        on_end=_aftermath(butler, queries, buffer, signals),
    )
    keeper = RecordKeeper(database=process.database, schema=schema, clock=process.clock)
    butler.add(
        Service(name="audit log", run=log.run, stop=log.close),
        Service(name="operators' records", run=keeper.keep, every_s=RETENTION_CHECK_S),
    )
    return OperatorTools(operators=operators, dead_letters=dead_letters, audit=audit, log=log).tools()


def _aftermath(butler: Butler, queries: Queries, buffer: DurableBuffer, signals: Signals) -> OnEnd:
    """Who hears of a request that an operator ended: its author, and whoever waits behind it in its thread."""
    process = butler.process
    inbox_queries = Queries.load("butlers.switchboard", schema=butler.config.schema_name)

    async def ended(request_id: UUID, _state: str) -> None:
        row = await process.database.fetchrow(queries.ended_request, request_id)
        if row is None:
            return
        signals.ended(ended_of(row))
        following = await process.database.fetchrow(
            inbox_queries.next_in_thread, row["thread_key"], process.clock.now()
        )
        if following is not None:
            buffer.offer(MessageRef(**dict(following)))

    return ended


def migration_sets(config: ButlerConfig) -> list[MigrationSet]:
    schema = config.schema_name
    return [
        base_migrations(schema),
        MigrationSet(schema=schema, package="butlers.switchboard", component="switchboard"),
        *memory_migrations(config),
        *PIPELINE_MIGRATIONS,  # its schedules start jobs
    ]


def build(process: Process, config: ButlerConfig) -> Butler:
    butler, calendar_tools = _with_modules(process, config)
    registry = Registry(
        database=process.database, schema=config.schema_name, clock=process.clock, new_id=process.new_id
    )
    routing, admission = add_routing(butler), add_admission(butler)
    parts = orchestration(butler, registry=registry, routing=routing, admission=admission)
    accept_times, service_levels = add_service_levels(butler)
    connectors = add_connectors(butler)
    senders = add_senders(butler, parts.notify)
    ingress = door_in(
        butler,
        parts,
        registry=registry,
        admission=admission,
        accept_times=accept_times,
        gate=senders.gate,
    )
    audit = operator_audit(butler)
    operator_tools = add_operators(
        butler,
        registry=registry,
        dead_letters=parts.dead_letters,
        audit=audit,
        processor=parts.processor,
        buffer=parts.buffer,
        signals=parts.signals,
    )
    requests = _request_reader(butler, parts, audit)
    finish_butler(
        butler,
        handle=_refuse_route,
        jobs={"eligibility_sweep": lambda _arguments: registry.sweep(), **connectors.jobs},
        trace=_tracer(requests),
        tools=[
            *_own_tools(parts, ingress, registry),
            *requests.tools(),
            *operator_tools,
            *routing.tools,
            *service_levels.tools(),
            *registry.tools(),
            *connectors.tools,
            *senders.tools.tools(),
            *calendar_tools,
        ],
    )
    add_api(butler, ingress)
    _add_keeper(butler)
    butler.add(Service(name="requests", drain=_drain(config, parts, ingress)))
    add_sources(butler, ingress, connectors.heartbeats)
    return butler


def _request_reader(butler: Butler, parts: Orchestration, audit: OperatorAudit) -> RequestReader:
    process = butler.process
    return RequestReader(
        database=process.database,
        queries=Queries.load("butlers.switchboard", schema=butler.config.schema_name),
        transport=butler.transport,
        dead_letters=parts.dead_letters,
        audit=audit,
        clock=process.clock,
    )


def _with_modules(process: Process, config: ButlerConfig) -> tuple[Butler, Sequence[AnyTool]]:
    modules = {name: Module(name=name) for name in config.modules.enabled()}
    calendar = calendar_module(process, config)
    if calendar is not None:
        modules["calendar"] = calendar[0]
    return build_butler(process, config, modules=modules), calendar[1] if calendar else ()


def _own_tools(parts: Orchestration, ingress: Ingress, registry: Registry) -> Sequence[AnyTool]:
    return SwitchboardTools(
        ingress=ingress,
        registry=registry,
        notify=parts.notify,
        lineage=parts.lineage,
        registered=parts.dispatcher.circuits.reset,
    ).tools()


async def _refuse_route(_envelope: RouteEnvelope) -> dict[str, Any]:
    raise invalid("target.butler", "switchboard takes messages at its ingest door and no routed work")


def _tracer(requests: RequestReader) -> Any:
    async def trace(request_id: UUID) -> dict[str, Any]:
        found = await requests.trace(request_id)
        if found is None:
            raise NotFound.of("request_id", "no such request")
        return found

    return trace


def _add_keeper(butler: Butler) -> None:
    process, schema = butler.process, butler.config.schema_name
    keeper = InboxKeeper(
        database=process.database,
        schema=schema,
        queries=Queries.load("butlers.switchboard", schema=schema),
        clock=process.clock,
        keep_months=process.settings.inbox_keep_months,
        keep_dedupe_days=process.settings.dedupe_keep_days,
    )
    butler.add(
        Service(name="inbox keeper", before_doors=True, start=keeper.keep, run=keeper.keep, every_s=RETENTION_CHECK_S)
    )


def _drain(config: ButlerConfig, parts: Orchestration, ingress: Ingress) -> Any:
    async def drain() -> None:
        """Finish what is in hand while its targets are still up; what waits stays in the inbox."""
        await ingress.close()
        parts.buffer.stop()
        await parts.processor.drain(config.butler.shutdown.timeout_s)
        await parts.signals.drain(SIGNAL_DRAIN_S)

    return drain
