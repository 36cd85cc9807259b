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

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.contracts.approval_state import Status
from butlers.contracts.envelope import invalid
from butlers.errors import ValidationError
from butlers.storage.database import Executor, Record
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries

EXPIRY = timedelta(hours=48)  # how long an action waits for a person

NO_ACTION = "no such action"
NO_RULE = "no such rule"


def migrations(schema: str) -> MigrationSet:
    return MigrationSet(schema=schema, package="butlers.butler.approvals", component="approvals")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedCall:
    """A gated call that a caller asks for."""

    tool_name: str
    tool_args: Mapping[str, Any]
    summary: str
    requested_by: str
    key: str  # a repeat of it is the same request
    subject_id: UUID | None = None  # what waits for the decision
    requested_role: str | None = None
    not_after: datetime | None = None  # when a decision comes too late


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """A rule lets it pass."""

    rule_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MustWait:
    """A person has to decide, or has decided already when the request is a repeat."""

    action_id: UUID | None  # None: only a preview, nothing is stored
    expires_at: datetime
    created: bool  # false: an earlier request of the same key made it
    status: Status = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAction:
    """One gated call and what became of it."""

    id: UUID
    tool_name: str
    tool_args: Mapping[str, Any]
    summary: str
    status: Status
    needs_person: bool
    subject_id: UUID | None
    requested_by: str
    requested_role: str | None
    requested_at: datetime
    expires_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    decision_reason: str | None = None
    rule_id: UUID | None = None
    result: Mapping[str, Any] | None = None
    executed_at: datetime | None = None
    attempts: int = 0

    @classmethod
    def of(cls, row: Record) -> PendingAction:
        return cls(**dict(row))


async def _nothing(_connection: Executor, _action: PendingAction) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a decision moves, in the decision's own transaction; whatever they raise undoes the decision.

    `on_approved` returns what came of it when the release carries it out, or None when it is still to happen.
    `on_closed` is called when nothing will come of the action: rejected or expired.
    """

    on_approved: Callable[[Executor, PendingAction], Awaitable[dict[str, Any] | None]] = _nothing
    on_closed: Callable[[Executor, PendingAction], Awaitable[None]] = _nothing


def refusal(action: PendingAction, now: datetime) -> ValidationError | None:
    """Why no decision can be taken about it any more; None when one can."""
    if action.status != "pending":
        by = f" by {action.decided_by}" if action.decided_by else ""
        return invalid("action_id", f"the action is not pending: it is {action.status}{by}")
    if action.expires_at <= now:
        return invalid("action_id", f"the action is not pending: it expired at {action.expires_at.isoformat()}")
    return None


class Journal:
    def __init__(self, *, queries: Queries, new_id: Callable[[], UUID]) -> None:
        self._queries = queries
        self._new_id = new_id

    async def record(
        self,
        connection: Executor,
        event: str,
        *,
        at: datetime,
        actor: str,
        tool_name: str,
        action_id: UUID | None = None,
        rule_id: UUID | None = None,
        **details: Any,
    ) -> None:
        """Write one line, in the transaction of what it tells about."""
        known = {name: value for name, value in details.items() if value is not None}
        await connection.execute(
            self._queries.record_event, self._new_id(), at, event, action_id, rule_id, actor, tool_name, known
        )
