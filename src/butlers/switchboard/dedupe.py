"""When two events are one request (seed 003, "Idempotency and Deduplication Keys").

    telegram, email    the provider's own event id + the receiving bot or mailbox
    api, mcp           the caller's idempotency key, else content + source within a sliding window

Content never decides for Telegram or mail: saying "ok" twice is two messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from butlers.contracts.ingest import IngestEnvelope
from butlers.reliability.idempotency import content_key, event_key

Strategy = Literal["event", "idempotency_key", "content"]
_NAMED_BY_PROVIDER = frozenset({"telegram", "email"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupeIdentity:
    key: str
    strategy: Strategy


def dedupe_identity(envelope: IngestEnvelope, *, connector: str | None) -> DedupeIdentity:
    """`connector`: the name of the one that hands it in; None: somebody else does."""
    source = envelope.source
    if source.channel in _NAMED_BY_PROVIDER:
        return _named("event", envelope, envelope.event.external_event_id, connector=connector)
    if envelope.control.idempotency_key is not None:
        return _named("idempotency_key", envelope, envelope.control.idempotency_key)
    key = content_key(
        channel=source.channel,
        endpoint_identity=source.endpoint_identity,
        sender_identity=envelope.sender.identity,
        payload=f"{envelope.control.pinned_target or ''}\n{envelope.payload.normalized_text}",
        window=0,  # the window slides: the age of the stored row is compared instead
    )
    return DedupeIdentity(key=key, strategy="content")


def _named(strategy: Strategy, envelope: IngestEnvelope, name: str, *, connector: str | None = None) -> DedupeIdentity:
    # Whoever hands an event in by its number must not be able to make the connector's own one look like a repeat; nor
    # may another connector.
    seen_by = f"connector:{connector}" if connector is not None else "caller"
    key = event_key(
        channel=f"{envelope.source.channel}:{strategy}:{seen_by}",
        endpoint_identity=envelope.source.endpoint_identity,
        external_event_id=name,
    )
    return DedupeIdentity(key=key, strategy=strategy)
