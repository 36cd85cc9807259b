"""Executing what was approved, once.

    approved ──claim──> held under a lease ──finish──> executed
                ^              │
                └── lease ran out, or the target was away and the tool knows keys

A worker that dies leaves its claim behind; `recover` takes it over and calls the tool again. A tool with an
`idempotency_key` argument gets the action's id there, so the second call is the same action and not another one. Only
the holder of the claim may write the outcome (`butlers.storage.claims`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pydantic_core import from_json, to_json

from butlers.butler.approvals.approvals import Approvals
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.contracts.envelope import holds_nul
from butlers.errors import ClassifiedError, InternalError, LeaseLost
from butlers.operations.operation import Role
from butlers.reliability.retry import RetryAfter, RetryPolicy, next_retry
from butlers.storage.claims import Claim, Claims, ClaimTable, LeasePolicy
from butlers.telemetry import get_logger

log = get_logger("butlers.approvals")

KEY = "idempotency_key"

# An approved action that waits for its next attempt has a lease that no worker holds, and is taken over when it ends.
ACTION_CLAIMS = ClaimTable(
    name="pending_actions",
    key={"id": "uuid"},
    state="status",
    held="approved",
    waiting="work.status = 'approved' AND work.lease_expires_at IS NULL",
    returned=("tool_name", "tool_args", "requested_by", "requested_role", "attempts"),
    updated=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPolicy:
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    # Also the limit of attempts that never finished, after which the action counts as poisonous.
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(max_attempts=5, initial_delay=5.0, max_delay=300.0))
    poll_s: float = 0.1  # how often to look whether another process is done
    batch: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAction:
    """An approved action that this process may execute now."""

    action_id: UUID
    claim: Claim
    tool: Tool
    arguments: Mapping[str, Any]
    caller: Caller
    attempts: int


class ActionRunner:
    """Calls the tools behind the gate."""

    def __init__(self, *, approvals: Approvals, owner: str, policy: RunnerPolicy = RunnerPolicy()) -> None:
        self._approvals = approvals
        self._database = approvals.database
        self._queries = approvals.queries
        self._clock = approvals.clock
        self._owner = owner  # this process, for the record
        self._policy = policy
        self._claims = Claims(
            ACTION_CLAIMS,
            database=approvals.database,
            schema=approvals.schema,
            clock=approvals.clock,
            new_id=approvals.new_id,
        )
        self._tools: dict[str, Tool] = {}
        self._running: dict[UUID, asyncio.Task[None]] = {}
        self._draining = False

    def take(self, tool: Tool) -> None:
        """Be the one who calls this tool when its action is approved."""
        self._tools[tool.name] = tool

    async def execute(self, action_id: UUID, *, wait_s: float) -> dict[str, Any]:
        """Start it if it is ours to execute, and show it: with its result when that is there within `wait_s`."""
        shown = await self._approvals.actions.show(action_id)
        if shown["tool_name"] not in self._tools:
            return shown
        try:
            async with asyncio.timeout(wait_s):
                await self._settled(action_id)
        except TimeoutError:
            log.info("action takes longer than its approver waits", action_id=action_id)
        return await self._approvals.actions.show(action_id)

    async def recover(self) -> int:
        """Start what is approved and nobody holds. Called at start and regularly."""
        if self._draining or not self._tools:
            return 0
        unexecuted = self._claims.fill(self._queries.unexecuted_actions)
        rows = await self._database.fetch(unexecuted, self._clock.now(), sorted(self._tools), self._policy.batch)
        started = [await self._start(row["id"]) for row in rows if row["id"] not in self._running]
        return sum(task is not None for task in started)

    async def drain(self, timeout_s: float) -> None:
        """Start nothing more and let running calls finish; what does not is taken over later by lease."""
        self._draining = True
        if tasks := list(self._running.values()):
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()

    async def _settled(self, action_id: UUID) -> None:
        while True:
            task = self._running.get(action_id) or await self._start(action_id)
            if task is not None:
                # The call outlives an impatient approver: its outcome is stored.
                await asyncio.wait([task])
            shown = await self._approvals.actions.show(action_id)
            if shown["status"] != "approved" or shown["result"] is not None:
                return
            await self._clock.sleep(self._policy.poll_s)

    async def _start(self, action_id: UUID) -> asyncio.Task[None] | None:
        action = None if self._draining else await self._claim(action_id)
        if action is None:
            return None
        task = asyncio.create_task(self._run(action), name=f"action {action_id}")
        self._running[action_id] = task
        task.add_done_callback(lambda _: self._running.pop(action_id, None))
        return task

    async def _claim(self, action_id: UUID) -> ClaimedAction | None:
        held = await self._claims.claim((action_id,), worker=self._owner, lease_s=self._policy.lease.ttl)
        if held is None:
            return None
        claim, row = held
        tool = self._tools[row["tool_name"]]
        return ClaimedAction(
            action_id=action_id,
            claim=claim,
            tool=tool,
            arguments=with_key(tool, row["tool_args"], action_id),
            caller=Caller(name=row["requested_by"], role=Role(row["requested_role"] or Role.BUTLER)),
            attempts=row["attempts"],
        )

    async def _run(self, action: ClaimedAction) -> None:
        renewal = asyncio.create_task(self._keep_renewed(action, asyncio.current_task()))
        try:
            await self._finish(action, await self._outcome_of(action))
        except LeaseLost:
            log.warning("claim was taken over", action_id=action.action_id)
        except ClassifiedError as error:  # the database is away: the lease runs out, and the action is taken over
            log.warning(
                "outcome could not be stored", action_id=action.action_id, error=error, error_class=error.error_class
            )
        finally:
            renewal.cancel()

    async def _outcome_of(self, action: ClaimedAction) -> dict[str, Any] | ClassifiedError:
        limit = self._policy.retry.attempts_allowed
        if action.attempts > limit:
            return InternalError(f"gave up after {limit} attempts that never finished")
        try:
            return await action.tool.call(action.caller, dict(action.arguments))
        except ClassifiedError as error:
            return error
        except Exception as error:
            log.error("approved action failed", error=error, action_id=action.action_id, tool=action.tool.name)
            return InternalError(f"{action.tool.name} failed unexpectedly ({type(error).__name__})")

    async def _finish(self, action: ClaimedAction, outcome: dict[str, Any] | ClassifiedError) -> None:
        delay = self._patience(action, outcome)
        now = self._clock.now()
        failed = isinstance(outcome, ClassifiedError)
        stored = {"error": outcome.describe()} if isinstance(outcome, ClassifiedError) else {"result": outcome}
        done = {"status": "executed", "executed_at": now} if delay is None else {}
        later = {"lease_expires_at": now + timedelta(seconds=delay)} if delay is not None else {}
        async with self._database.transaction() as connection:
            values = {"result": storable(stored), **done, **later}
            await self._claims.settle(action.claim, values, connection=connection)
            await self._approvals.journal.record(
                connection,
                "execution_failed" if failed else "executed",
                at=now,
                actor=self._owner,
                tool_name=action.tool.name,
                action_id=action.action_id,
                attempt=action.attempts,
                error_class=outcome.error_class.value if isinstance(outcome, ClassifiedError) else None,
                retry_after_seconds=delay,
            )

    def _patience(self, action: ClaimedAction, outcome: dict[str, Any] | ClassifiedError) -> float | None:
        """Seconds until the next attempt; None when the outcome stands."""
        if not isinstance(outcome, ClassifiedError) or not knows_keys(action.tool):
            return None
        decision = next_retry(
            self._policy.retry,
            attempt=action.attempts,
            retryable=outcome.retryable,
            retry_after=outcome.retry_after,
            random=0.0,
        )
        return decision.delay if isinstance(decision, RetryAfter) else None

    async def _keep_renewed(self, action: ClaimedAction, worker: asyncio.Task[Any] | None) -> None:
        lease = self._policy.lease
        while True:
            await self._clock.sleep(lease.renew_every)
            if not await self._still_held(action) and worker is not None:
                worker.cancel()

    async def _still_held(self, action: ClaimedAction) -> bool:
        try:
            return bool(await self._claims.renew([action.claim], lease_s=self._policy.lease.ttl))
        except ClassifiedError:  # the database is away: no other worker can take it over either
            return True


def knows_keys(tool: Tool) -> bool:
    return KEY in tool.arguments.model_fields


def with_key(tool: Tool, arguments: Mapping[str, Any], action_id: UUID) -> dict[str, Any]:
    """The stored arguments; a tool that knows keys gets the action's, so that a repeated call is the same action."""
    key = {KEY: str(action_id)} if knows_keys(tool) and arguments.get(KEY) is None else {}
    return dict(arguments) | key


def storable(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome as PostgreSQL takes it; the action is done, whatever its answer looks like."""
    try:
        document: dict[str, Any] = from_json(to_json(outcome))
    except ValueError:
        return {"result": {"unreadable": True}}
    return {"result": {"unreadable": True}} if holds_nul(document) else document
