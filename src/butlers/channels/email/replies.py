"""What a mail server's reply means for a delivery.

| reply                                    | delivery                                                              |
|------------------------------------------|-----------------------------------------------------------------------|
| 421, or "too many" and the like          | not now, and nobody else either: the channel is throttled             |
| other 4xx (greylisting, mailbox busy)    | not now; the retry schedule of email waits it out                     |
| 530, 534, 535, 538, 5xx to the login     | our account is at fault: no retry helps                               |
| 5xx to the greeting or to EHLO           | the server will not have us: the same                                 |
| 550, 551, 553 to RCPT, 5.1.x anywhere    | the recipient is no more                                              |
| other 5xx                                | this message is refused                                               |

A refusal of policy (5.7.x) or for lack of room (5.2.2, 5.2.3) says nothing about whether the address exists, and a
refusal of MAIL is about us. The server's own words stay out of every record: they may quote the message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from butlers.channels.adapter import NotSent, Throttle
from butlers.errors import ClassifiedError, TargetUnavailable, ValidationError

THROTTLE_S = 60.0
_ENHANCED = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})\b")
_BUSY = re.compile(r"too many|rate limit|throttl|too quickly|too fast", re.IGNORECASE)
_ACCOUNT = frozenset({530, 534, 535, 538})
_NO_SUCH_RECIPIENT = frozenset({550, 551, 553})
_BEFORE_THE_MAIL = frozenset({"connect", "ehlo", "starttls"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    phase: str  # connect | ehlo | starttls | auth | mail | rcpt | data | dot
    code: int
    text: str

    @property
    def enhanced(self) -> str | None:
        found = _ENHANCED.match(self.text.strip())
        return found[0] if found and found[1] == str(self.code)[:1] else None

    def evidence(self) -> dict[str, Any]:
        return {"phase": self.phase, "code": self.code, "enhanced": self.enhanced}


def refused(reply: Reply) -> NotSent:
    """The server answered, and the answer was no: certainly not sent."""
    return NotSent(
        error=_error(reply),
        answered=True,
        response=reply.evidence(),
        throttle=_throttle(reply),
        recipient_gone=_recipient_gone(reply),
    )


def _error(reply: Reply) -> ClassifiedError:
    said = f"{reply.code} {reply.enhanced or ''}".strip()
    if 400 <= reply.code < 500:
        throttle = _throttle(reply)
        return TargetUnavailable(
            f"the mail server says not now ({said})", retry_after=throttle.seconds if throttle else None
        )
    if reply.phase == "auth" or reply.code in _ACCOUNT:
        return TargetUnavailable(f"the mail server refuses the login ({said})", retryable=False)
    if reply.phase in _BEFORE_THE_MAIL or not 500 <= reply.code < 600:
        return TargetUnavailable(f"the mail server refuses us ({said})", retryable=False)
    if _recipient_gone(reply):
        return ValidationError(f"the mail server knows no such recipient ({said})")
    return ValidationError(f"the mail server refuses the mail ({said})")


def _throttle(reply: Reply) -> Throttle | None:
    passing = 400 <= reply.code < 500
    if passing and (reply.code == 421 or _BUSY.search(reply.text)):
        return Throttle(scope="channel", seconds=THROTTLE_S)
    return None


def _recipient_gone(reply: Reply) -> bool:
    if not 500 <= reply.code < 600 or reply.phase not in ("rcpt", "data", "dot"):
        return False
    enhanced = reply.enhanced
    if enhanced is None:
        return reply.phase == "rcpt" and reply.code in _NO_SUCH_RECIPIENT
    subject, detail = enhanced.split(".")[1:]
    unknown = subject == "0" and reply.phase == "rcpt" and reply.code in _NO_SUCH_RECIPIENT
    return subject == "1" or (subject == "2" and detail == "1") or unknown
