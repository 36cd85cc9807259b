"""What a connector is: it brings in what a source saw, counts it, and reports how it is (connector.heartbeat.v1).

    source  ->  Connector.run  ->  IngestPort.ingest  ->  durable  ->  the source's checkpoint moves on

The reporter runs beside the polling, so a source that keeps a poll waiting does not make the connector look dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol
from uuid import UUID

from butlers.channels.channel import load
from butlers.channels.plugins import ChannelSettings
from butlers.channels.registry import channel_of
from butlers.clock import Clock
from butlers.contracts.heartbeat import (
    ConnectorCapabilities,
    ConnectorCheckpoint,
    ConnectorCounters,
    ConnectorIdentity,
    ConnectorState,
    ConnectorStatus,
    HeartbeatEnvelope,
    HeartbeatReply,
)
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.errors import ClassifiedError, ConfigurationError
from butlers.telemetry import get_logger

log = get_logger("butlers.connectors.heartbeat")

FAILURES_UNTIL_ERROR = 5  # in a row


class IngestPort(Protocol):
    async def ingest(self, envelope: IngestEnvelope) -> IngestReply:
        """Hand in one event; returns when it is durable."""


@dataclass(slots=True)
class Counters:
    """Monotonic since this process started, as heartbeats report them."""

    messages_ingested: int = 0
    messages_failed: int = 0
    source_api_calls: int = 0
    checkpoint_saves: int = 0
    dedupe_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    state: ConnectorState
    error_message: str | None = None
    remedy: str = ""  # what the operator can do about it
    checkpoint: ConnectorCheckpoint | None = None


def state_after(failures: int, *, final: bool = False) -> ConnectorState:
    """A source that failed a few times may be back at once; one that goes on failing, or refuses us, is an error."""
    if failures == 0:
        return "healthy"
    return "degraded" if failures < FAILURES_UNTIL_ERROR and not final else "error"


ConnectorFactory = Callable[[ChannelSettings, IngestPort], "Connector"]


class HeartbeatPort(Protocol):
    async def beat(self, envelope: HeartbeatEnvelope) -> HeartbeatReply:
        """Hand in one heartbeat."""


class Connector(Protocol):
    """One end of a source, such as a bot."""

    connector_type: str
    capabilities: ConnectorCapabilities
    counters: Counters

    async def endpoint(self) -> str:
        """Which end of the source it is at; waits until that is known."""

    def standing(self) -> Standing: ...

    async def run(self) -> None:
        """Bring messages in until cancelled; failures of the source are waited out."""

    async def close(self) -> None:
        """Give connections back."""


class HeartbeatReporter:
    def __init__(
        self,
        *,
        connector: Connector,
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
        problem = standing.error_message  # and what to do, for the operator who lists the connectors
        if problem is not None and standing.remedy:
            problem = f"{problem}; {standing.remedy}"[:2_000]
        return HeartbeatEnvelope(
            connector=ConnectorIdentity(
                connector_type=self._connector.connector_type,
                endpoint_identity=endpoint,
                instance_id=self._instance_id,
                version=self._version,
            ),
            status=ConnectorStatus(
                state=standing.state,
                error_message=problem,
                uptime_s=self._clock.monotonic() - self._born,
            ),
            counters=ConnectorCounters(**asdict(self._connector.counters)),
            checkpoint=standing.checkpoint,
            capabilities=self._connector.capabilities,
            sent_at=self._clock.now(),
        )


def make_connector(settings: ChannelSettings, ingest: IngestPort) -> Connector:
    """The connector of a channel, ready to run. Raises ConfigurationError when its package cannot make one."""
    inbound = channel_of(settings.channel).inbound
    try:
        factory: ConnectorFactory = load((inbound.connector if inbound is not None else None) or "")
        return factory(settings, ingest)
    except ConfigurationError:
        raise
    except Exception as error:
        # The type only: the message of a foreign exception may quote a secret it was given.
        problem = f"the connector of {settings.channel} failed to start ({type(error).__name__})"
        raise settings.mistake("options", problem, "mend or update the package that brings the channel") from error
