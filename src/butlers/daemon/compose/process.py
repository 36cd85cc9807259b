"""What all butlers of one process share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from butlers.butler.health import Health
from butlers.butler.identity import Caller, TokenFile
from butlers.butler.toolbox import ToolBox
from butlers.butler.transport import InProcessTransport, McpTransport, Transport
from butlers.clock import Clock
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings
from butlers.operations.operation import Role
from butlers.roster import ButlerConfig
from butlers.storage.claims import LeasePolicy, SuspectGate
from butlers.storage.database import Database
from butlers.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
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
    suspects: SuspectGate = field(default_factory=SuspectGate)  # one for all that may die here
    health: Health = field(default_factory=Health)  # what all butlers of the process depend on: database, disk

    @property
    def lease(self) -> LeasePolicy:
        return LeasePolicy(ttl=self.settings.lease_ttl_s, renew_every=self.settings.lease_renew_s)

    def telemetry(self, butler: str) -> Telemetry:
        instance = f"{socket.gethostname()}-{self.instance[:8]}"
        return Telemetry.create(butler, instance, clock=self.clock, otlp_endpoint=self.settings.otlp_endpoint)

    def transport(self, butler: str) -> Transport:
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
