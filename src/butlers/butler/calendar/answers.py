"""Google's refusals in the words of our taxonomy.

400                                  validation_error
401 after a fresh token              target_unavailable, final
403 rate or usage limit, 429         target_unavailable, after Retry-After
403 quota of the day or the account  target_unavailable, in an hour
403 anything else                    target_unavailable, final
404, 410                             validation_error: no such event
412                                  validation_error: changed meanwhile
5xx, no answer                       target_unavailable or timeout
"""

from __future__ import annotations

from typing import Any

import httpx2

from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded, ValidationError
from butlers.http_client import reason as why

_RATE = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_QUOTA = frozenset({"quotaExceeded", "dailyLimitExceeded"})
_QUOTA_WAIT_S = 3600.0


def json_of(response: httpx2.Response) -> dict[str, Any]:
    """The body, or nothing when it is not a JSON object."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def unanswered(error: httpx2.HTTPError, timeout_s: float) -> ClassifiedError:
    if isinstance(error, httpx2.TimeoutException):
        return TimeoutExceeded(f"Google Calendar gave no answer within {timeout_s:g} s")
    return TargetUnavailable(f"Google Calendar is unreachable ({why(error)})")


def described(response: httpx2.Response, *, of_event: bool = True) -> ClassifiedError:
    status, (reason, text) = response.status_code, _reason(response)
    match status:
        case 400:
            return ValidationError(f"Google Calendar refused the request: {text}")
        case 401:
            return TargetUnavailable("Google Calendar refuses the access token", retryable=False)
        case 403 if reason not in _RATE:
            return _forbidden(reason)
        case 403 | 429:
            return TargetUnavailable("Google Calendar asks to wait", retry_after=_retry_after(response))
        case 404 | 410:
            return _unknown(of_event)
        case 412:
            return invalid("etag", "the event has been changed meanwhile; read it again")
    return TargetUnavailable(f"Google Calendar failed: HTTP {status}", retry_after=_retry_after(response))


def _forbidden(reason: str) -> ClassifiedError:
    if reason in _QUOTA:
        return TargetUnavailable(f"the calendar's quota is used up: {reason}", retry_after=_QUOTA_WAIT_S)
    return TargetUnavailable(f"Google Calendar forbids this: {reason or 'no reason'}", retryable=False)


def _unknown(of_event: bool) -> ClassifiedError:
    if of_event:
        return invalid("event_id", "no such event in this calendar")
    return TargetUnavailable("there is no such calendar", retryable=False)


def _reason(response: httpx2.Response) -> tuple[str, str]:
    """(machine-readable reason, text) of an error body, empty where there is none."""
    error = json_of(response).get("error")
    if not isinstance(error, dict):
        return "", ""
    listed = error.get("errors")
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    return str(first.get("reason", ""))[:100], str(error.get("message", ""))[:200]


def _retry_after(response: httpx2.Response) -> float | None:
    """Only seconds: Google sends no dates."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 9 else None
