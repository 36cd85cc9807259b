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

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from http.client import responses

from butlers.channels.telegram.simulator.model import ApiError, ChatKind, bad_request, too_many_requests
from butlers.simulators.control import CountedFault

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: str
    messages: int
    seconds: float


CHAT = Limit(name="chat", messages=5, seconds=5)
GROUP = Limit(name="group", messages=20, seconds=60)
BOT = Limit(name="bot", messages=30, seconds=1)

_Key = tuple[str, int, int]


class RateWindows:
    """What was sent lately; forgotten on restart, as it would be stale by then."""

    def __init__(self) -> None:
        self._sent: dict[_Key, deque[datetime]] = {}

    def admit(self, bot_id: int, chat_id: int, now: datetime) -> int | None:
        """Count one message, or say after how many whole seconds to come again."""
        windows = [(limit, self._window(limit, bot_id, chat_id, now)) for limit in _limits_of(chat_id)]
        waits = [_wait(limit, window, now) for limit, window in windows]
        if (longest := max(waits)) > 0:
            return max(1, math.ceil(longest))
        for _, window in windows:
            window.append(now)
        return None

    def _window(self, limit: Limit, bot_id: int, chat_id: int, now: datetime) -> deque[datetime]:
        window = self._sent.setdefault((limit.name, bot_id, 0 if limit is BOT else chat_id), deque())
        while window and (now - window[0]).total_seconds() >= limit.seconds:
            window.popleft()
        return window


def _limits_of(chat_id: int) -> tuple[Limit, ...]:
    return (CHAT, BOT) if ChatKind.of(chat_id) is ChatKind.PRIVATE else (CHAT, GROUP, BOT)


def _wait(limit: Limit, window: deque[datetime], now: datetime) -> float:
    if len(window) < limit.messages:
        return 0.0
    return limit.seconds - (now - window[0]).total_seconds()
