"""What becomes of an attempt whose process died: a decision by the evidence in its wire log."""

from __future__ import annotations

from butlers.errors import TimeoutExceeded
from butlers.messenger.channel import Certainty, NotSent
from butlers.messenger.delivery import Settlement
from butlers.messenger.settling import Circumstances, settle

MOST_LOST = 20  # attempts; what kills its process every time must not do so for ever


def lost_attempt(part: int | None) -> NotSent:
    """An attempt that nobody lived to report; `part` may have left."""
    return NotSent(
        error=TimeoutExceeded("the process ended during the attempt"),
        certainty=Certainty.NOT_SENT if part is None else Certainty.UNCERTAIN,
        response={"phase": "process ended", "part": part},
    )


def settle_lost(result: NotSent, around: Circumstances) -> Settlement:
    """A crash of ours says nothing about the provider: try at once, though not without end."""
    if result.certainty is Certainty.NOT_SENT:
        if around.attempt >= MOST_LOST:
            return Settlement(status="dead_lettered", error=result.error)
        return Settlement(status="awaiting_retry", next_attempt_at=around.now, error=result.error)
    settlement = settle(result, around)
    if settlement.status != "awaiting_retry":
        return settlement
    return Settlement(
        status="awaiting_retry", next_attempt_at=around.now, error=settlement.error, decision=settlement.decision
    )
