"""Rules that let calls pass without asking: which rule allows a call, and the stored rules with their uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

from butlers.butler.approvals import NO_ACTION, NO_RULE, Journal
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries

POINTS: Mapping[str, int] = {"exact": 2, "pattern": 1, "any": 0}
Constraints = Mapping[str, Mapping[str, Any]]

# Arguments that differ from call to call without changing whom it reaches.
_FREE_TEXT = frozenset(
    {"message", "text", "body", "content", "caption", "html", "subject", "title", "summary", "description", "notes"}
)
_ONCE_ONLY = frozenset({"idempotency_key", "key", "request_id", "delivery_id", "not_after", "due_at", "trace_context"})
# Whose account speaks is never left open: a rule that does not name it is about the usual one.
_USUAL = {"identity_scope": "bot"}
_LATEST_EVENTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: UUID
    tool_name: str
    constraints: Constraints
    created_at: datetime
    expires_at: datetime | None = None
    max_uses: int | None = None
    use_count: int = 0
    active: bool = True

    @property
    def specificity(self) -> int:
        return sum(POINTS[constraint["type"]] for constraint in self.constraints.values())

    @property
    def bounded(self) -> bool:
        return self.max_uses is not None or self.expires_at is not None


def is_live(rule: Rule, now: datetime) -> bool:
    unused = rule.max_uses is None or rule.use_count < rule.max_uses
    return rule.active and unused and (rule.expires_at is None or rule.expires_at > now)


def matches(rule: Rule, tool_name: str, tool_args: Mapping[str, Any], now: datetime) -> bool:
    return (
        rule.tool_name == tool_name
        and is_live(rule, now)
        and all(name in rule.constraints or same(tool_args.get(name, usual), usual) for name, usual in _USUAL.items())
        and all(_holds(constraint, name, tool_args) for name, constraint in rule.constraints.items())
    )


def in_precedence(
    rules: Iterable[Rule], tool_name: str, tool_args: Mapping[str, Any], now: datetime
) -> tuple[Rule, ...]:
    """The rules that match, the one to use first."""
    return tuple(sorted((rule for rule in rules if matches(rule, tool_name, tool_args, now)), key=_rank))


def suggested_constraints(tool_args: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For a rule made from a call: the same to the same recipient, whatever the words.

    Whatever is not known to be mere words stays exact: a rule that allows too little is asked about again, one that
    allows too much is not.
    """
    return {name: _suggestion(name, value) for name, value in tool_args.items()}


def _suggestion(name: str, value: Any) -> dict[str, Any]:
    free = name in _FREE_TEXT or name in _ONCE_ONLY
    return {"type": "any"} if free else {"type": "exact", "value": value}


def _rank(rule: Rule) -> tuple[int, bool, float, UUID]:
    return (-rule.specificity, not rule.bounded, -rule.created_at.timestamp(), rule.id)


def _holds(constraint: Mapping[str, Any], name: str, tool_args: Mapping[str, Any]) -> bool:
    if constraint["type"] == "any":
        return True
    if name not in tool_args:
        return False
    given, expected = tool_args[name], constraint.get("value")
    if constraint["type"] == "exact":
        return same(given, expected)
    return isinstance(given, str) and isinstance(expected, str) and fnmatchcase(given, expected)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


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
        bounds = (description, expires_at, max_uses)
        async with self._database.transaction() as connection:
            rule_id = await self._insert(connection, tool_name, constraints, bounds, created_by)
        return await self.show(rule_id)

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
            chosen = suggested_constraints(action["tool_args"]) if constraints is None else constraints
            bounds = (description or f"made from action {action_id}", expires_at, max_uses)
            rule_id = await self._insert(connection, action["tool_name"], chosen, bounds, created_by)
            await connection.execute(self._queries.note_rule, action_id, rule_id)
        return await self.show(rule_id)

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

    async def _insert(
        self,
        connection: Executor,
        tool_name: str,
        constraints: Constraints,
        bounds: tuple[str, datetime | None, int | None],  # description, expires_at, max_uses
        created_by: str,
    ) -> UUID:
        rule_id, now, expires_at = self._new_id(), self._clock.now(), bounds[1]
        if tool_name not in self._gated:
            gated = ", ".join(sorted(self._gated)) or "nothing"
            raise invalid("tool_name", f"is not gated here, so it needs no rule (gated: {gated})")
        if expires_at is not None and expires_at <= now:
            raise invalid("expires_at", "lies in the past")
        await connection.execute(self._queries.insert_rule, rule_id, tool_name, constraints, *bounds, created_by, now)
        await self._journal.record(
            connection, "rule_created", at=now, actor=created_by, tool_name=tool_name, rule_id=rule_id
        )
        return rule_id

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
