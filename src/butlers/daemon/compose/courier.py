"""The courier in Switchboard's process: the streams of all butlers, remote ones among them, and of what happens."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool
from butlers.courier.access import Principal
from butlers.courier.butler_streams import LocalInboxes, RemoteButlers
from butlers.courier.config import CourierConfig, Journal, Scope, StreamCaps, load_config
from butlers.courier.event_streams import EVENTS, EventStreams, event_caps
from butlers.courier.server import serving
from butlers.courier.service import Listeners
from butlers.daemon.compose.base import Butler, Process
from butlers.daemon.places import Places
from butlers.daemon.services import Service
from butlers.daemon.settings import Settings, port_remedy
from butlers.errors import ConfigurationError
from butlers.operations.operation import Role
from butlers.switchboard.registry import Registry

NAME = "courier"


@dataclass(frozen=True, slots=True, kw_only=True)
class CourierParts:
    registry: Registry
    remote: RemoteButlers
    inboxes: LocalInboxes
    events: EventStreams

    async def is_remote(self, butler: str) -> bool:
        """Whether the butler registered with the transport `courier`."""
        found = await self.registry.target(butler)
        return found is not None and found.transport == NAME

    @property
    def tools(self) -> list[AnyTool]:
        return [*self.events.tools()]


def courier_parts(butler: Butler, registry: Registry) -> CourierParts:
    process = butler.process
    remote = RemoteButlers(
        local=frozenset(process.roster),
        tools=butler.tools,
        heartbeat=registry.heartbeat,
        clock=process.clock,
    )
    return CourierParts(
        registry=registry,
        remote=remote,
        inboxes=LocalInboxes(transport=butler.transport, clock=process.clock),
        events=EventStreams(),
    )


def add_courier(butler: Butler, parts: CourierParts) -> None:
    process = butler.process
    config = courier_config(process.settings, process.places)
    stack = AsyncExitStack()
    others = [name for name in process.roster if name != butler.name]

    async def start() -> None:
        server = await stack.enter_async_context(
            serving(
                config,
                clock=process.clock,
                identify=partial(identify, process, parts.remote),
                listeners=Listeners(inserted=parts.remote.inserted, observe=parts.remote.observe),
                remedy=port_remedy(NAME),
            )
        )
        await parts.events.start(server.courier)
        await parts.remote.start(server.courier)
        await parts.inboxes.start(server.courier, others)

    async def stop() -> None:
        await parts.inboxes.stop()
        await parts.remote.stop()
        await stack.aclose()

    butler.add(
        Service(name=NAME, before_doors=True, start=start, stop=stop),
        Service(name="attached butlers", run=parts.remote.report_attached, every_s=process.settings.heartbeat_s),
    )
    butler.transport.add_courier(parts.is_remote, parts.remote.call)
    process.doors[NAME] = f"http://{config.gateway.host}:{config.gateway.port}"


def courier_config(settings: Settings, places: Places) -> CourierConfig:
    """What the operator's file says, at this system's address, with a journal in its data directory."""
    given = load_config(settings.courier_config) if settings.courier_config is not None else CourierConfig()
    for key, is_set, remedy in (
        ("auth.tokens", bool(given.auth.tokens), "issue tokens with: butlers token issue NAME --role butler"),
        ("gateway.host", "host" in given.gateway.model_fields_set, "use --set host=ADDRESS"),
        ("gateway.port", "port" in given.gateway.model_fields_set, "use --port courier=NUMBER"),
    ):
        if is_set:
            source = str(settings.courier_config)
            raise ConfigurationError("is the system's to say, not this file's", source=source, key=key, remedy=remedy)
    address = {"host": settings.host, "port": settings.courier_port}
    own = given.streams.per_stream_caps.get(EVENTS, StreamCaps())
    events = event_caps().model_copy(update=own.model_dump(exclude_none=True))
    caps = {EVENTS: events} | {name: one for name, one in given.streams.per_stream_caps.items() if name != EVENTS}
    changes: dict[str, Any] = {
        "gateway": given.gateway.model_copy(update=address),
        "streams": given.streams.model_copy(update={"per_stream_caps": caps}),
    }
    if "journal" not in given.model_fields_set and given.store is None:
        changes["journal"] = Journal(kind="jsonl", path=str(places.courier / "journal.jsonl"))
    return given.model_copy(update=changes)


def identify(process: Process, remote: RemoteButlers, secret: str) -> Principal | None:
    """The system's own tokens: a butler has its inbox and its outbox, an operator has everything."""
    caller = process.tokens.caller_of(secret)
    if caller is None:
        return None
    if caller.role is Role.BUTLER:
        remote.notice(caller.name)  # its outbox is read before it has said anything
    return Principal(caller.name, _scopes(caller))


def _scopes(caller: Caller) -> tuple[Scope, ...] | None:
    if caller.role is Role.OPERATOR:
        return None
    if caller.role is not Role.BUTLER:
        return ()
    own = f"agents/{caller.name}"
    return (
        Scope("streams", f"{own}/inbox", "subscribe"),
        Scope("streams", f"{own}/outbox", "enqueue"),
    )
