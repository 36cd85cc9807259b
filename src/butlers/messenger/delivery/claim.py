"""A delivery that a worker holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.channels.adapter import Outgoing
from butlers.reliability.error_budget import Stance
from butlers.storage.claims import Claim
from butlers.storage.database import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstClaim:
    """The claim that a delivery is stored with when a worker has a free slot for it."""

    token: UUID
    attempt_id: UUID
    worker: str
    expires_at: datetime
    generation: int  # of the channel's circuit
    stance: Stance

    def to_row(self) -> dict[str, Any]:
        return {
            "status": "in_progress",
            "attempts": 1,
            "claim_token": self.token,
            "claimed_by": self.worker,
            "lease_expires_at": self.expires_at,
            "attempt_id": self.attempt_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery that this worker, and nobody else, may attempt now."""

    id: UUID
    claim_token: UUID
    attempt_id: UUID
    attempt: int
    channel: str  # without its scope
    identity_scope: str
    origin_butler: str
    request_id: UUID | None
    created_at: datetime
    not_after: datetime | None
    trace_context: Mapping[str, str]  # of the request that is answered
    outgoing: Outgoing
    generation: int  # of the channel's circuit, to be handed back with the result
    stance: Stance
    in_doubt: bool  # an earlier attempt may have arrived
    last_error_class: str | None  # of the attempt before this one
    settled: bool = False  # somebody has said since what became of the attempt in doubt

    @property
    def claim(self) -> Claim:
        return Claim(key=(self.id,), token=self.claim_token)

    @property
    def unsettled(self) -> bool:
        """An earlier attempt may have arrived, and nobody has said whether."""
        return self.in_doubt and not self.settled

    @property
    def scoped_channel(self) -> str:
        return f"{self.channel}.{self.identity_scope}"

    @property
    def labels(self) -> dict[str, str]:
        return {
            "channel": self.channel,
            "intent": self.outgoing.intent,
            "identity_scope": self.identity_scope,
            "origin_butler": self.origin_butler,
        }


def claimed(row: Record, token: UUID) -> ClaimedDelivery:
    return ClaimedDelivery(
        id=row["id"],
        claim_token=token,
        attempt_id=row["attempt_id"],
        attempt=row["attempts"],
        channel=row["channel"],
        identity_scope=row["identity_scope"],
        origin_butler=row["origin_butler"],
        request_id=row["request_id"],
        created_at=row["created_at"],
        not_after=row["not_after"],
        trace_context=(row["envelope"].get("request_context") or {}).get("trace_context") or {},
        generation=row["generation"],
        stance=Stance(row["stance"]),
        in_doubt=row["in_doubt"],
        last_error_class=row["terminal_error_class"],
        settled=row["settled_at"] is not None,
        outgoing=outgoing_of(row),
    )


def outgoing_of(row: Record) -> Outgoing:
    """The message of a delivery's row; `parts_sent` are those on record."""
    return Outgoing(
        delivery_id=row["id"],
        idempotency_key=row["idempotency_key"],
        intent=row["intent"],
        target=row["target_identity"],
        address=row["address"],
        message=row["message"],
        subject=row["subject"],
        emoji=(row["envelope"].get("delivery") or {}).get("emoji"),
        source_event=row["source_event"] or {},
        parts_sent={int(part): name for part, name in (row["parts_sent"] or {}).items()},
    )
