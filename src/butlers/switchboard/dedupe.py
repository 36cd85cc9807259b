"""When two events are one request (seed 003, "Idempotency and Deduplication Keys").

    Dedupe.EVENT      (telegram, email) the provider's own event id + the receiving bot or mailbox
    Dedupe.CONTENT    (api, mcp) the caller's idempotency key, else the event's id + content + source within a sliding
                      window

Content alone never decides: saying "ok" twice is two messages (decision 0081). Every key also holds who handed the
event in, so nobody can use up, or find out, a key of somebody else's. Operators count as one: the person at this
machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from butlers.butler.identity import Caller
from butlers.channels.channel import Dedupe
from butlers.channels.registry import channel_of
from butlers.contracts.ingest import IngestEnvelope
from butlers.operations.operation import Role
from butlers.reliability.idempotency import content_key, event_key

Strategy = Literal["event", "idempotency_key", "content"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupeIdentity:
    key: str
    strategy: Strategy


def dedupe_identity(envelope: IngestEnvelope, *, submitted_by: Caller) -> DedupeIdentity:
    source, submitter = envelope.source, submitter_of(submitted_by)
    inbound = channel_of(source.channel).inbound
    if inbound is not None and inbound.dedupe is Dedupe.EVENT:
        return _named("event", envelope, envelope.event.external_event_id, submitter)
    if envelope.control.idempotency_key is not None:
        return _named("idempotency_key", envelope, envelope.control.idempotency_key, submitter)
    key = content_key(
        channel=f"{source.channel}:{submitter}",
        endpoint_identity=source.endpoint_identity,
        sender_identity=envelope.sender.identity,
        payload=f"{envelope.control.pinned_target or ''}\n{envelope.payload.normalized_text}",
        window=0,  # the window slides: the age of the stored row is compared instead
        external_event_id=envelope.event.external_event_id,
    )
    return DedupeIdentity(key=key, strategy="content")


def submitter_of(caller: Caller) -> str:
    return "caller" if caller.role is Role.OPERATOR else f"{caller.role.value}:{caller.name}"


def _named(strategy: Strategy, envelope: IngestEnvelope, name: str, submitter: str) -> DedupeIdentity:
    key = event_key(
        channel=f"{envelope.source.channel}:{strategy}:{submitter}",
        endpoint_identity=envelope.source.endpoint_identity,
        external_event_id=name,
    )
    return DedupeIdentity(key=key, strategy=strategy)
