"""The line that a run against Switchboard ends with, and what is told beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.chaos.assessment import percentile
from benchmarks.chaos.report import Plan, say
from benchmarks.chaos.switchboard.assessment import Assessment, Kill, Row
from benchmarks.chaos.switchboard.callers import Callers

TOLD = 10


def make_report(
    plan: Plan,
    callers: Callers,
    kills: Sequence[Kill],
    rows: Sequence[Row],
    assessment: Assessment,
    *,
    faults: Mapping[str, int],
    settled_after_s: float | None,
    duration_s: float,
) -> dict[str, Any]:
    restarts = [kill.healthy_after_s for kill in kills if kill.healthy_after_s is not None]
    goals = {
        "all_accepted": callers.handed_in == plan.messages and not callers.refused,
        "all_killed": len(kills) == plan.kills,
        "lost": not assessment.lost,
        "processed_twice": not assessment.twice,
        "stuck": not assessment.stuck and settled_after_s is not None,
        "out_of_order": not assessment.out_of_order,
        "unexplained": not assessment.unexplained,
    }
    _explain(assessment, callers)
    return {
        "chaos": "switchboard",
        "seed": plan.seed,
        "messages": callers.handed_in,
        "kills": len(kills),
        "lost": len(assessment.lost),
        "processed_twice": len(assessment.twice),
        "stuck": len(assessment.stuck),
        "out_of_order": len(assessment.out_of_order),
        "overtaken": len(assessment.overtaken),
        "parsed": sum(row.state == "parsed" for row in rows),
        "errored": len(assessment.errored),
        "unexplained": len(assessment.unexplained),
        "refused": len(callers.refused),
        "several_parts": sum(len(row.parts) > 1 for row in rows),
        "recoveries": len(assessment.recoveries),
        "recovery_p50_s": _rounded(percentile(assessment.recoveries, 0.5)),
        "recovery_p99_s": _rounded(percentile(assessment.recoveries, 0.99)),
        "recovery_max_s": _rounded(max(assessment.recoveries, default=None)),
        "restart_p50_s": _rounded(percentile(restarts, 0.5)),
        "restart_max_s": _rounded(max(restarts, default=None)),
        "settled_after_s": _rounded(settled_after_s),
        "submissions": callers.submissions,
        "repeats": callers.repeats,
        "recognised": callers.recognised,
        "unanswered": callers.unanswered,
        "put_off": callers.put_off,
        "faults": dict(sorted(faults.items())),
        "duration_s": round(duration_s, 1),
        "goals": goals,
        "passed": all(goals.values()),
    }


def _explain(assessment: Assessment, callers: Callers) -> None:
    for name in ("lost", "stuck", "unexplained", "out_of_order", "overtaken"):
        if numbers := getattr(assessment, name):
            say(f"{name}: messages {numbers[:20]}")
    for number, how in list(assessment.twice.items())[:TOLD]:
        say(f"processed twice: message {number}: {how}")
    for why, count in Counter(assessment.errored.values()).most_common(TOLD):
        say(f"errored: {count} messages: {why}")
    for number, error in list(callers.refused.items())[:TOLD]:
        say(f"refused: message {number}: {error}")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
