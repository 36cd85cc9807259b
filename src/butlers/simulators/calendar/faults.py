"""Faults that a test asks for.

expired_token      401, as an hour after the token was given out
too_many_requests  429 with Retry-After
rate_limited       403 rateLimitExceeded
quota_exceeded     403 quotaExceeded
forbidden          403 forbidden
server_error       a 5xx
delay              wait, then answer as usual
drop_before        close the connection, nothing is done
drop_after         do it, then close the connection without an answer
changed_meanwhile  somebody else changes the event just before: an If-Match no longer holds
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from butlers.simulators.faults import CountedFault

ANY_METHOD = "*"
METHODS = (
    *("token", "calendars.get", "freebusy.query"),
    *(f"events.{deed}" for deed in ("list", "get", "insert", "patch", "delete")),
)


class ApiError(Exception):
    """A refusal, as Google words it."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def to_wire(self) -> dict[str, object]:
        listed = [{"domain": "calendar", "reason": self.reason, "message": self.message}]
        return {"error": {"code": self.status, "message": self.message, "errors": listed}}


class FaultKind(StrEnum):
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a kind of fault
    TOO_MANY_REQUESTS = "too_many_requests"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"
    FORBIDDEN = "forbidden"
    SERVER_ERROR = "server_error"
    DELAY = "delay"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"
    CHANGED_MEANWHILE = "changed_meanwhile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(CountedFault):
    fault_id: int
    method: str  # one of METHODS, or "*"
    kind: FaultKind
    seconds: float = 1.0  # for delay
    retry_after: int = 1  # seconds, for too_many_requests
    status: int = 500  # for server_error

    def hits(self, method: str) -> bool:
        return self.method in (ANY_METHOD, method)

    def as_error(self) -> ApiError | None:
        match self.kind:
            case FaultKind.EXPIRED_TOKEN:
                return ApiError(401, "authError", "Invalid Credentials")
            case FaultKind.TOO_MANY_REQUESTS:
                return ApiError(429, "rateLimitExceeded", "Too Many Requests", retry_after=self.retry_after)
            case FaultKind.RATE_LIMITED:
                return ApiError(403, "rateLimitExceeded", "Rate Limit Exceeded")
            case FaultKind.QUOTA_EXCEEDED:
                return ApiError(403, "quotaExceeded", "Calendar usage limits exceeded.")
            case FaultKind.FORBIDDEN:
                return ApiError(403, "forbidden", "Forbidden")
            case FaultKind.SERVER_ERROR:
                return ApiError(self.status, "backendError", "Backend Error")
        return None
