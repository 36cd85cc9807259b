"""What connectors share: where they hand in what they saw, what they count, and how they say they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from butlers.contracts.heartbeat import ConnectorCheckpoint, ConnectorState
from butlers.contracts.ingest import IngestEnvelope, IngestReply


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
    """How a connector is."""

    state: ConnectorState
    error_message: str | None = None
    remedy: str = ""  # what the operator can do about it
    checkpoint: ConnectorCheckpoint | None = None


FAILURES_UNTIL_ERROR = 5  # in a row


def state_after(failures: int, *, final: bool = False) -> ConnectorState:
    """A source that failed a few times may be back at once; one that goes on failing, or refuses us, is an error."""
    if failures == 0:
        return "healthy"
    return "degraded" if failures < FAILURES_UNTIL_ERROR and not final else "error"
