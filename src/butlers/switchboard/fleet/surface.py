"""Connectors at the doors: `connector.heartbeat`, `connectors.list`, `connectors.deregister`, and `/api/connectors`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller, Role
from butlers.butler.surface import (
    ADDS_ONCE,
    CHANGES,
    READS,
    AnyTool,
    EnvelopeTool,
    NoArguments,
    Result,
    Row,
    Tool,
    ToolBox,
)
from butlers.contracts.envelope import Identity, Value
from butlers.contracts.heartbeat import HeartbeatEnvelope, HeartbeatReply
from butlers.switchboard.description import Behind
from butlers.switchboard.fleet.connectors import Connectors
from butlers.switchboard.fleet.heartbeats import Heartbeats
from butlers.switchboard.fleet.routes import FleetDoor
from butlers.switchboard.proxy import BodyOf, CallerOf, add_routes


class ConnectorArguments(Value):
    connector_type: Identity = Field(description="the kind of connector, such as telegram")
    endpoint_identity: Identity = Field(description="the bot, mailbox or account that the connector watches")


class ConnectorList(Result):
    connectors: list[Row] = Field(description="the connectors: state, liveness, last heartbeat and today's counts")


class ConnectorGone(Result):
    connector_type: str = Field(description="the kind of connector")
    endpoint_identity: str = Field(description="the bot, mailbox or account")
    deregistered: bool = Field(description="true")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDesk:
    heartbeats: Heartbeats
    connectors: Connectors

    def tools(self) -> list[AnyTool]:
        return [
            EnvelopeTool(
                name="connector.heartbeat",
                description="A connector says that it lives and what it has done (connector.heartbeat.v1).",
                arguments=HeartbeatEnvelope,
                returns=HeartbeatReply,
                hints=ADDS_ONCE,
                handler=self._heartbeat,
                roles=frozenset({Role.CONNECTOR}),
            ),
            Tool(
                name="connectors.list",
                description="All connectors that ever reported: whether they are there, and what they did today.",
                returns=ConnectorList,
                hints=READS,
                handler=self._list,
            ),
            Tool(
                name="connectors.deregister",
                description="Forget a connector; its next heartbeat registers it anew.",
                arguments=ConnectorArguments,
                returns=ConnectorGone,
                hints=CHANGES,
                handler=self._deregister,
                roles=frozenset({Role.OPERATOR}),
            ),
        ]

    def add_routes(self, app: FastAPI, caller_of: CallerOf, body_of: BodyOf) -> None:
        door = FleetDoor(tools=ToolBox(self.tools()), caller_of=caller_of, body_of=body_of)

        async def heartbeat(request: Request) -> Response:
            return await door.told(request, "connector.heartbeat")

        async def listed(request: Request) -> Response:
            return await door.read(request, "connectors.list")

        async def deregister(request: Request) -> Response:
            return await door.act(request, "connectors.deregister", "connector_type", "endpoint_identity")

        add_routes(
            app,
            (
                "POST",
                "/connectors/heartbeat",
                heartbeat,
                "A connector's sign of life (connector.heartbeat.v1)",
                Behind(tool="connector.heartbeat", whole=True, status=202),
            ),
            (
                "POST",
                "/connectors/deregister",
                deregister,
                "Forget a connector",
                Behind(tool="connectors.deregister", body=("connector_type", "endpoint_identity"), decides=True),
            ),
            (
                "GET",
                "/connectors",
                listed,
                "All connectors, and whether they are there",
                Behind(tool="connectors.list"),
            ),
        )

    async def _heartbeat(self, caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        return (await self.heartbeats.accept(HeartbeatEnvelope.parse(raw), caller)).to_wire()

    async def _list(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire(await self.connectors.list())

    async def _deregister(self, _caller: Caller, given: ConnectorArguments) -> dict[str, Any]:
        return wire(await self.connectors.deregister(given.connector_type, given.endpoint_identity))
