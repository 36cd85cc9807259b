"""Faults that a test asks for: which call they hit, and how often.

delay               wait, then answer as usual
error_5xx           refuse with a server error, nothing is accepted
too_many_requests   refuse with 429 and retry_after, nothing is accepted
drop_before         close the connection, nothing is accepted
drop_after          accept (stored and journaled), then close the connection without an answer
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from butlers.simulators.faults import CountedFault
from butlers.simulators.telegram.model import ApiError, too_many_requests

ANY_METHOD = "*"


class FaultKind(StrEnum):
    DELAY = "delay"
    ERROR_5XX = "error_5xx"
    TOO_MANY_REQUESTS = "too_many_requests"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(CountedFault):
    fault_id: int
    method: str  # a Bot API method, or "*"
    kind: FaultKind
    chat_id: int | None = None  # None: any chat
    seconds: float = 1.0  # for delay
    retry_after: int = 1  # seconds, for too_many_requests
    status: int = 500  # for error_5xx
    description: str | None = None  # for error_5xx

    def hits(self, method: str, chat_id: int | None) -> bool:
        return self.method in (ANY_METHOD, method) and self.chat_id in (None, chat_id)

    def as_error(self) -> ApiError | None:
        """The refusal this fault stands for, if it is one."""
        if self.kind is FaultKind.ERROR_5XX:
            return ApiError(self.status, self.description or "Internal Server Error")
        if self.kind is FaultKind.TOO_MANY_REQUESTS:
            return too_many_requests(self.retry_after)
        return None


def choose(faults: Iterable[Fault], method: str, chat_id: int | None) -> tuple[Fault, ...]:
    """Every delay that hits this call, and the oldest of the other faults."""
    hitting = [fault for fault in faults if fault.hits(method, chat_id)]
    delays = [fault for fault in hitting if fault.kind is FaultKind.DELAY]
    others = [fault for fault in hitting if fault.kind is not FaultKind.DELAY]
    return (*delays, *others[:1])
