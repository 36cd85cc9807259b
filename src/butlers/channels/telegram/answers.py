"""What Telegram's answers mean: to a delivery (`refused`), and to the operator (`refusal`, `unreachable`).

    429         wait, with this chat or with all       retryable, after what Telegram says
    403         blocked, kicked, or the user is gone   final, and so is the recipient
    401, 404    the token is not Telegram's            final, nothing wrong with the recipient
    5xx         Telegram failed, and says so itself    retryable
    other       we asked for something wrong           final
    no JSON     a gateway on the way spoke             nobody knows

Evidence holds codes and Telegram's own words. Those may quote the message, so whatever stands in quotes goes.
In what the operator reads, the code says enough.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from butlers.channels.adapter import NotSent, Throttle
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.messenger.attempt import text

DEFAULT_WAIT = 5.0  # seconds, when Telegram asks to wait without saying how long
_LONGEST_WAIT = 10**9  # seconds; more is not meant as a time

_RETRY_AFTER = re.compile(r"retry after (\d{1,9})", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"?')
_TOKEN = re.compile(r"(?<!\d)\d{6,}:[\w-]{20,}")
_CANNOT_PARSE = "can't parse entities"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Telegram's own words."""

    ok: bool
    message_id: int | None = None
    code: int  # Telegram's own, else that of HTTP
    description: str = ""  # without quotations
    retry_after: float | None = None  # seconds
    migrate_to: int | None = None  # the supergroup that this group has become

    @property
    def cannot_parse(self) -> bool:
        return self.code == 400 and _CANNOT_PARSE in self.description.lower()

    @property
    def moved_to(self) -> str | None:
        return None if self.ok or self.migrate_to is None else str(self.migrate_to)

    @property
    def wait(self) -> float | None:
        """Seconds to leave the chat alone."""
        if self.code != 429:
            return None
        said = _RETRY_AFTER.search(self.description)
        seconds = float(said[1]) if said else DEFAULT_WAIT
        return max(1.0, seconds if self.retry_after is None else self.retry_after)

    def evidence(self) -> dict[str, Any]:
        if self.ok:
            return {"message_id": self.message_id}
        named = {"retry_after": self.retry_after, "migrate_to_chat_id": self.migrate_to}
        parameters = {name: value for name, value in named.items() if value is not None}
        told: dict[str, Any] = {"error_code": self.code, "description": self.description}
        return told | ({"parameters": parameters} if parameters else {})


def read(response: httpx2.Response) -> Answer | None:
    """The answer; None when these are not Telegram's words."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or "ok" not in body:
        return None
    result, code = _mapping(body.get("result")), _whole(body.get("error_code"))
    parameters = _mapping(body.get("parameters"))
    return Answer(
        ok=bool(body["ok"]),
        message_id=_whole(result.get("message_id")),
        code=response.status_code if code is None else code,
        description=_redacted(body.get("description")),
        retry_after=_seconds(parameters.get("retry_after")),
        migrate_to=_whole(parameters.get("migrate_to_chat_id")),
    )


def refused(answer: Answer, *, evidence: Mapping[str, Any], moved_to: str | None = None) -> NotSent:
    """A refusal is certain: nothing of this call was sent."""
    wait = answer.wait
    return NotSent(
        error=_error(answer),
        answered=True,
        response={**evidence, **answer.evidence()},
        throttle=None if wait is None else Throttle(scope="target", seconds=wait),
        recipient_gone=answer.code == 403,
        moved_to=answer.moved_to or moved_to,
    )


def _error(answer: Answer) -> ClassifiedError:
    code, said = answer.code, answer.description
    match code:
        case 429:
            return TargetUnavailable(f"Telegram asks to wait: {said}", retry_after=answer.wait)
        case 403:
            return TargetUnavailable(f"the recipient cannot be reached: {said}", retryable=False)
        case 401 | 404:
            return TargetUnavailable(f"Telegram refuses the bot's token: {said}", retryable=False)
        case int() if code >= 500:
            return TargetUnavailable(f"Telegram failed: {said}")
    return ValidationError(f"Telegram refused the message: {said}")


def _redacted(description: Any) -> str:
    said = text(description) if isinstance(description, str) else ""
    return _TOKEN.sub("[token]", _QUOTED.sub('"..."', said))[:200]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _LONGEST_WAIT else None


_TOKEN_REMEDY = "set BUTLER_TELEGRAM_TOKEN to the token that @BotFather shows for the bot, and start again"  # noqa: S105
_AWAY_REMEDY = "check the network, a proxy's settings and telegram_api_url; it is tried again by itself"
_OTHER_POLLER = "stop the other program that polls with this token, or delete the bot's webhook"


def refusal(code: object, *, retry_after: float | None = None) -> ClassifiedError:
    """An answer that is not ok."""
    if code in (401, 404):
        return TargetUnavailable("Telegram refuses the bot's token", retryable=False, remedy=_TOKEN_REMEDY)
    if code == 409:
        return TargetUnavailable("Telegram answered 409: somebody else polls with this token", remedy=_OTHER_POLLER)
    return TargetUnavailable(f"Telegram answered {code}", retry_after=retry_after, remedy=_AWAY_REMEDY)


def unreachable(error: Exception, *, host: str = "") -> ClassifiedError:
    """No answer of Telegram's own."""
    where = f" at {host}" if host else ""
    if isinstance(error, TimeoutError):
        return TimeoutExceeded(f"Telegram gave no answer in time{where}", remedy=_AWAY_REMEDY)
    if _is_untrusted(error):
        remedy = "set SSL_CERT_FILE to the authority that signs on this network, or correct telegram_api_url"
        return TargetUnavailable(f"Telegram's certificate is not trusted{where}", remedy=remedy)
    return TargetUnavailable(f"Telegram is unreachable{where} ({type(error).__name__})", remedy=_AWAY_REMEDY)


def _is_untrusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
