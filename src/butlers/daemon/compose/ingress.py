"""Switchboard's door in, wired: admission, ingress, HTTP, and the connectors that its modules bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.routing import Mount

from butlers import __version__
from butlers.butler.health import Check, Finding
from butlers.butler.identity import Caller, Grant
from butlers.butler.modules import PackageChannelModule
from butlers.channels.connector import HeartbeatReporter, Standing, make_connector
from butlers.channels.plugins import ChannelSettings
from butlers.channels.registry import channel_of, pairing_names, written_names
from butlers.contracts.envelope import holds_nul, invalid
from butlers.contracts.heartbeat import HeartbeatEnvelope, HeartbeatReply
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.daemon.compose.base import Butler
from butlers.daemon.compose.channels import channel_settings
from butlers.daemon.compose.orchestration import Orchestration
from butlers.daemon.services import Service
from butlers.operations.operation import Role
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.heartbeats import Heartbeats
from butlers.switchboard.ingress.admission import Admission, AdmissionPolicy
from butlers.switchboard.ingress.api import Api, ApiPolicy, OperationCalls
from butlers.switchboard.ingress.ingress import Ingress
from butlers.switchboard.notify import NotifyDispatcher
from butlers.switchboard.registry import Registry
from butlers.switchboard.requests.service_levels import AcceptTimes, ServiceLevels
from butlers.switchboard.senders.gate import SenderGate, SenderMessages, SenderPolicies
from butlers.switchboard.senders.records import Policy, SenderRecords, shown
from butlers.switchboard.senders.tools import SenderTools

FORGET_EVERY_S = 3600.0
DRAIN_S = 5.0


def add_admission(butler: Butler) -> Admission:
    admission = Admission(
        policy=AdmissionPolicy.of(butler.config.admission),
        database=butler.process.database,
        schema=butler.config.schema_name,
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
        queries=Queries.load("butlers.switchboard.requests.service_levels", schema=schema),
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
        schema=butler.config.schema_name,
        hot_path=parts.buffer,
        admission=admission,
        gate=gate,
        roster=frozenset(process.roster),
        registry=registry,
        clock=process.clock,
        new_id=process.new_id,
        telemetry=butler.telemetry,
        content_window_s=process.settings.content_dedupe_window_s,
        shows_end=parts.signals.wanted,
        accepted=accept_times.note,
    )


def add_api(butler: Butler, ingress: Ingress) -> None:
    settings = butler.process.settings
    api = Api(
        ingress=ingress,
        tokens=butler.process.tokens,
        telemetry=butler.telemetry,
        calls=OperationCalls(tools=butler.tools, transport=butler.transport, butlers=frozenset(butler.process.roster)),
        policy=ApiPolicy(
            max_body_bytes=settings.max_body_bytes,
            token_required=settings.token_required,
        ),
    )
    butler.routes.append(Mount("/api", app=api.app()))


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


def add_sources(butler: Butler, ingress: Ingress, heartbeats: Heartbeats) -> None:
    """The connectors of this process. They come last, so that they drain first and nothing new comes in."""
    for name in butler.config.modules.enabled():
        channel = channel_of(name)
        for settings in channel_settings(butler.process, butler.config, channel) if channel.has_connector else ():
            if settings.identity_scope == "bot":
                _add_connector(butler, ingress, heartbeats, settings)


def _add_connector(butler: Butler, ingress: Ingress, heartbeats: Heartbeats, settings: ChannelSettings) -> None:
    process, name = butler.process, settings.channel
    principal = Caller(name=f"connector.{name}", role=Role.CONNECTOR, grants=(Grant(channel=name),))
    door = _DirectDoor(ingress, heartbeats, principal)
    connector = make_connector(settings, door)
    reporter = HeartbeatReporter(
        connector=connector,
        port=door,
        clock=process.clock,
        instance_id=process.new_id(),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    gate: SenderGate
    tools: SenderTools


def add_senders(butler: Butler, notify: NotifyDispatcher) -> Senders:
    process = butler.process
    settings = process.settings
    records = SenderRecords(
        database=process.database,
        queries=Queries.load("butlers.switchboard.senders", schema=butler.config.schema_name),
        contacts=butler.contacts,
        clock=process.clock,
        new_id=process.new_id,
        owner_name=settings.owner_name,
    )
    policies = SenderPolicies(
        channels={channel: _policy(butler, channel) for channel in written_names()},
        mail_authenticated=settings.mail_authentication != "off",
        mail_server=settings.mail_authserv_id,
    )
    messages = SenderMessages(notifier=notify, told=records.told)
    butler.add(
        Service(
            name="refused senders",
            run=records.forget_old,
            every_s=FORGET_EVERY_S,
            drain=partial(messages.drain, DRAIN_S),
        )
    )
    _announce_owner_code(butler, records, policies)
    gate = SenderGate(policies=policies, records=records, messages=messages, telemetry=butler.telemetry)
    return Senders(gate=gate, tools=SenderTools(records=records, policies=policies, report=butler.report))


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
