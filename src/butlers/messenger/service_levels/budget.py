"""Windows and stances per channel: what is known, and what is to be written. Decisions only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from butlers.messenger.service_levels.long_budget import LONG_BUDGET_SPENT, Strain
from butlers.reliability.error_budget import Assessment, BudgetPolicy, Stance, Window, assess

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

    stance: Stance = Stance.NORMAL
    burn_rate: float | None = None
    since: datetime | None = None
    reason: str | None = None  # why; None: it was never another
    state: str = "closed"  # of the circuit

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Standing:
        return cls(
            stance=Stance(row["stance"]),
            burn_rate=row["burn_rate"],
            since=row["stance_since"],
            reason=row["stance_reason"],
            state=row["state"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One channel, judged."""

    channel: str  # telegram.bot
    before: Standing
    assessment: Assessment
    since: datetime | None  # when the stance that now holds was taken
    strain: Strain | None = None  # set where the long budget alone makes it tight

    @property
    def changes_stance(self) -> bool:
        return self.assessment.stance is not self.before.stance

    @property
    def is_news(self) -> bool:
        """Whether there is anything to write."""
        moved = _moved(self.before.burn_rate, self.assessment.burn_rate)
        return self.changes_stance or moved or self.stance_reason != self.before.reason

    @property
    def reason(self) -> str:
        return LONG_BUDGET_SPENT if self.strain is not None else self.assessment.reason.value

    @property
    def stance_reason(self) -> str | None:
        """Why the stance was taken; another reason takes its place only where the long budget comes in or goes."""
        if self.changes_stance or self.strain is not None or self.before.reason == LONG_BUDGET_SPENT:
            return self.reason
        return self.before.reason


def judge_channel(
    channel: str,
    windows: Windows,
    standing: Standing,
    policy: BudgetPolicy,
    now: datetime,
    *,
    strain: Strain | None = None,  # what the long budget says
) -> Judgement:
    assessment = assess(windows.short, windows.long, policy, stance=standing.stance, since=standing.since, now=now)
    decides = strain if strain is not None and _is_decided_by_strain(assessment, standing, policy, now) else None
    if decides is not None:
        assessment = replace(assessment, stance=Stance.TIGHT)
    since = standing.since if assessment.stance is standing.stance else now
    return Judgement(channel=channel, before=standing, assessment=assessment, since=since, strain=decides)


def _is_decided_by_strain(assessment: Assessment, standing: Standing, policy: BudgetPolicy, now: datetime) -> bool:
    """A spent long budget keeps tight, or makes tight what was normal for its time; what is tight anyway it leaves."""
    if assessment.stance is Stance.TIGHT:
        return False
    held = standing.since is not None and abs((now - standing.since).total_seconds()) < policy.hold_s
    return standing.stance is Stance.TIGHT or not held


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) >= BURN_MOVED
