"""What a gateway's answer means: pure, so that every answer can be tried without a gateway.

2xx {"id"}                  taken
409 {"id", "delivery_id"}   taken before, when it is our delivery; otherwise the key belongs to another message
4xx                         refused: 410 the recipient is gone, 429 wait, 401 and 403 our credentials
408, 425                    not taken in; worth another attempt
5xx {"error": "not_taken"}  failed, in the gateway's own words: certain, and worth another attempt
502, 504, any other 5xx     nobody knows: front ends answer so, in JSON, too, while the gateway goes on working
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Throttle
from butlers.errors import ClassifiedError, TargetUnavailable, ValidationError

LONGEST_WAIT_S = 86_400.0
NOT_TAKEN = "not_taken"  # the one word of a failed gateway that a front end does not say by chance
_ON_THE_WAY = frozenset({502, 504})  # are about a gateway, and so not from it
_LONGEST_ID = 512
_CODE = re.compile(r"[a-z]{2,20}(?:_[a-z]{2,20}){1,4}")  # no_such_number, and not a word of the message or a key
_BIGGEST_ID = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, from the gateway or from a front end."""

    status: int
    said: Mapping[str, Any] | None  # the gateway's own words; None: not JSON, so not the gateway's
    retry_after: float | None = None

    @property
    def identifier(self) -> str | None:
        given = self.said.get("id") if self.said else None
        if isinstance(given, int) and not isinstance(given, bool) and abs(given) < _BIGGEST_ID:
            return str(given)
        usable = isinstance(given, str) and given.strip() and "\x00" not in given and len(given) <= _LONGEST_ID
        return str(given) if usable else None

    @property
    def disowns(self) -> bool:
        """Whether a failed gateway says that it has not taken the message and will not."""
        said = self.said.get("error") if self.said else None
        return said == NOT_TAKEN and self.status not in _ON_THE_WAY

    @property
    def reason(self) -> str:
        """The status, with the gateway's code for it. Its sentences stay out of every record: they may quote the
        message or a credential.
        """
        given = self.said.get("error") if self.said else None
        coded = isinstance(given, str) and _CODE.fullmatch(given)
        return f"HTTP {self.status}" + (f": {given}" if coded else "")


def result_of(answer: Answer, outgoing: Outgoing) -> AttemptResult:
    """What an answer means for the delivery."""
    if 200 <= answer.status < 300:
        return _taken(answer)
    if answer.status == 409:
        return _conflict(answer, outgoing)
    if answer.status >= 500 and not answer.disowns:
        return _uncertain(answer, f"the gateway, or something on the way to it, answered {answer.reason}")
    throttle = None
    if answer.status == 429 and answer.retry_after is not None:
        of_recipient = answer.said is not None and answer.said.get("scope") == "recipient"
        throttle = Throttle(scope="target" if of_recipient else "channel", seconds=answer.retry_after)
    return NotSent(
        error=refusal(answer),
        answered=True,
        response={"status": answer.status},
        throttle=throttle,
        recipient_gone=answer.status == 410,
    )


def refusal(answer: Answer) -> ClassifiedError:
    match answer.status:
        case 410:
            return TargetUnavailable(f"the recipient is gone ({answer.reason})", retryable=False)
        case 429:
            return TargetUnavailable(f"the gateway asks to wait ({answer.reason})", retry_after=answer.retry_after)
        case 401 | 403:
            return TargetUnavailable(f"the gateway refuses our credentials ({answer.reason})", retryable=False)
        case 408 | 425:
            return TargetUnavailable(f"the gateway did not take it in ({answer.reason})")
        case status if status >= 500:
            return TargetUnavailable(f"the gateway failed ({answer.reason})", retry_after=answer.retry_after)
        case status if status < 400:
            return TargetUnavailable(f"the gateway's address has changed ({answer.reason})", retryable=False)
    return ValidationError(f"the gateway refused the message ({answer.reason})")


def retry_after(header: str | None, *, now: datetime) -> float | None:
    """Seconds to wait: the header holds seconds or a date. What cannot be read counts as not said."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_WAIT_S)
    try:
        moment = parsedate_to_datetime(text)
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, wait.total_seconds()), LONGEST_WAIT_S)


def _taken(answer: Answer) -> AttemptResult:
    if answer.identifier is None:
        return _uncertain(answer, f"the gateway's answer names no message ({answer.reason})")
    return Sent(provider_delivery_id=answer.identifier, response={"status": answer.status, "id": answer.identifier})


def _conflict(answer: Answer, outgoing: Outgoing) -> AttemptResult:
    theirs = str(answer.said.get("delivery_id", "")).lower() if answer.said else ""
    if theirs == str(outgoing.delivery_id) and answer.identifier is not None:
        return _taken(answer)
    if theirs and theirs != str(outgoing.delivery_id):
        error = ValidationError(f"the gateway has another message under this key ({answer.reason})")
        return NotSent(error=error, answered=True, response={"status": answer.status})
    return _uncertain(answer, f"the gateway speaks of a conflict and not of which ({answer.reason})")


def _uncertain(answer: Answer, what: str) -> NotSent:
    error = TargetUnavailable(what, retry_after=answer.retry_after)
    return NotSent(error=error, certainty=Certainty.UNCERTAIN, response={"status": answer.status})


def decoded(content: bytes) -> Mapping[str, Any] | None:
    """An answer in the gateway's own words, that is as a JSON object; None for anything else."""
    try:
        said = from_json(content, allow_inf_nan=False)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
