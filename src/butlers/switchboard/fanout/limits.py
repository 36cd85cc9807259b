"""What is left for one request: time, calls, attempts."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from butlers.errors import OverloadRejected, TimeoutExceeded


@dataclass(slots=True)
class Invocations:
    """A request's calls of butlers and models; everybody who works on the request takes from the same count."""

    left: int = sys.maxsize

    def take(self) -> bool:
        """One call more, or false when there is none left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    deadline: float | None = None  # on the monotonic clock; None: no limit
    invocations: Invocations = field(default_factory=Invocations)
    attempts: int = 3  # calls of one target, the first included
    route_timeout_s: float | None = None  # for one call; None: the butler's own

    def time_left(self, monotonic: float) -> float | None:
        """Seconds until the deadline, never negative; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic)

    def timeout_of_call(self, own_s: float, monotonic: float) -> float:
        """Seconds that the next call may take."""
        wanted = self.route_timeout_s if self.route_timeout_s is not None else own_s
        left = self.time_left(monotonic)
        return wanted if left is None else min(wanted, left)


def time_used_up(butler: str, last: str | None = None) -> TimeoutExceeded:
    """Final: waiting in the buffer gives the request no more time."""
    after = f"; the last try: {last}" if last else ""
    return TimeoutExceeded(f"the request's time was used up before {butler} was done{after}", retryable=False)


def calls_used_up(butler: str, last: str | None = None) -> OverloadRejected:
    after = f"; the last try: {last}" if last else ""
    return OverloadRejected(f"the request's calls were used up before {butler} was done{after}", retryable=False)
