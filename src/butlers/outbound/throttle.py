"""How many messages a person gets by one channel: at most so many within any minute, hour and day.

The windows slide: a message may go at a moment when fewer than the limit went within the minute (hour, day) before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

LONGEST: Final = timedelta(days=1)  # what went earlier counts against no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """The limits of a delivery policy, for one recipient and channel; None is no limit."""

    max_per_minute: int | None = 60
    max_per_hour: int | None = 500
    max_per_day: int | None = 1_000

    def limits(self) -> tuple[tuple[str, timedelta, int], ...]:
        """Name, length of the window and number, for every limit there is."""
        all_limits = (
            ("minute", timedelta(minutes=1), self.max_per_minute),
            ("hour", timedelta(hours=1), self.max_per_hour),
            ("day", timedelta(days=1), self.max_per_day),
        )
        return tuple((name, window, limit) for name, window, limit in all_limits if limit is not None)

    def next_free(self, sent: Sequence[datetime], moment: datetime) -> datetime:
        """The first moment from `moment` on at which one more may go. `sent` is sorted; what is later than the answer
        does not count.
        """
        limits = self.limits()
        while True:
            before = bisect_right(sent, moment)
            # The window is full when the message that stands `limit` places back is still within it.
            ends = [sent[before - limit] + window for _, window, limit in limits if limit <= before]
            free = max(ends, default=moment)
            if free <= moment:
                return moment
            moment = free

    def headroom(self, sent: Sequence[datetime], moment: datetime) -> Mapping[str, int]:
        """How many more may go at `moment`, by the name of the window."""
        before = bisect_right(sent, moment)
        used = {name: before - bisect_right(sent, moment - window) for name, window, _ in self.limits()}
        return {name: max(0, limit - used[name]) for name, _, limit in self.limits()}
