"""What would become of a message, person by person, with every rule that has a say.

Nothing is stored and nothing is sent. The decisions are those of `send_message` and of the worker: the same functions
with the same inputs, so an explanation says what a call at the same moment does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from butlers.outbound.digests import window_end
from butlers.outbound.documents import MessageDocument
from butlers.outbound.planning import Circumstances, Decider, Decision, first_moment, plan
from butlers.outbound.quiet_hours import QuietHours, QuietWindow, zone
from butlers.outbound.records import Records
from butlers.outbound.service import MessageDeliveryService
from butlers.outbound.throttle import LONGEST
from butlers.outbound.values import Queued, Recipient


class Explainer:
    def __init__(self, *, service: MessageDeliveryService, records: Records) -> None:
        self._service = service
        self._records = records

    async def explain(self, document: MessageDocument) -> dict[str, Any]:
        document, recipients, given = await self._service.prepare(document)
        decider, booked = Decider(given), await self._records.booked(document, now=given.now)
        outcomes = plan(recipients, given, booked=booked)
        return {
            "message_id": str(document.id),
            "now": given.now.isoformat(),
            "event_type": given.message.event,
            "bypass": given.bypass or None,
            "recipients": [
                await self._recipient(recipient, decider.decide(recipient), outcome, given)
                for recipient, outcome in zip(recipients, outcomes, strict=True)
            ],
        }

    async def _recipient(
        self, recipient: Recipient, decision: Decision, outcome: Any, given: Circumstances
    ) -> dict[str, Any]:
        explained: dict[str, Any] = {
            "recipient_id": recipient.id,
            "candidates": [
                {"channel": each.channel, "kept": each.is_allowed, "rule": each.rule.value}
                for each in decision.candidates
            ],
            "quiet_hours": quiet_arithmetic(decision.quiet, given.now),
            "muted_until": decision.muted_until.isoformat() if decision.muted_until else None,
        }
        if not isinstance(outcome, Queued):
            return explained | {"outcome": "blocked", "reason": outcome.reason.value, "detail": outcome.detail}
        seconds = given.digest_seconds(decision.preferences)
        return explained | {
            "outcome": "queued",
            "channel": outcome.channel,
            "scheduled_at": outcome.scheduled_at.isoformat(),
            "detail": outcome.detail,
            "digest_seconds": seconds,
            **await self._throttle(recipient.id, outcome, decision, given, digest_seconds=seconds),
        }

    async def _throttle(
        self,
        recipient_id: str,
        outcome: Queued,
        decision: Decision,
        given: Circumstances,
        *,
        digest_seconds: int | None,
    ) -> dict[str, Any]:
        """The room under the limits, and when the message leaves, alone or in a digest, for all that is known now."""
        throttling = given.message.policy.throttling
        sent = await self._records.sent_times(recipient_id, outcome.channel, since=given.now - LONGEST)
        due = outcome.scheduled_at
        leaves = first_moment(
            window_end(due, digest_seconds) if digest_seconds else due,
            quiet=decision.quiet,
            throttling=throttling,
            sent=sent,
            until=given.until,
        )
        return {
            "throttle_headroom": dict(throttling.headroom(sent, outcome.scheduled_at)),
            "leaves_at": leaves.isoformat() if leaves else None,
        }


def quiet_arithmetic(quiet: QuietHours, now: datetime) -> list[Mapping[str, Any]]:
    """Each window: what its clock shows, whether it holds, and when it ends, in local time and in UTC."""
    return [_window(window, now) for window in quiet.windows]


def _window(window: QuietWindow, now: datetime) -> dict[str, Any]:
    end = window.end_if_quiet(now)
    local = zone(window.timezone)
    shown: dict[str, Any] = {
        "window": f"{window.start}-{window.end}",
        "timezone": window.timezone,
        "days": list(window.days),
        "local_time": now.astimezone(local).isoformat(timespec="minutes"),
        "is_quiet": end is not None,
    }
    if end is not None:
        shown |= {"ends_local": end.astimezone(local).isoformat(timespec="minutes"), "ends_utc": end.isoformat()}
    return shown
