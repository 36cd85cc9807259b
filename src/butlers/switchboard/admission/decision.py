"""What becomes of one more message: a pure function of how much waits.

    accepted    there is room
    deferred    there is none: stored all the same, and worked on when its turn comes
    shed        there is none: stored as errored with `overload_rejected`, and never worked on
    rejected    there is none: not stored; whoever hands it in hears when to try again

Overflow begins when the waiting room is full, or when every queue of the buffer is; what is done then depends on the
tier. Even deferring ends somewhere: beyond `max_stored` everything is rejected. Both limits keep a share for every
channel (`shares`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from butlers.butler.routing_config import AdmissionSection, Overflow
from butlers.channels.registry import inbound_names
from butlers.switchboard.admission.shares import Shares


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    DEFERRED = "deferred"
    SHED = "shed"
    REJECTED = "rejected"


_OVERFLOW: Mapping[Overflow, Outcome] = {
    "defer": Outcome.DEFERRED,
    "shed": Outcome.SHED,
    "reject": Outcome.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    waiting: Shares  # before overflow begins
    stored: Shares  # before everything is refused
    overflow: Mapping[str, Overflow]  # by tier; has "default"
    retry_after_s: float  # told to whoever is rejected

    @classmethod
    def of(cls, section: AdmissionSection) -> Self:
        return cls(
            waiting=Shares(places=section.max_waiting, channels=len(inbound_names())),
            stored=Shares(places=section.max_stored, channels=len(inbound_names())),
            overflow=section.overflow.model_dump(),
            retry_after_s=section.retry_after_s,
        )


def decide(
    policy: AdmissionPolicy, *, channel: str, tier: str, waiting: Mapping[str, int], queues_full: bool
) -> Outcome:
    if not policy.stored.has_place(channel, waiting):
        return Outcome.REJECTED
    if policy.waiting.within_share(channel, waiting):
        return Outcome.ACCEPTED
    if not queues_full and policy.waiting.has_place(channel, waiting):
        return Outcome.ACCEPTED
    return _OVERFLOW[policy.overflow.get(tier, policy.overflow["default"])]
