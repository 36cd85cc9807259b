"""What becomes of an attempt whose process died: a decision by the evidence in its wire log."""

from __future__ import annotations

from butlers.errors import TimeoutExceeded
from butlers.messenger.channel import Certainty, NotSent
from butlers.messenger.delivery import Settlement
from butlers.messenger.settling import Circumstances, settle


def lost_attempt(part: int | None) -> NotSent:
    """An attempt that nobody lived to report; `part` may have left."""
    return NotSent(
        error=TimeoutExceeded("the process ended during the attempt"),
        certainty=Certainty.NOT_SENT if part is None else Certainty.UNCERTAIN,
        response={"phase": "process ended", "part": part},
    )


def settle_lost(result: NotSent, around: Circumstances) -> Settlement:
    """A crash of ours says nothing about the provider: try at once, whatever the count of attempts."""
    if result.certainty is Certainty.NOT_SENT:
        return Settlement(status="awaiting_retry", next_attempt_at=around.now, error=result.error)
    settlement = settle(result, around)
    if settlement.status != "awaiting_retry":
        return settlement
    return Settlement(
        status="awaiting_retry", next_attempt_at=around.now, error=settlement.error, decision=settlement.decision
    )
