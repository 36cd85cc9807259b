"""What the courier refuses: the code on its wire, the HTTP status, the close code of a socket."""

from __future__ import annotations

from typing import Any, ClassVar

from butlers.errors import ButlersError


class CourierError(ButlersError):
    code: ClassVar[str] = "InternalError"
    http_status: ClassVar[int] = 500
    close_code: ClassVar[int | None] = None  # the socket goes on where there is none

    def __init__(self, message: str, *, retry_after: float | None = None, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after  # seconds
        self.field = field

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.field:
            described["field"] = self.field
        if self.retry_after is not None:
            described["retryAfterMs"] = round(self.retry_after * 1000)
        return described


class InvalidEnvelope(CourierError):
    code = "InvalidEnvelope"
    http_status = 400


class MessageTooLarge(CourierError):
    code = "MessageTooLarge"
    http_status = 413
    close_code = 1009


class InvalidJson(CourierError):
    code = "InvalidJSON"
    http_status = 400


class UnknownOp(CourierError):
    code = "UnknownOp"
    http_status = 400


class Unauthorized(CourierError):
    code = "Unauthorized"
    http_status = 401
    close_code = 1008


class Forbidden(CourierError):
    code = "Forbidden"
    http_status = 403
    close_code = 1008


class UnknownStream(CourierError):
    code = "UnknownStream"
    http_status = 404


class UnknownView(CourierError):
    code = "UnknownView"
    http_status = 404


class LeaseConflict(CourierError):
    code = "LeaseConflict"
    http_status = 409

    def __init__(self, id: str, problem: str) -> None:
        super().__init__(f"{id}: {problem}")
        self.id = id


class RateLimited(CourierError):
    code = "RateLimited"
    http_status = 429


class StreamFull(CourierError):
    code = "StreamFull"
    http_status = 429

    def __init__(self, stream: str, *, depth: int, retry_after: float) -> None:
        super().__init__(
            f"{stream} is full, {depth} messages are open: send again in {retry_after:.0f} s, or add subscribers",
            retry_after=retry_after,
        )


class OverQuota(CourierError):
    code = "OverQuota"
    http_status = 429


class GroupInUse(CourierError):
    code = "GroupInUse"
    http_status = 409


class StreamClosed(CourierError):
    """The stream is being drained."""

    code = "StreamFull"
    http_status = 429
