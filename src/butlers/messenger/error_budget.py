"""Error budgets per channel: windows of minutes that make a channel stricter, and windows of hours and days. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from butlers.reliability.error_budget import Assessment, BudgetMode, BudgetPolicy, Window, assess, burn_rate

LONG_BUDGET_SPENT: Final = "long_budget_spent"  # the reason for a mode that was taken or is kept because of it
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


BURN_MOVED = 0.01  # a smaller step of the burn rate is not worth a write


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The recent past and the longer view of one channel."""

    short: Window = field(default_factory=Window)
    long: Window = field(default_factory=Window)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Windows:
        return cls(
            short=Window(good=row["short_good"], bad=row["short_bad"]),
            long=Window(good=row["long_good"], bad=row["long_bad"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the table says about one channel."""

    mode: BudgetMode = BudgetMode.NORMAL
    burn_rate: float | None = None
    since: datetime | None = None
    reason: str | None = None  # why; None: it was never another
    state: str = "closed"  # of the circuit

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Standing:
        return cls(
            mode=BudgetMode(row["stance"]),
            burn_rate=row["burn_rate"],
            since=row["stance_since"],
            reason=row["stance_reason"],
            state=row["state"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeDecision:
    """What was decided about one channel."""

    channel: str  # telegram.bot
    before: Standing
    assessment: Assessment
    since: datetime | None  # when the mode that now holds was taken
    strain: Strain | None = None  # set where the long budget alone makes it tight

    @property
    def changes_mode(self) -> bool:
        return self.assessment.mode is not self.before.mode

    @property
    def is_news(self) -> bool:
        """Whether there is anything to write."""
        moved = _moved(self.before.burn_rate, self.assessment.burn_rate)
        return self.changes_mode or moved or self.mode_reason != self.before.reason

    @property
    def reason(self) -> str:
        return LONG_BUDGET_SPENT if self.strain is not None else self.assessment.reason.value

    @property
    def mode_reason(self) -> str | None:
        """Why the mode was taken; another reason takes its place only where the long budget comes in or goes."""
        if self.changes_mode or self.strain is not None or self.before.reason == LONG_BUDGET_SPENT:
            return self.reason
        return self.before.reason


def decide_mode(
    channel: str,
    windows: Windows,
    standing: Standing,
    policy: BudgetPolicy,
    now: datetime,
    *,
    strain: Strain | None = None,  # what the long budget says
) -> ModeDecision:
    assessment = assess(windows.short, windows.long, policy, mode=standing.mode, since=standing.since, now=now)
    decides = strain if strain is not None and _is_decided_by_strain(assessment, standing, policy, now) else None
    if decides is not None:
        assessment = replace(assessment, mode=BudgetMode.TIGHT)
    since = standing.since if assessment.mode is standing.mode else now
    return ModeDecision(channel=channel, before=standing, assessment=assessment, since=since, strain=decides)


def _is_decided_by_strain(assessment: Assessment, standing: Standing, policy: BudgetPolicy, now: datetime) -> bool:
    """A spent long budget keeps tight, or makes tight what was normal for its time; what is tight anyway it leaves."""
    if assessment.mode is BudgetMode.TIGHT:
        return False
    held = standing.since is not None and abs((now - standing.since).total_seconds()) < policy.hold_s
    return standing.mode is BudgetMode.TIGHT or not held


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) >= BURN_MOVED
