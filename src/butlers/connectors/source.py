"""What connectors share: where they hand in what they saw, and what they count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
