"""The stored rules: making and revoking them, and spending their uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.butler.approvals.journal import Journal
from butlers.butler.approvals.rules import Constraints, Rule, in_precedence, suggested_constraints
from butlers.butler.approvals.values import NO_ACTION, NO_RULE
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries

_LATEST_EVENTS = 20


class RuleBook:
    def __init__(
        self,
        *,
        database: Database,
        queries: Queries,
        journal: Journal,
        clock: Clock,
        new_id: Callable[[], UUID],
        gated: frozenset[str],
    ) -> None:
        self._database = database
        self._queries = queries
        self._journal = journal
        self._clock = clock
        self._new_id = new_id
        self._gated = gated

    # --- spending ----------------------------------------------------------------------------------------------------

    async def best(self, tool_name: str, tool_args: Mapping[str, Any]) -> UUID | None:
        """The rule that would allow a call now."""
        now = self._clock.now()
        async with self._database.connection() as connection:
            candidates = await self._candidates(connection, tool_name, tool_args, now)
        return candidates[0].id if candidates else None

    async def spend(
        self, connection: Executor, tool_name: str, tool_args: Mapping[str, Any], *, actor: str, now: datetime
    ) -> UUID | None:
        """Use the best rule that still has a use when its row is ours; None when there is none."""
        for rule in await self._candidates(connection, tool_name, tool_args, now):
            if await connection.fetchval(self._queries.use_rule, rule.id, now):
                await self._journal.record(
                    connection, "rule_used", at=now, actor=actor, tool_name=tool_name, rule_id=rule.id
                )
                return rule.id
        return None

    async def give_back(self, connection: Executor, rule_id: UUID) -> None:
        """Undo one use: what the rule allowed was refused later."""
        tool_name = await connection.fetchval(self._queries.return_use, rule_id)
        if tool_name is not None:
            await self._journal.record(
                connection,
                "rule_use_returned",
                at=self._clock.now(),
                actor="approvals",
                tool_name=tool_name,
                rule_id=rule_id,
            )

    async def _candidates(
        self, connection: Executor, tool_name: str, tool_args: Mapping[str, Any], now: datetime
    ) -> tuple[Rule, ...]:
        rows = await connection.fetch(self._queries.live_rules, tool_name, now)
        return in_precedence(map(_rule, rows), tool_name, tool_args, now)

    # --- making and ending -------------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        tool_name: str,
        constraints: Constraints,
        created_by: str,
        expires_at: datetime | None = None,
        max_uses: int | None = None,
        description: str = "",
    ) -> dict[str, Any]:
        rule = Rule(
            id=self._new_id(),
            tool_name=tool_name,
            constraints=constraints,
            created_at=self._clock.now(),
            expires_at=expires_at,
            max_uses=max_uses,
        )
        async with self._database.transaction() as connection:
            await self._insert(connection, rule, created_by=created_by, description=description)
        return await self.show(rule.id)

    async def create_from_action(
        self,
        action_id: UUID,
        *,
        created_by: str,
        constraints: Constraints | None = None,  # instead of the suggested ones
        expires_at: datetime | None = None,
        max_uses: int | None = None,
        description: str = "",
    ) -> dict[str, Any]:
        """A rule for more of the same; the action itself keeps waiting."""
        async with self._database.transaction() as connection:
            action = await connection.fetchrow(self._queries.lock_action, action_id)
            if action is None:
                raise NotFound.of("action_id", NO_ACTION)
            if action["needs_person"]:
                raise invalid("action_id", f"no rule may allow {action['tool_name']}: it needs a person each time")
            rule = Rule(
                id=self._new_id(),
                tool_name=action["tool_name"],
                constraints=suggested_constraints(action["tool_args"]) if constraints is None else constraints,
                created_at=self._clock.now(),
                expires_at=expires_at,
                max_uses=max_uses,
            )
            about = description or f"made from action {action_id}"
            await self._insert(connection, rule, created_by=created_by, description=about)
            await connection.execute(self._queries.note_rule, action_id, rule.id)
        return await self.show(rule.id)

    async def revoke(self, rule_id: UUID, *, revoked_by: str) -> dict[str, Any]:
        """From now on it allows nothing; revoking it twice is no mistake."""
        now = self._clock.now()
        async with self._database.transaction() as connection:
            tool_name = await connection.fetchval(self._queries.revoke_rule, rule_id, revoked_by, now)
            if tool_name is not None:
                await self._journal.record(
                    connection, "rule_revoked", at=now, actor=revoked_by, tool_name=tool_name, rule_id=rule_id
                )
        return await self.show(rule_id)

    async def _insert(self, connection: Executor, rule: Rule, *, created_by: str, description: str) -> None:
        if rule.tool_name not in self._gated:
            gated = ", ".join(sorted(self._gated)) or "nothing"
            raise invalid("tool_name", f"is not gated here, so it needs no rule (gated: {gated})")
        if rule.expires_at is not None and rule.expires_at <= rule.created_at:
            raise invalid("expires_at", "lies in the past")
        await connection.execute(
            self._queries.insert_rule,
            rule.id,
            rule.tool_name,
            rule.constraints,
            description,
            rule.expires_at,
            rule.max_uses,
            created_by,
            rule.created_at,
        )
        await self._journal.record(
            connection,
            "rule_created",
            at=rule.created_at,
            actor=created_by,
            tool_name=rule.tool_name,
            rule_id=rule.id,
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    async def show(self, rule_id: UUID) -> dict[str, Any]:
        row = await self._database.fetchrow(self._queries.get_rule, rule_id)
        if row is None:
            raise NotFound.of("rule_id", NO_RULE)
        events = await self._database.fetch(self._queries.events_of_rule, rule_id, _LATEST_EVENTS)
        return _described(row) | {"latest_events": [dict(event) for event in events]}

    async def list(
        self, *, tool_name: str | None = None, active_only: bool = True, cursor: UUID | None = None, limit: int = 50
    ) -> dict[str, Any]:
        rows = await self._database.fetch(self._queries.list_rules, tool_name, active_only, cursor, limit + 1)
        page = [_described(row) for row in rows[:limit]]
        return {"rules": page, "next_cursor": page[-1]["id"] if len(rows) > limit else None}


def _rule(row: Record) -> Rule:
    return Rule(
        id=row["id"],
        tool_name=row["tool_name"],
        constraints=row["arg_constraints"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        max_uses=row["max_uses"],
        use_count=row["use_count"],
        active=row["active"],
    )


def _described(row: Record) -> dict[str, Any]:
    return dict(row) | {"specificity": _rule(row).specificity}
