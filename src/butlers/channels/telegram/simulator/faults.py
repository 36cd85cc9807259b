"""Faults that a test asks for: which call they hit, and how often.

delay               wait, then answer as usual
error_5xx           refuse with a server error, nothing is accepted
too_many_requests   refuse with 429 and retry_after, nothing is accepted
refused             refuse with any code and description, nothing is accepted
unparsable          refuse to read markup: strikes only calls with a parse mode, nothing is accepted
gateway             answer like a proxy on the way, in HTML, nothing is accepted
drop_before         close the connection, nothing is accepted
drop_after          accept (stored and journaled), then close the connection without an answer

Each may let some calls pass before it strikes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from http.client import responses

from butlers.channels.telegram.simulator.model import ApiError, bad_request, too_many_requests
from butlers.simulators.faults import CountedFault

ANY_METHOD = "*"


class FaultKind(StrEnum):
    DELAY = "delay"
    ERROR_5XX = "error_5xx"
    TOO_MANY_REQUESTS = "too_many_requests"
    REFUSED = "refused"
    UNPARSABLE = "unparsable"
    GATEWAY = "gateway"
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
    status: int = 500  # for error_5xx, refused and gateway
    description: str | None = None  # for error_5xx and refused
    skip: int = 0  # calls that it still lets pass

    def hits(self, method: str, chat_id: int | None, *, marked: bool = False) -> bool:
        if self.kind is FaultKind.UNPARSABLE and not marked:
            return False
        return self.method in (ANY_METHOD, method) and self.chat_id in (None, chat_id)

    @property
    def phrase(self) -> str:
        return responses.get(self.status, "Error")

    def as_error(self) -> ApiError | None:
        """The refusal this fault stands for, if it is one."""
        match self.kind:
            case FaultKind.ERROR_5XX | FaultKind.REFUSED:
                return ApiError(self.status, self.description or self.phrase)
            case FaultKind.TOO_MANY_REQUESTS:
                return too_many_requests(self.retry_after)
            case FaultKind.UNPARSABLE:
                return bad_request("can't parse entities: Can't find end tag corresponding to start tag \"b\"")
        return None


def choose(hitting: Iterable[Fault]) -> tuple[Fault, ...]:
    """Every delay that hits a call, and the oldest of the other faults."""
    hitting = tuple(hitting)
    delays = [fault for fault in hitting if fault.kind is FaultKind.DELAY]
    others = [fault for fault in hitting if fault.kind is not FaultKind.DELAY]
    return (*delays, *others[:1])
