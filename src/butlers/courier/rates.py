"""How many messages a second, and how long they waited: of the last seconds, not since the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WINDOW_S, MARK_S = 10.0, 1.0  # a mark is set once a second, before what it counts from
LATENCIES = 1_024  # the newest ones


class RateWindow:
    """Marks of two counters that only grow. The caller sets one when `next_mark` has come, before it counts on."""

    __slots__ = ("_marks", "next_mark")

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])  # time, accepted, delivered
        self.next_mark = 0.0

    def mark(self, now: float, accepted: int, delivered: int) -> None:
        self.next_mark = now + MARK_S
        self._marks.append((now, accepted, delivered))
        self._forget(now)

    def rates(self, now: float, accepted: int, delivered: int) -> tuple[float, float]:
        """Messages a second, in and out, given the counters as they are."""
        self._forget(now)
        since, accepted_then, delivered_then = self._marks[0]
        if since + MARK_S <= now - WINDOW_S:
            return 0.0, 0.0
        elapsed = max(now - since, 1.0)
        return (accepted - accepted_then) / elapsed, (delivered - delivered_then) / elapsed

    def _forget(self, now: float) -> None:
        # What followed a mark within its second is in the next mark, which may be much later.
        while len(self._marks) > 1 and self._marks[0][0] + MARK_S <= now - WINDOW_S:
            self._marks.popleft()


def percentile_ms(ordered: Sequence[float], share: float) -> float:
    """Of seconds in their order; 0 where there are none."""
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3) if ordered else 0.0


def retry_after(max_depth: int, out: float) -> float:
    """Seconds after which a full stream may have room, by the messages a second that leave it."""
    return min(60.0, max(1.0, max_depth / 100 / out)) if out else 5.0
