"""When work is set aside, and when it may run again.

Work is quarantined when it could have succeeded and did not: its attempts are used up, or an operator says so. A
failure that cannot be retried is answered to the caller as `failed` and not quarantined, because running the same
input again gives the same answer.

Replaying sends for real. So a dead letter is eligible only when a second run can neither duplicate something that
may have arrived nor merely repeat a certain failure, and the assessment names every obstacle at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from butlers.errors import ErrorClass
from butlers.reliability.retry import RetryPolicy


class QuarantineReason(StrEnum):
    RETRIES_EXHAUSTED = "retries_exhausted"
    MANUAL = "manually_quarantined"


class ReplayObstacle(StrEnum):
    DISCARDED = "discarded"
    VALIDATION_ERROR = "validation_error"  # the same input would be refused again
    UNCERTAIN_NOT_SETTLED = "uncertain_not_settled"  # it may have arrived; somebody must find out first
    REPLAY_IN_PROGRESS = "replay_in_progress"
    ALREADY_DELIVERED = "already_delivered"  # by an earlier replay, or settled as delivered
    EXPIRED = "expired"  # past its not_after: nothing stale goes out
    REPLAY_LIMIT_REACHED = "replay_limit_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPolicy:
    max_replays: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """What the rules need to know about one dead letter."""

    error_class: ErrorClass
    replay_count: int = 0
    discarded: bool = False
    uncertain: bool = False  # an attempt may have arrived and nobody has settled it
    replay_in_progress: bool = False
    delivered: bool = False
    not_after: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEligibility:
    reasons: tuple[ReplayObstacle, ...]  # why not; empty when eligible
    replay_count: int

    @property
    def eligible(self) -> bool:
        return not self.reasons

    def describe(self) -> dict[str, Any]:
        """The assessment as operators see it."""
        return {
            "eligible": self.eligible,
            "reasons": [reason.value for reason in self.reasons],
            "replay_count": self.replay_count,
        }


def quarantine_reason(
    *, attempts: int, error_class: ErrorClass, retryable: bool, policy: RetryPolicy
) -> QuarantineReason | None:
    """Why work belongs in quarantine after its last failure; `None` when it does not.

    It does not while attempts are left, nor when the failure was final in itself.
    """
    if not retryable or error_class is ErrorClass.VALIDATION_ERROR:
        return None
    return QuarantineReason.RETRIES_EXHAUSTED if attempts >= policy.attempts_allowed else None


def assess_replay(letter: DeadLetter, policy: ReplayPolicy, now: datetime) -> ReplayEligibility:
    """May this dead letter run again, and if not, for which reasons?"""
    obstacles = {
        ReplayObstacle.DISCARDED: letter.discarded,
        ReplayObstacle.VALIDATION_ERROR: letter.error_class is ErrorClass.VALIDATION_ERROR,
        ReplayObstacle.UNCERTAIN_NOT_SETTLED: letter.uncertain,
        ReplayObstacle.REPLAY_IN_PROGRESS: letter.replay_in_progress,
        ReplayObstacle.ALREADY_DELIVERED: letter.delivered,
        ReplayObstacle.EXPIRED: letter.not_after is not None and now > letter.not_after,
        ReplayObstacle.REPLAY_LIMIT_REACHED: letter.replay_count >= policy.max_replays,
    }
    return ReplayEligibility(
        reasons=tuple(obstacle for obstacle, stands in obstacles.items() if stands),
        replay_count=letter.replay_count,
    )
