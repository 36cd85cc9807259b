"""The line that a run ends with, and the words on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from benchmarks.chaos.assessment import RECOVERY_GOAL_S, Assessment, Kill, percentile
from benchmarks.chaos.caller import Caller

SLOWEST = 5  # recoveries that are told in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    kills: int
    messages: int
    seed: int
    settings: Sequence[str] = ()  # key=value, for the one that is killed


def make_report(
    plan: Plan, caller: Caller, kills: Sequence[Kill], assessment: Assessment, *, faults: int, duration_s: float
) -> dict[str, Any]:
    recoveries = [recovery.seconds for recovery in assessment.recoveries]
    p50, p99 = percentile(recoveries, 0.5), percentile(recoveries, 0.99)
    restarts = [kill.healthy_after_s for kill in kills if kill.healthy_after_s is not None]
    counts = {
        "messages": len(caller.accepted),
        "kills": len(kills),
        "lost": len(assessment.lost),
        "duplicates": len(assessment.duplicates),
        "duplicates_uncertain": len(assessment.duplicates_uncertain),
        "stuck": len(assessment.stuck),
        "uncertain": len(assessment.uncertain),
        "uncertain_surfaced": len(assessment.uncertain_surfaced),
        "false": len(assessment.false),
        "refused": len(caller.refused),
    }
    goals = {
        "all_accepted": len(caller.accepted) == plan.messages and not caller.refused,
        "all_killed": len(kills) == plan.kills,
        "lost": not assessment.lost and not assessment.false,
        "duplicates": not assessment.duplicates,
        "stuck": not assessment.stuck,
        "uncertain_surfaced": len(assessment.uncertain_surfaced) == len(assessment.uncertain),
        "recovery_p99_s": p99 is None or p99 < RECOVERY_GOAL_S,
    }
    _explain(assessment, caller)
    _explain_slow(assessment, kills)
    return {
        "chaos": "messenger",
        "seed": plan.seed,
        **counts,
        "recovery_p50_s": _rounded(p50),
        "recovery_p99_s": _rounded(p99),
        "recovery_max_s": _rounded(max(recoveries, default=None)),
        "recoveries": len(recoveries),
        "restart_p50_s": _rounded(percentile(restarts, 0.5)),
        "restart_max_s": _rounded(max(restarts, default=None)),
        "submissions": caller.submissions,
        "unanswered": caller.unanswered,
        "put_off": caller.put_off,
        "faults": faults,
        "duration_s": round(duration_s, 1),
        "goals": goals,
        "passed": all(goals.values()),
    }


def _explain(assessment: Assessment, caller: Caller) -> None:
    forgotten = sorted(set(assessment.uncertain) - set(assessment.uncertain_surfaced))
    told = {name: getattr(assessment, name) for name in ("lost", "false", "duplicates", "stuck")}
    for name, numbers in (told | {"in doubt and not surfaced": forgotten}).items():
        if numbers:
            say(f"{name}: messages {numbers[:20]}")
    for number, error in list(caller.refused.items())[:5]:
        say(f"refused: message {number}: {error}")


def _explain_slow(assessment: Assessment, kills: Sequence[Kill]) -> None:
    """The slowest recoveries, attempt by attempt, in seconds from the kill."""
    for recovery in sorted(assessment.recoveries, key=lambda one: -one.seconds)[:SLOWEST]:
        at, row = kills[recovery.kill].at, recovery.row
        attempts = [
            f"{_since(at, attempt.started_at)}..{_since(at, attempt.completed_at)} {attempt.certainty}"
            for attempt in row.attempts
        ]
        healthy = kills[recovery.kill].healthy_after_s
        say(
            f"{recovery.seconds:.1f} s after kill {recovery.kill + 1} (healthy after {_rounded(healthy)}): "
            f"{row.channel} message {row.number}, {row.status}, attempts {attempts}"
        )


def _since(at: datetime, moment: datetime | None) -> str:
    return "?" if moment is None else f"{(moment - at).total_seconds():+.2f}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def say(words: str) -> None:
    print(f"chaos: {words}", file=sys.stderr, flush=True)
