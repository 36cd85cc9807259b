"""Windows and stances per channel: what is known, and what is to be written. Decisions only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

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
    state: str = "closed"  # of the circuit

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Standing:
        return cls(
            stance=Stance(row["stance"]), burn_rate=row["burn_rate"], since=row["stance_since"], state=row["state"]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One channel, judged."""

    channel: str  # telegram.bot
    before: Standing
    assessment: Assessment
    since: datetime | None  # when the stance that now holds was taken

    @property
    def changes_stance(self) -> bool:
        return self.assessment.stance is not self.before.stance

    @property
    def is_news(self) -> bool:
        """Whether there is anything to write."""
        return self.changes_stance or _moved(self.before.burn_rate, self.assessment.burn_rate)


def judge_channel(channel: str, windows: Windows, standing: Standing, policy: BudgetPolicy, now: datetime) -> Judgement:
    assessment = assess(windows.short, windows.long, policy, stance=standing.stance, since=standing.since, now=now)
    since = standing.since if assessment.stance is standing.stance else now
    return Judgement(channel=channel, before=standing, assessment=assessment, since=since)


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) >= BURN_MOVED
