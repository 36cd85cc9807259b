"""Switchboard, wired: the door in, the operators' side, connectors (`connectors.py`), and what is between the doors
(`orchestration.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from starlette.routing import Mount

from butlers.butler.lifecycle_events import request_events
from butlers.butler.modules import Module, PackageChannelModule
from butlers.butler.toolbox import AnyTool
from butlers.channels.registry import channel_of, pairing_names, written_names
from butlers.contacts.people import People
from butlers.contracts.envelope import invalid
from butlers.contracts.route import RouteEnvelope
from butlers.daemon.compose.base import Butler, Process, base_migrations, build_butler, finish_butler
from butlers.daemon.compose.connectors import add_connectors, add_sources
from butlers.daemon.compose.courier import add_courier, courier_parts
from butlers.daemon.compose.lifecycle_events import add_lifecycle_events
from butlers.daemon.compose.modules import calendar_module, memory_migrations
from butlers.daemon.compose.orchestration import Orchestration, add_routing, orchestration
from butlers.daemon.compose.outbound import add_outbound
from butlers.daemon.compose.preferences import add_preferences
from butlers.daemon.compose.webhooks import add_webhooks
from butlers.daemon.services import Service
from butlers.pipeline.schema import MIGRATIONS as PIPELINE_MIGRATIONS
from butlers.roster import ButlerConfig
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.api import Api, OperationCalls, ingest_tools
from butlers.switchboard.ingress.buffer import Admission, AdmissionPolicy, DurableBuffer
from butlers.switchboard.ingress.gate import SenderGate, SenderMessages
from butlers.switchboard.ingress.ingress import Ingress
from butlers.switchboard.notify import NotifyDispatcher
from butlers.switchboard.operators.audit import AuditLog, RecordKeeper
from butlers.switchboard.operators.dead_letters import DeadLetters
from butlers.switchboard.operators.overrides import OnEnd, Operators
from butlers.switchboard.registry import Registry
from butlers.switchboard.requests.inbox import InboxKeeper, MessageRef
from butlers.switchboard.requests.lifecycle import RequestProcessor
from butlers.switchboard.requests.reader import AcceptTimes, RequestReader, ServiceLevels
from butlers.switchboard.requests.signals import Signals, ended_of
from butlers.switchboard.senders import Policy, SenderPolicies, SenderRecords, shown
from butlers.webhooks import MIGRATIONS as WEBHOOK_MIGRATIONS

FORGET_EVERY_S = 3600.0
DRAIN_S = 5.0
RETENTION_CHECK_S = 3600.0
SIGNAL_DRAIN_S = 5.0


def add_admission(butler: Butler) -> Admission:
    admission = Admission(
        policy=AdmissionPolicy.of(butler.config.admission),
        database=butler.process.database,
        queries=Queries.load("butlers.switchboard", schema=butler.config.schema_name),
        clock=butler.process.clock,
        telemetry=butler.telemetry,
    )
    butler.add(Service(name="admission", before_doors=True, start=admission.count, run=admission.run))
    return admission


def add_service_levels(butler: Butler) -> tuple[AcceptTimes, ServiceLevels]:
    process, schema = butler.process, butler.config.schema_name
    accept_times = AcceptTimes(database=process.database, schema=schema, clock=process.clock)
    levels = ServiceLevels(
        database=process.database,
        queries=Queries.load("butlers.switchboard", schema=schema),
        accept_times=accept_times,
        clock=process.clock,
    )
    butler.add(Service(name="accept times", run=accept_times.run, drain=accept_times.flush))
    return accept_times, levels


def door_in(
    butler: Butler,
    parts: Orchestration,
    *,
    registry: Registry,
    admission: Admission,
    accept_times: AcceptTimes,
    gate: SenderGate,
) -> Ingress:
    process = butler.process
    return Ingress(
        database=process.database,
        queries=Queries.load("butlers.switchboard", schema=butler.config.schema_name),
        hot_path=parts.buffer,
        admission=admission,
        gate=gate,
        roster=frozenset(process.roster),
        registry=registry,
        clock=process.clock,
        new_id=process.new_id,
        telemetry=butler.telemetry,
        content_window=timedelta(seconds=process.settings.content_dedupe_window_s),
        shows_end=parts.signals.is_awaited,
        accepted=accept_times.note,
    )


def add_api(butler: Butler, ingress: Ingress) -> None:
    settings = butler.process.settings
    api = Api(
        ingress=ingress,
        tokens=butler.process.tokens,
        calls=OperationCalls(tools=butler.tools, transport=butler.transport, butlers=frozenset(butler.process.roster)),
        max_body_bytes=settings.max_body_bytes,
        token_required=settings.token_required,
    )
    butler.routes.append(Mount("/api", app=api.app()))


def add_senders(butler: Butler, notify: NotifyDispatcher) -> SenderGate:
    process = butler.process
    settings = process.settings
    policies = SenderPolicies(
        channels={channel: _policy(butler, channel) for channel in written_names()},
        mail_authenticated=settings.mail_authentication != "off",
        mail_server=settings.mail_authserv_id,
    )
    records = SenderRecords(
        database=process.database,
        queries=Queries.load("butlers.switchboard.senders", schema=butler.config.schema_name),
        contacts=butler.contacts,
        people=People(database=process.database),
        clock=process.clock,
        new_id=process.new_id,
        owner_name=settings.owner_name,
        policies=policies,
        report=butler.report,
    )
    messages = SenderMessages(notifier=notify, on_offered=records.record_offer)
    butler.add(
        Service(
            name="refused senders",
            run=records.forget_old,
            every_s=FORGET_EVERY_S,
            drain=partial(messages.drain, DRAIN_S),
        )
    )
    _announce_owner_code(butler, records, policies)
    return SenderGate(policies=policies, records=records, messages=messages, telemetry=butler.telemetry)


def _policy(butler: Butler, channel: str) -> Policy:
    """The process's settings decide for the built-in channels, its module's table for one of another package."""
    module = getattr(butler.config.modules, channel, None)
    own = module.who_may_write if isinstance(module, PackageChannelModule) else None
    return Policy(own or butler.process.settings.who_may_write(channel))


def _announce_owner_code(butler: Butler, records: SenderRecords, policies: SenderPolicies) -> None:
    for name in pairing_names():
        module = getattr(butler.config.modules, name, None)
        is_on = module is not None and getattr(getattr(module, "bot", None), "enabled", True)
        if is_on and policies.pairs_owner(name):
            butler.notices.append(partial(_owner_code_notice, records, name))


async def _owner_code_notice(records: SenderRecords, channel: str) -> str | None:
    found = await records.owner_code(channel)
    if found is None:
        return None
    code, expires_at = found
    return (
        f"The owner's {channel_of(channel).title} chat is not known yet, so the bot answers nobody. "
        f"Send it this code: {shown(code)}\n"
        "The chat that sends the code becomes the owner's. "
        f"It is good once, until {expires_at:%Y-%m-%d %H:%M} UTC; for a new one: butlers senders owner-code"
    )


def add_operators(
    butler: Butler,
    *,
    registry: Registry,
    dead_letters: DeadLetters,
    audit: AuditLog,
    processor: RequestProcessor,
    buffer: DurableBuffer,
    signals: Signals,
) -> list[AnyTool]:
    """The tools; the loops are added to the butler."""
    process, schema = butler.process, butler.config.schema_name
    queries = Queries.load("butlers.switchboard.operators", schema=schema)
    operators = Operators(
        database=process.database,
        queries=queries,
        registry=registry,
        dead_letters=dead_letters,
        audit=audit,
        clock=process.clock,
        offer=buffer.offer,
        stop_now=processor.abort,
        on_end=_aftermath(butler, queries, buffer, signals),
    )
    keeper = RecordKeeper(database=process.database, schema=schema, clock=process.clock)
    butler.add(
        Service(name="audit log", run=audit.run, stop=audit.close),
        Service(name="operators' records", run=keeper.keep, every_s=RETENTION_CHECK_S),
    )
    return [*operators.tools(), *dead_letters.tools(), *audit.tools()]


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
        WEBHOOK_MIGRATIONS,
        *PIPELINE_MIGRATIONS,  # its schedules start jobs
    ]


def build(process: Process, config: ButlerConfig) -> Butler:
    butler, calendar_tools = _with_modules(process, config)
    registry = Registry(
        database=process.database, schema=config.schema_name, clock=process.clock, new_id=process.new_id
    )
    routing, admission = add_routing(butler), add_admission(butler)
    preferences = add_preferences(butler)
    parts = orchestration(
        butler, registry=registry, routing=routing, admission=admission, commands=preferences.commands
    )
    registry.registered = parts.dispatcher.circuits.reset
    courier = courier_parts(butler, registry) if process.settings.courier == "on" else None
    accept_times, service_levels = add_service_levels(butler)
    connectors = add_connectors(butler)
    gate = add_senders(butler, parts.notify)
    message_tools = add_outbound(butler, parts.notify, preferences)
    ingress = door_in(butler, parts, registry=registry, admission=admission, accept_times=accept_times, gate=gate)
    audit = AuditLog(database=process.database, schema=config.schema_name, new_id=process.new_id)
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
        trace=requests.trace,
        tools=[
            *ingest_tools(ingress),
            *parts.notify.tools(),
            *parts.lineage.tools(),
            *requests.tools(),
            *operator_tools,
            *routing.tools,
            *service_levels.tools(),
            *registry.tools(),
            *connectors.tools,
            *gate.records.tools(),
            *message_tools,
            *calendar_tools,
            *(courier.tools if courier else ()),
            *add_webhooks(butler),
        ],
    )
    add_api(butler, ingress)
    _add_keeper(butler)
    butler.add(Service(name="requests", drain=_drain(config, parts, ingress)))
    if courier is not None:
        add_courier(butler, courier)
    _add_request_events(butler)
    add_sources(butler, ingress, connectors)
    return butler


def _request_reader(butler: Butler, parts: Orchestration, audit: AuditLog) -> RequestReader:
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


async def _refuse_route(_envelope: RouteEnvelope) -> dict[str, Any]:
    raise invalid("target.butler", "switchboard takes messages at its ingest door and no routed work")


def _add_request_events(butler: Butler) -> None:
    queries = Queries.load("butlers.switchboard", schema=butler.config.schema_name)
    add_lifecycle_events(butler, changes=queries.changed_requests, events_of=request_events)


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
