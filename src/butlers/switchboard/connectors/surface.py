"""Carries out the operations about connectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.surface import AnyTool, EnvelopeTool, Tool
from butlers.contracts.heartbeat import HeartbeatEnvelope
from butlers.operations import connectors as operations
from butlers.operations.connectors import ConnectorArguments
from butlers.operations.operation import NoArguments
from butlers.switchboard.connectors.heartbeats import Heartbeats
from butlers.switchboard.connectors.registry import Connectors


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDesk:
    heartbeats: Heartbeats
    connectors: Connectors

    def tools(self) -> list[AnyTool]:
        return [
            EnvelopeTool.of(operations.HEARTBEAT, self._heartbeat),
            Tool.of(operations.LIST, self._list),
            Tool.of(operations.DEREGISTER, self._deregister),
        ]

    async def _heartbeat(self, caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
        return (await self.heartbeats.accept(HeartbeatEnvelope.parse(raw), caller)).to_wire()

    async def _list(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire(await self.connectors.list())

    async def _deregister(self, _caller: Caller, given: ConnectorArguments) -> dict[str, Any]:
        return wire(await self.connectors.deregister(given.connector_type, given.endpoint_identity))
