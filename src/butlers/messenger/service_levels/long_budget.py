"""The error budget over hours and days, and when it is spent.

Counting days of attempts every few seconds would be too much for a service, so somebody else counts them and leaves the
numbers in a table (the data pipeline does, where there is one). What is written there is a hint and never a condition:
without rows, or with old ones, everything is as it would be without the table.

    window     spent at a burn rate of    as long as
    1 day      3   a tenth of a month     6 hours still burn at `relax_below` or more
    3 days     2   a fifth of a month     6 hours
    30 days    1   the whole month        1 day

A slow leak (two failures in a hundred, for days) never alarms the judge's own five minutes and hour; it shows here. The
second window is what lets go again: a month that was spoilt in its first week must not keep a channel strict for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from butlers.reliability.error_budget import BudgetPolicy, Window, burn_rate

LONG_BUDGET_SPENT: Final = "long_budget_spent"  # the reason for a stance that was taken or is kept because of it
FRESH_FOR: Final = timedelta(hours=3)  # counted every hour, and two times may fail
_SKEW = timedelta(minutes=5)  # another machine's clock

_HOUR, _DAY = 3600, 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    window_s: int
    spent_at: float  # burn rate
    while_s: int  # the shorter window that must still burn


RULES: Final = (
    Rule(window_s=_DAY, spent_at=3.0, while_s=6 * _HOUR),
    Rule(window_s=3 * _DAY, spent_at=2.0, while_s=6 * _HOUR),
    Rule(window_s=30 * _DAY, spent_at=1.0, while_s=_DAY),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongWindow:
    """What was counted for one channel up to a moment."""

    window_s: int
    events: Window
    as_of: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> LongWindow:
        return cls(window_s=row["window_s"], events=Window(good=row["good"], bad=row["bad"]), as_of=row["as_of"])

    def is_fresh(self, now: datetime) -> bool:
        return -_SKEW <= now - self.as_of <= FRESH_FOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Strain:
    """A long budget that is spent."""

    window_s: int
    burn_rate: float


def strain(windows: Sequence[LongWindow], policy: BudgetPolicy, now: datetime) -> Strain | None:
    """The first rule that holds; None also when nothing is known."""
    burns = {window.window_s: burn_rate(window.events, policy) for window in windows if window.is_fresh(now)}
    for rule in RULES:
        spent, recent = burns.get(rule.window_s), burns.get(rule.while_s)
        if spent is not None and recent is not None and spent >= rule.spent_at and recent >= policy.relax_below:
            return Strain(window_s=rule.window_s, burn_rate=spent)
    return None
