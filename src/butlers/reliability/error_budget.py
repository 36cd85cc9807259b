"""How fast the error budget is spent, and how strictly a target is used because of that.

An objective of 99 % leaves a budget of 1 % failures. The burn rate is the share of failures over that budget: 1 spends
exactly what is allowed, 6 spends it six times too fast.

                 both windows burn at `tighten_at` or more
        +--------+ ------------------------------------> +-------+
        | normal |                                       | tight |
        +--------+ <------------------------------------ +-------+
                 the short window burns below `relax_below`,
                 or holds too few events to say anything

Two windows, because one alone is wrong either way: a short one alone takes fright at every hiccup, a long one alone
notices late and, worse, keeps remembering a fault that is over. So tightening needs both, and relaxing asks the short
one only.

Invariants
- two changes are at least `hold_s` apart, whatever is measured in between;
- the same measurements over and over change the mode once at most, because `relax_below` is below `tighten_at`;
- not knowing tightens nothing, and keeps nothing tight for longer than `hold_s`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from butlers.reliability.retry import RetryPolicy

RETRY_RULE: Final = "error_budget_retry"  # the name under which a record shows that `tightened` had a say
ADMISSION_RULE: Final = "error_budget_admission"  # and `ADMISSION_FACTORS`


class BudgetMode(StrEnum):
    NORMAL = "normal"
    TIGHT = "tight"


ADMISSION_FACTORS: Final = {BudgetMode.NORMAL: 1.0, BudgetMode.TIGHT: 0.5}  # the part of a channel's budget to use


class Reason(StrEnum):
    """Why a mode was chosen or kept."""

    WITHIN_BUDGET = "within_budget"  # normal, and no cause to change
    BUDGET_BURNING = "budget_burning"  # becomes tight
    STILL_BURNING = "still_burning"  # stays tight
    RECOVERED = "recovered"  # becomes normal
    TOO_FEW_EVENTS = "too_few_events"  # nothing to decide by: stays normal, or becomes normal
    HELD = "held"  # would change, or cannot say, but the mode is too young to be left


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPolicy:
    objective: float = 0.99  # share of events that should be good
    short_window_s: float = 300.0
    long_window_s: float = 3600.0
    tighten_at: float = 6.0  # burn rate of both windows
    relax_below: float = 1.0  # burn rate of the short window
    min_events: int = 20  # fewer in a window say nothing
    hold_s: float = 120.0  # seconds a mode is kept at least

    def __post_init__(self) -> None:
        for holds, message in (
            (0 < self.objective < 1, "the objective must lie between 0 and 1"),
            (0 < self.short_window_s <= self.long_window_s, "the short window must not be longer than the long one"),
            (0 < self.relax_below < self.tighten_at, "relax_below must be positive and below tighten_at"),
            (self.min_events >= 1, "min_events must be at least 1"),
            (self.hold_s >= 0, "hold_s must not be negative"),
        ):
            if not holds:
                raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What happened in a time range; events that are nobody's merit or fault are not in it."""

    good: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    mode: BudgetMode
    burn_rate: float | None  # of the short window; None: too few events
    reason: Reason


def burn_rate(window: Window, policy: BudgetPolicy) -> float | None:
    """Budget spent over budget allowed, or None when there is too little to decide by."""
    events = window.good + window.bad
    if events < policy.min_events:
        return None
    # 1 - 0.99 is a little more than 0.01: unrounded, six failures in a hundred would burn at 5.999999999999995.
    return round(window.bad / events / (1 - policy.objective), 6)


def assess(
    short: Window,
    long: Window,
    policy: BudgetPolicy,
    *,
    mode: BudgetMode,  # the present one
    since: datetime | None,  # since when; None: it was never another
    now: datetime,
) -> Assessment:
    """The mode from now on."""
    recent, longer = burn_rate(short, policy), burn_rate(long, policy)
    if recent is None:
        new, reason = BudgetMode.NORMAL, Reason.TOO_FEW_EVENTS
    elif mode is BudgetMode.TIGHT and recent < policy.relax_below:
        new, reason = BudgetMode.NORMAL, Reason.RECOVERED
    elif mode is BudgetMode.TIGHT:
        new, reason = BudgetMode.TIGHT, Reason.STILL_BURNING
    elif longer is not None and min(recent, longer) >= policy.tighten_at:
        new, reason = BudgetMode.TIGHT, Reason.BUDGET_BURNING
    else:
        new, reason = BudgetMode.NORMAL, Reason.WITHIN_BUDGET
    # Both ways: a clock that was set back by days must not hold a mode for days.
    if new is not mode and since is not None and abs((now - since).total_seconds()) < policy.hold_s:
        new, reason = mode, Reason.HELD
    return Assessment(mode=new, burn_rate=recent, reason=reason)


def tightened(policy: RetryPolicy, mode: BudgetMode) -> RetryPolicy:
    """The retry policy to use: in tight mode one attempt fewer, and twice the patience before each."""
    if mode is BudgetMode.NORMAL:
        return policy
    return replace(
        policy,
        max_attempts=max(1, policy.attempts_allowed - 1),
        initial_delay=policy.initial_delay * 2,
        schedule=tuple(delay * 2 for delay in policy.schedule),
    )
