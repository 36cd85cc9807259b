"""A connector's heart: says regularly that it lives, how it is and what it has done (connector.heartbeat.v1).

It beats beside the polling, so a source that keeps a poll waiting does not make the connector look dead.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Protocol
from uuid import UUID

from butlers.clock import Clock
from butlers.connectors.source import Counters, Standing
from butlers.contracts.heartbeat import (
    ConnectorCapabilities,
    ConnectorCounters,
    ConnectorIdentity,
    ConnectorStatus,
    HeartbeatEnvelope,
    HeartbeatReply,
)
from butlers.errors import ClassifiedError
from butlers.telemetry import get_logger

log = get_logger("butlers.connectors.heartbeat")


class HeartbeatPort(Protocol):
    async def beat(self, envelope: HeartbeatEnvelope) -> HeartbeatReply:
        """Hand in one heartbeat."""


class Living(Protocol):
    """What a heart must know of its connector."""

    connector_type: str
    capabilities: ConnectorCapabilities
    counters: Counters

    async def endpoint(self) -> str:
        """Which end of the source it is at; waits until that is known."""

    def standing(self) -> Standing: ...


class Heart:
    def __init__(
        self,
        *,
        connector: Living,
        port: HeartbeatPort,
        clock: Clock,
        instance_id: UUID,  # one per process
        every_s: float,
        version: str | None = None,
    ) -> None:
        self._connector = connector
        self._port = port
        self._clock = clock
        self._instance_id = instance_id
        self._every_s = every_s
        self._version = version
        self._born = clock.monotonic()

    async def run(self) -> None:
        """Beat until cancelled; a heartbeat that nobody takes is made up for by the next."""
        endpoint = await self._connector.endpoint()
        failures = 0
        while True:
            try:
                await self._port.beat(self.envelope(endpoint))
                if failures:
                    log.info("heartbeats are taken again", attempts=failures)
                failures = 0
            except ClassifiedError as error:
                failures += 1
                log.warning("heartbeat was not taken", error=error, error_class=error.error_class)
            await self._clock.sleep(self._every_s)

    def envelope(self, endpoint: str) -> HeartbeatEnvelope:
        standing = self._connector.standing()
        return HeartbeatEnvelope(
            connector=ConnectorIdentity(
                connector_type=self._connector.connector_type,
                endpoint_identity=endpoint,
                instance_id=self._instance_id,
                version=self._version,
            ),
            status=ConnectorStatus(
                state=standing.state,
                error_message=_with_remedy(standing),
                uptime_s=self._clock.monotonic() - self._born,
            ),
            counters=ConnectorCounters(**asdict(self._connector.counters)),
            checkpoint=standing.checkpoint,
            capabilities=self._connector.capabilities,
            sent_at=self._clock.now(),
        )


def _with_remedy(standing: Standing) -> str | None:
    """What is wrong and what to do, for whoever lists the connectors."""
    if standing.error_message is None or not standing.remedy:
        return standing.error_message
    return f"{standing.error_message}; {standing.remedy}"[:2_000]
