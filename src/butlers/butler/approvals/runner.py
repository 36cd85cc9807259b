"""Executing what was approved, once.

    approved ──claim──> held under a lease ──finish──> executed
                ^              │
                └── lease ran out, or the target was away and the tool knows keys

A worker that dies leaves its claim behind; `recover` takes it over and calls the tool again. A tool with an
`idempotency_key` argument gets the action's id there, so the second call is the same deed and not another one. Only
the holder of the fencing token may write the outcome.
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
from butlers.butler.identity import Caller, Role
from butlers.butler.surface import Tool
from butlers.contracts.envelope import holds_nul
from butlers.errors import ClassifiedError, InternalError
from butlers.reliability.lease import LeasePolicy
from butlers.reliability.retry import RetryAfter, RetryPolicy, next_retry
from butlers.telemetry import get_logger

log = get_logger("butlers.approvals")

KEY = "idempotency_key"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPolicy:
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    # Also the limit of attempts that never finished, after which the action counts as poisonous.
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(max_attempts=5, initial_delay=5.0, max_delay=300.0))
    poll_s: float = 0.1  # how often to look whether another process is done
    batch: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    action_id: UUID
    token: UUID
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
        rows = await self._database.fetch(
            self._queries.unexecuted_actions, sorted(self._tools), self._clock.now(), self._policy.batch
        )
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
        claim = None if self._draining else await self._claim(action_id)
        if claim is None:
            return None
        task = asyncio.create_task(self._run(claim), name=f"action {action_id}")
        self._running[action_id] = task
        task.add_done_callback(lambda _: self._running.pop(action_id, None))
        return task

    async def _claim(self, action_id: UUID) -> Claim | None:
        token, now = self._approvals.new_id(), self._clock.now()
        expires = now + timedelta(seconds=self._policy.lease.ttl)
        row = await self._database.fetchrow(self._queries.claim_action, action_id, token, self._owner, expires, now)
        if row is None:
            return None
        tool = self._tools[row["tool_name"]]
        return Claim(
            action_id=action_id,
            token=token,
            tool=tool,
            arguments=with_key(tool, row["tool_args"], action_id),
            caller=Caller(name=row["requested_by"], role=Role(row["requested_role"] or Role.BUTLER)),
            attempts=row["attempts"],
        )

    async def _run(self, claim: Claim) -> None:
        renewal = asyncio.create_task(self._keep_renewed(claim, asyncio.current_task()))
        try:
            await self._finish(claim, await self._outcome_of(claim))
        except ClassifiedError as error:  # the database is away: the lease runs out, and the action is taken over
            log.warning(
                "outcome could not be stored", action_id=claim.action_id, error=error, error_class=error.error_class
            )
        finally:
            renewal.cancel()

    async def _outcome_of(self, claim: Claim) -> dict[str, Any] | ClassifiedError:
        limit = self._policy.retry.attempts_allowed
        if claim.attempts > limit:
            return InternalError(f"gave up after {limit} attempts that never finished")
        try:
            return await claim.tool.call(claim.caller, dict(claim.arguments))
        except ClassifiedError as error:
            return error
        except Exception as error:
            log.error("approved action failed", error=error, action_id=claim.action_id, tool=claim.tool.name)
            return InternalError(f"{claim.tool.name} failed unexpectedly ({type(error).__name__})")

    async def _finish(self, claim: Claim, outcome: dict[str, Any] | ClassifiedError) -> None:
        delay = self._patience(claim, outcome)
        now = self._clock.now()
        failed = isinstance(outcome, ClassifiedError)
        stored = {"error": outcome.describe()} if isinstance(outcome, ClassifiedError) else {"result": outcome}
        async with self._database.transaction() as connection:
            if delay is None:
                written = await connection.fetchval(
                    self._queries.finish_claim, claim.action_id, claim.token, storable(stored), now
                )
            else:
                later = now + timedelta(seconds=delay)
                written = await connection.fetchval(
                    self._queries.postpone_claim, claim.action_id, claim.token, storable(stored), later
                )
            if not written:
                log.warning("claim was taken over", action_id=claim.action_id)
                return
            await self._approvals.journal.record(
                connection,
                "execution_failed" if failed else "executed",
                at=now,
                actor=self._owner,
                tool_name=claim.tool.name,
                action_id=claim.action_id,
                attempt=claim.attempts,
                error_class=outcome.error_class.value if isinstance(outcome, ClassifiedError) else None,
                retry_after_seconds=delay,
            )

    def _patience(self, claim: Claim, outcome: dict[str, Any] | ClassifiedError) -> float | None:
        """Seconds until the next attempt; None when the outcome stands."""
        if not isinstance(outcome, ClassifiedError) or not knows_keys(claim.tool):
            return None
        decision = next_retry(
            self._policy.retry,
            attempt=claim.attempts,
            retryable=outcome.retryable,
            retry_after=outcome.retry_after,
            random=0.0,
        )
        return decision.delay if isinstance(decision, RetryAfter) else None

    async def _keep_renewed(self, claim: Claim, worker: asyncio.Task[Any] | None) -> None:
        lease = self._policy.lease
        while True:
            await self._clock.sleep(lease.renew_every)
            if not await self._still_held(claim) and worker is not None:
                worker.cancel()

    async def _still_held(self, claim: Claim) -> bool:
        expires = self._clock.now() + timedelta(seconds=self._policy.lease.ttl)
        try:
            renewed = await self._database.fetchval(self._queries.renew_claim, claim.action_id, claim.token, expires)
        except ClassifiedError:  # the database is away: nobody else can take it over either
            return True
        return renewed is not None


def knows_keys(tool: Tool) -> bool:
    return KEY in tool.arguments.model_fields


def with_key(tool: Tool, arguments: Mapping[str, Any], action_id: UUID) -> dict[str, Any]:
    """The stored arguments; a tool that knows keys gets the action's, so that a repeated call is the same deed."""
    key = {KEY: str(action_id)} if knows_keys(tool) and arguments.get(KEY) is None else {}
    return dict(arguments) | key


def storable(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome as PostgreSQL takes it; the deed is done, whatever its answer looks like."""
    try:
        document: dict[str, Any] = from_json(to_json(outcome))
    except ValueError:
        return {"result": {"unreadable": True}}
    return {"result": {"unreadable": True}} if holds_nul(document) else document
