"""Switchboard's own MCP tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import EnvelopeTool, Tool
from butlers.contracts.envelope import RequestId, Value, invalid
from butlers.contracts.ingest import IngestEnvelope
from butlers.contracts.notify import NotifyContext, NotifyEnvelope, NotifyResponse
from butlers.errors import NotFound
from butlers.operations import requests, routing
from butlers.operations.operation import ADDS_ONCE, CHANGES, READS, SENDS, NoArguments, Result, Role, Row
from butlers.switchboard.ingress.api import accept_batch
from butlers.switchboard.ingress.ingress import Ingress
from butlers.switchboard.notify import NotifyDispatcher
from butlers.switchboard.registry import ButlerCard, Registry
from butlers.switchboard.requests.reader import LineageReader

MEMBERS = frozenset({Role.BUTLER, Role.OPERATOR})


class LineageArguments(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")


class ButlerRegistered(Result):
    status: str = Field(description="ok")
    name: str = Field(description="the butler's name")


class HeartbeatHeard(Result):
    status: str = Field(description="ok")
    registered: bool = Field(description="false: the butler is not known and must register")


class Lineage(Result):
    request_context: Row = Field(description="where the request came from, as notify.v1 wants it")
    source_event: Row | None = Field(description="what the channel needs for an answer, such as the message's id")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchboardTools:
    ingress: Ingress
    registry: Registry
    notify: NotifyDispatcher
    lineage: LineageReader
    registered: Callable[[str], None] = lambda _butler: None  # told of each butler that is there now

    def tools(self) -> list[Tool | EnvelopeTool]:
        return [*self._doors(), *self._registry_tools()]

    def _doors(self) -> list[EnvelopeTool]:
        return [
            EnvelopeTool.of(requests.INGEST, self._ingest),
            EnvelopeTool.of(requests.INGEST_BATCH, self._ingest_batch),
            EnvelopeTool(
                name="notify.dispatch",
                description="Hand an outbound message (notify.v1) to Messenger in the calling butler's name.",
                arguments=NotifyEnvelope,
                returns=NotifyResponse,
                hints=SENDS,
                handler=self._notify,
                roles=frozenset({Role.BUTLER}),
            ),
        ]

    def _registry_tools(self) -> list[Tool]:
        return [
            Tool(
                name="register_butler",
                description="A butler says what it is and becomes eligible for routes.",
                arguments=ButlerCard,
                returns=ButlerRegistered,
                hints=CHANGES,
                handler=self._register,
                roles=MEMBERS,
            ),
            Tool(
                name="butler.heartbeat",
                description="A sign of life of the calling butler.",
                returns=HeartbeatHeard,
                hints=ADDS_ONCE,
                handler=self._heartbeat,
                roles=frozenset({Role.BUTLER}),
            ),
            Tool(
                name="request.lineage",
                description="Where a request came from and what it was, for whoever answers it.",
                arguments=LineageArguments,
                returns=Lineage,
                hints=READS,
                handler=self._lineage,
                roles=MEMBERS,
                owner="messenger",
            ),
            Tool.of(routing.LIST, self._list),
        ]

    async def _ingest(self, caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        if caller is None:
            raise invalid("authorization", "a bearer token is required to hand in messages")
        reply = await self.ingress.accept(IngestEnvelope.parse(raw), submitted_by=caller)
        return reply.to_wire()

    async def _ingest_batch(self, caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        if caller is None:
            raise invalid("authorization", "a bearer token is required to hand in messages")
        return await accept_batch(self.ingress, raw, submitted_by=caller)

    async def _notify(self, caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        return (await self.notify.dispatch(caller, raw)).to_wire()

    async def _register(self, caller: Caller, card: ButlerCard) -> dict[str, Any]:
        if caller.role is Role.BUTLER and caller.name != card.name:
            raise invalid("name", f"is not the caller, who is {caller.name!r}")
        await self.registry.register(card)
        self.registered(card.name)
        return {"status": "ok", "name": card.name}

    async def _heartbeat(self, caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return {"status": "ok", "registered": await self.registry.heartbeat(caller.name)}

    async def _lineage(self, _caller: Caller, arguments: LineageArguments) -> dict[str, Any]:
        known = await self.lineage.of(arguments.request_id)
        if known is None:
            raise NotFound.of("request_id", "no such request")
        context = NotifyContext.answering(known.context)
        return wire({"request_context": context.to_wire(), "source_event": known.source_event})

    async def _list(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire({"butlers": await self.registry.rows()})
