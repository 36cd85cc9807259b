"""Asking for approval, deciding, and letting what nobody decided run out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.approvals import (
    EXPIRY,
    NO_ACTION,
    Allowed,
    GatedCall,
    Hooks,
    Journal,
    MustWait,
    PendingAction,
    refusal,
)
from butlers.butler.approvals.rules import RuleBook
from butlers.clock import Clock
from butlers.contracts.approval_state import Status
from butlers.errors import NotFound
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.approvals")
_BATCH = 100


class ActionReader:
    def __init__(self, *, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def show(self, action_id: UUID) -> dict[str, Any]:
        """One action, whole, with its record."""
        row = await self._database.fetchrow(self._queries.get_action, action_id)
        if row is None:
            raise NotFound.of("action_id", NO_ACTION)
        events = await self._database.fetch(self._queries.events_of_action, action_id)
        return dict(row) | {"events": [dict(event) for event in events]}

    async def list(
        self,
        *,
        status: Status | None = "pending",  # None: all
        tool_name: str | None = None,
        cursor: UUID | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Newest first."""
        rows = await self._database.fetch(self._queries.list_actions, status, tool_name, cursor, limit + 1)
        page = [dict(row) for row in rows[:limit]]
        return {"actions": page, "next_cursor": page[-1]["id"] if len(rows) > limit else None}

    async def counts(self) -> dict[str, Any]:
        rows = await self._database.fetch(self._queries.count_actions)
        waiting = [row for row in rows if row["status"] == "pending"]
        by_status: Counter[str] = Counter()
        for row in rows:
            by_status[row["status"]] += row["actions"]
        return {
            "pending": by_status["pending"],
            "by_tool": {row["tool_name"]: row["actions"] for row in waiting},
            "by_status": dict(by_status),
            "oldest_requested_at": min((row["oldest"] for row in waiting), default=None),
            "next_expires_at": min((row["next_expiry"] for row in waiting), default=None),
        }


class Approvals:
    """The approvals of one butler."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        gated: frozenset[str],
        expiry: timedelta = EXPIRY,
    ) -> None:
        self.database = database
        self.schema = schema
        self.queries = Queries.load("butlers.butler.approvals", schema=schema)
        self.clock = clock
        self.new_id = new_id
        self.journal = Journal(queries=self.queries, new_id=new_id)
        self.actions = ActionReader(database=database, queries=self.queries)
        self.rules = RuleBook(
            database=database, queries=self.queries, journal=self.journal, clock=clock, new_id=new_id, gated=gated
        )
        self.gated = gated  # the names of the tools whose calls wait for a person
        self._expiry = expiry
        self._hooks: dict[str | None, Hooks] = {}

    def register(self, tool_name: str | None, hooks: Hooks) -> None:
        """What decisions about a tool's actions move; None: about all tools that have no hooks of their own."""
        if tool_name in self._hooks:
            raise ValueError(f"hooks for {tool_name or 'all other tools'} are registered already")
        self._hooks[tool_name] = hooks

    # --- asking ------------------------------------------------------------------------------------------------------

    async def request(self, connection: Executor, call: GatedCall, *, now: datetime) -> Allowed | MustWait:
        """May it happen? In the caller's transaction: a use of a rule and a new action come and go with it."""
        # What waits already goes on waiting: if a newer rule let a repeat pass, approving it would act twice.
        if (known := await self._known(connection, call.key)) is not None:
            return known
        rule_id = await self.rules.spend(connection, call.tool_name, call.tool_args, actor=call.requested_by, now=now)
        if rule_id is not None:
            return Allowed(rule_id=rule_id)
        return await self._insert(connection, call, event="requested", now=now)

    async def park(self, connection: Executor, call: GatedCall, *, now: datetime) -> MustWait:
        """An action that no rule may allow."""
        return await self._insert(connection, call, event="parked", now=now)

    async def preview(self, tool_name: str, tool_args: Mapping[str, Any]) -> Allowed | MustWait:
        """What `request` would say to a new call, without a trace of having asked."""
        rule_id = await self.rules.best(tool_name, tool_args)
        if rule_id is not None:
            return Allowed(rule_id=rule_id)
        return MustWait(action_id=None, expires_at=self.clock.now() + self._expiry, created=False)

    async def give_back(self, connection: Executor, rule_id: UUID) -> None:
        """Undo the use of a rule whose call was refused later."""
        await self.rules.give_back(connection, rule_id)

    async def _insert(self, connection: Executor, call: GatedCall, *, event: str, now: datetime) -> MustWait:
        action_id, expires_at = self.new_id(), now + self._expiry
        if call.not_after is not None:
            expires_at = min(expires_at, call.not_after)
        inserted = await connection.fetchval(
            self.queries.insert_action,
            action_id,
            call.key,
            call.tool_name,
            call.tool_args,
            call.summary,
            event == "parked",
            call.subject_id,
            call.requested_by,
            call.requested_role,
            now,
            expires_at,
        )
        if inserted is None:
            return await self._existing(connection, call.key)
        await self.journal.record(
            connection, event, at=now, actor=call.requested_by, tool_name=call.tool_name, action_id=action_id
        )
        return MustWait(action_id=action_id, expires_at=expires_at, created=True)

    async def _known(self, connection: Executor, key: str) -> MustWait | None:
        row = await connection.fetchrow(self.queries.action_of_key, key)
        if row is None:
            return None
        return MustWait(action_id=row["id"], expires_at=row["expires_at"], created=False, status=row["status"])

    async def _existing(self, connection: Executor, key: str) -> MustWait:
        known = await self._known(connection, key)
        if known is None:
            raise RuntimeError("an action of this key was there and is gone; actions are never removed")
        return known

    # --- deciding ----------------------------------------------------------------------------------------------------

    async def decide(
        self, action_id: UUID, *, approve: bool, decided_by: str, reason: str | None = None
    ) -> dict[str, Any]:
        """Approve or reject, once; the decision commits together with what it releases."""
        async with self.database.transaction() as connection:
            action, now = await self._locked(connection, action_id), self.clock.now()
            if (refused := refusal(action, now)) is not None:
                raise refused
            status: Status = "approved" if approve else "rejected"
            await connection.execute(self.queries.decide_action, action_id, status, decided_by, now, reason)
            await self.journal.record(
                connection,
                status,
                at=now,
                actor=decided_by,
                tool_name=action.tool_name,
                action_id=action_id,
                reason=reason,
            )
            decided = replace(action, status=status, decided_by=decided_by, decided_at=now, decision_reason=reason)
            await self._release(connection, decided)
        log.info("action decided", action_id=action_id, decision=status, caller=decided_by)
        return await self.actions.show(action_id)

    async def expire(self) -> int:
        """Close what nobody decided in time; how many. One that cannot be closed holds up no other."""
        seen: list[UUID] = []
        closed = 0
        while rows := await self.database.fetch(self.queries.stale_actions, self.clock.now(), seen, _BATCH):
            seen += (row["id"] for row in rows)
            closed += sum([await self._try_to_expire(row["id"]) for row in rows])
        return closed

    async def executed(
        self, connection: Executor, action_id: UUID, result: Mapping[str, Any], *, actor: str = "approvals"
    ) -> bool:
        """Say what came of an approved action; false when it is not approved (any more)."""
        now = self.clock.now()
        tool_name = await connection.fetchval(self.queries.execute_action, action_id, {"result": result}, now)
        if tool_name is None:
            return False
        await self.journal.record(connection, "executed", at=now, actor=actor, tool_name=tool_name, action_id=action_id)
        return True

    async def fulfil(self, connection: Executor, action_id: UUID, *, by: str, result: Mapping[str, Any]) -> bool:
        """What it waited for came without a decision (say, the missing identifier is there now); false when it is not
        pending any more. Calls no hook: whoever fulfils it has moved what it held.
        """
        action, now = await self._locked(connection, action_id), self.clock.now()
        if action.status != "pending":
            return False
        await connection.execute(self.queries.decide_action, action_id, "approved", by, now, "fulfilled")
        return await self.executed(connection, action_id, result, actor=by)

    async def _release(self, connection: Executor, action: PendingAction) -> None:
        hooks = self._hooks_of(action.tool_name)
        if action.status != "approved":
            await hooks.on_closed(connection, action)
        elif (result := await hooks.on_approved(connection, action)) is not None:
            await self.executed(connection, action.id, result)

    async def _try_to_expire(self, action_id: UUID) -> bool:
        try:
            async with self.database.transaction() as connection:
                return await self._expire(connection, action_id)
        except Exception as error:
            log.error("action could not be closed", error=error, action_id=action_id)
            return False

    async def _expire(self, connection: Executor, action_id: UUID) -> bool:
        action, now = await self._locked(connection, action_id), self.clock.now()
        if action.status != "pending":  # decided while we were looking
            return False
        await connection.execute(self.queries.expire_action, action_id)
        await self.journal.record(
            connection, "expired", at=now, actor="approvals", tool_name=action.tool_name, action_id=action_id
        )
        await self._release(connection, replace(action, status="expired"))
        return True

    async def _locked(self, connection: Executor, action_id: UUID) -> PendingAction:
        row = await connection.fetchrow(self.queries.lock_action, action_id)
        if row is None:
            raise NotFound.of("action_id", NO_ACTION)
        return PendingAction.of(row)

    def _hooks_of(self, tool_name: str) -> Hooks:
        return self._hooks.get(tool_name) or self._hooks.get(None) or Hooks()
