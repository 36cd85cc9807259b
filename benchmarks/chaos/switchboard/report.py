"""The line that a run against Switchboard ends with, and what is told beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.chaos.report import Plan, say
from benchmarks.chaos.switchboard.callers import Callers
from benchmarks.chaos.switchboard.verdict import Kill, Row, Verdict
from benchmarks.chaos.verdict import percentile

TOLD = 10


def make_report(
    plan: Plan,
    callers: Callers,
    kills: Sequence[Kill],
    rows: Sequence[Row],
    verdict: Verdict,
    *,
    faults: Mapping[str, int],
    settled_after_s: float | None,
    duration_s: float,
) -> dict[str, Any]:
    restarts = [kill.healthy_after_s for kill in kills if kill.healthy_after_s is not None]
    goals = {
        "all_accepted": callers.handed_in == plan.messages and not callers.refused,
        "all_killed": len(kills) == plan.kills,
        "lost": not verdict.lost,
        "processed_twice": not verdict.twice,
        "stuck": not verdict.stuck and settled_after_s is not None,
        "out_of_order": not verdict.out_of_order,
        "unexplained": not verdict.unexplained,
    }
    _explain(verdict, callers)
    return {
        "chaos": "switchboard",
        "seed": plan.seed,
        "messages": callers.handed_in,
        "kills": len(kills),
        "lost": len(verdict.lost),
        "processed_twice": len(verdict.twice),
        "stuck": len(verdict.stuck),
        "out_of_order": len(verdict.out_of_order),
        "overtaken": len(verdict.overtaken),
        "parsed": sum(row.state == "parsed" for row in rows),
        "errored": len(verdict.errored),
        "unexplained": len(verdict.unexplained),
        "refused": len(callers.refused),
        "several_parts": sum(len(row.parts) > 1 for row in rows),
        "recoveries": len(verdict.recoveries),
        "recovery_p50_s": _rounded(percentile(verdict.recoveries, 0.5)),
        "recovery_p99_s": _rounded(percentile(verdict.recoveries, 0.99)),
        "recovery_max_s": _rounded(max(verdict.recoveries, default=None)),
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


def _explain(verdict: Verdict, callers: Callers) -> None:
    for name in ("lost", "stuck", "unexplained", "out_of_order", "overtaken"):
        if numbers := getattr(verdict, name):
            say(f"{name}: messages {numbers[:20]}")
    for number, how in list(verdict.twice.items())[:TOLD]:
        say(f"processed twice: message {number}: {how}")
    for why, count in Counter(verdict.errored.values()).most_common(TOLD):
        say(f"errored: {count} messages: {why}")
    for number, error in list(callers.refused.items())[:TOLD]:
        say(f"refused: message {number}: {error}")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
