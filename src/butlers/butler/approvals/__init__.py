"""Calls that wait for a person.

                         a rule allows it
    gated call ──request──────────────────────────> Allowed: goes on at once, one use of the rule is spent
        │ no rule does
        v
     pending ──approve──> approved ──execute──> executed   (with the result, or with what went wrong)
        │ └────reject───> rejected
        └──expires_at───> expired

Invariants:
- a request runs in its caller's transaction: what waits and the action that holds it are stored together or not at all;
- a decision is taken once, under the action's row lock, and commits together with what it releases (`Hooks`);
- a rule is never used more often than it may be, however many ask at the same time;
- what happened stands in `approval_events`, which only grows.
"""

from __future__ import annotations

from butlers.butler.approvals.approvals import Approvals
from butlers.butler.approvals.runner import ActionRunner, RunnerPolicy
from butlers.butler.approvals.tools import ApprovalTools, gate_tools
from butlers.butler.approvals.values import Allowed, Hooks, MustWait, PendingAction, Wanted
from butlers.storage.migrations import MigrationSet

__all__ = [
    "ActionRunner",
    "Allowed",
    "ApprovalTools",
    "Approvals",
    "Hooks",
    "MustWait",
    "PendingAction",
    "RunnerPolicy",
    "Wanted",
    "gate_tools",
    "migrations",
]


def migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package="butlers.butler.approvals", component="approvals")
