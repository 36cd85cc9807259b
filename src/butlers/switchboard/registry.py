"""Who can take work. Switchboard owns the registry; butlers register at start and give signs of life."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import outbound_names
from butlers.clock import Clock
from butlers.contracts.envelope import Identity, Value, invalid
from butlers.errors import NotFound, ValidationError
from butlers.operations import butlers as operations
from butlers.operations.butlers import HistoryArguments, HoldArguments
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.registry")

NOT_ROUTABLE = frozenset({"switchboard", "messenger"})  # the doors themselves never take user requests
FALLBACK = "general"
_SEVERITY = {"active": 0, "stale": 1, "quarantined": 2}  # silence only makes it worse; a sign of life makes it good

CHANNEL_OWNER = "messenger"
_CHANNEL_VERBS = ("send", "reply", "react")


class ButlerCard(Value):
    """What a butler says of itself."""

    name: Identity = Field(description="the butler's name")
    endpoint_url: Identity = Field(description="where its doors are")
    transport: Identity = Field(description="how it is called")
    description: str = Field(description="what it is for, in one line")
    triggers: list[str] = Field(default_factory=list, description="words that say a message is for it")
    required_information: list[str] = Field(default_factory=list, description="what it needs to know to act")
    capabilities: list[str] = Field(default_factory=list, description="the names of its tools")
    modules: list[str] = Field(default_factory=list, description="the modules it has loaded")
    route_timeout_s: float = Field(default=60.0, description="seconds one route.execute may take")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredButler:
    name: str
    eligibility_state: str
    triggers: tuple[str, ...]
    capabilities: tuple[str, ...]
    description: str = ""
    required_information: tuple[str, ...] = ()
    held: bool = False  # an operator took it out of service

    @property
    def takes_routes(self) -> bool:
        return (
            self.eligibility_state == "active"
            and not self.held
            and "route.execute" in self.capabilities
            and self.name not in NOT_ROUTABLE
        )


def eligibility(last_seen_at: datetime, ttl_seconds: int, now: datetime) -> str:
    """Past its time to live a butler is stale, past twice that it is quarantined."""
    silent = (now - last_seen_at).total_seconds()
    if silent <= ttl_seconds:
        return "active"
    return "stale" if silent <= 2 * ttl_seconds else "quarantined"


class Registry:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def register(self, card: ButlerCard) -> None:
        _refuse_channel_tools(card)
        now = self._clock.now()
        async with self._database.transaction() as connection:
            previous = await connection.fetchval(self._queries.lock_butler, card.name)
            await connection.execute(
                self._queries.register_butler,
                card.name,
                card.endpoint_url,
                card.transport,
                card.description,
                card.triggers,
                card.required_information,
                card.capabilities,
                card.modules,
                card.route_timeout_s,
                now,
            )
            if previous != "active":
                await self._log(
                    connection, card.name, previous, "active", "re_registered" if previous else "registered"
                )

    async def heartbeat(self, name: str) -> bool:
        """A sign of life; false when the butler must register first."""
        async with self._database.transaction() as connection:
            state = await connection.fetchval(self._queries.touch_butler, name, self._clock.now())
            if state not in (None, "active"):
                await self._move(connection, name, state, "active", "heartbeat_recovery")
        return state is not None

    async def sweep(self) -> dict[str, Any]:
        """Judge everybody by the last sign of life (the job `eligibility-sweep`)."""
        changed = []
        async with self._database.transaction() as connection:
            # Locked while they are judged: a sign of life that comes now is not overtaken by an old judgement.
            for row in await connection.fetch(self._queries.lock_butlers):
                state = row["eligibility_state"]
                due = eligibility(row["last_seen_at"], row["liveness_ttl_seconds"], self._clock.now())
                if _SEVERITY[due] > _SEVERITY[state]:
                    await self._move(connection, row["name"], state, due, "liveness_expired")
                    changed.append({"butler": row["name"], "from": state, "to": due})
        return {"changed": changed}

    async def butlers(self) -> list[RegisteredButler]:
        return [_registered(row) for row in await self._database.fetch(self._queries.list_butlers)]

    async def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._database.fetch(self._queries.list_butlers)]

    async def _move(self, connection: Executor, name: str, previous: str, new: str, reason: str) -> bool:
        # Compare and set: an operator may have changed the state since it was read.
        moved = await connection.fetchval(self._queries.set_eligibility, name, previous, new, self._clock.now(), reason)
        if moved is not None:
            await self._log(connection, name, previous, new, reason)
        return moved is not None

    async def _log(self, connection: Executor, name: str, previous: str | None, new: str, reason: str) -> None:
        await connection.execute(
            self._queries.log_eligibility, self._new_id(), name, previous, new, reason, self._clock.now()
        )
        log.info("eligibility changed", butler=name, status=new, reason=reason)


def _registered(row: Record) -> RegisteredButler:
    return RegisteredButler(
        name=row["name"],
        eligibility_state=row["eligibility_state"],
        triggers=tuple(row["triggers"]),
        capabilities=tuple(row["capabilities"]),
        description=row["description"],
        required_information=tuple(row["required_information"]),
        held=row["held"] is not None,
    )


def _refuse_channel_tools(card: ButlerCard) -> None:
    """Whatever reaches a person has one owner."""
    if card.name == CHANNEL_OWNER:
        return
    if exposed := sorted(name for name in card.capabilities if _is_channel_tool(name)):
        raise invalid("capabilities", f"{', '.join(exposed)}: only {CHANNEL_OWNER} may have channel tools; use notify")


def _is_channel_tool(tool: str) -> bool:
    name = tool.removeprefix("user_").removeprefix("bot_")
    return name.startswith(tuple(f"{channel}_{verb}" for channel in outbound_names() for verb in _CHANNEL_VERBS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    database: Database
    queries: Queries
    clock: Clock
    new_id: Callable[[], UUID]

    async def hold(self, butler: str, *, operator: str, reason: str) -> dict[str, Any]:
        if butler in NOT_ROUTABLE:
            raise invalid("butler", f"{butler} takes no routes anyway")
        held = {"operator": operator, "reason": reason, "at": self.clock.now().isoformat()}
        async with self.database.transaction() as connection:
            state = await connection.fetchval(self.queries.hold_butler, butler, held)
            if state is None:
                raise await self._not_possible(connection, butler, "is held already")
            await self._note(connection, butler, state, "held", f"held by {operator}: {reason}")
        return {"butler": butler, "held": held, "eligibility_state": state}

    async def release(self, butler: str, *, operator: str, reason: str) -> dict[str, Any]:
        async with self.database.transaction() as connection:
            state = await connection.fetchval(self.queries.release_butler, butler)
            if state is None:
                raise await self._not_possible(connection, butler, "is not held")
            await self._note(connection, butler, "held", state, f"released by {operator}: {reason}")
        return {"butler": butler, "held": None, "eligibility_state": state}

    async def history(self, butler: str, *, before: UUID | None, limit: int) -> dict[str, Any]:
        if await self.database.fetchrow(self.queries.butler_held, butler) is None:
            raise _unknown(butler)
        rows = await self.database.fetch(self.queries.history_of_butler, butler, before, limit + 1)
        page = [dict(row) for row in rows[:limit]]
        return {"butler": butler, "history": page, "next_cursor": page[-1]["id"] if len(rows) > limit else None}

    async def _not_possible(self, connection: Executor, butler: str, why: str) -> ValidationError:
        known = await connection.fetchrow(self.queries.butler_held, butler)
        return invalid("butler", f"{butler} {why}") if known else _unknown(butler)

    async def _note(self, connection: Executor, butler: str, previous: str, new: str, reason: str) -> None:
        await connection.execute(self.queries.note_hold, self.new_id(), butler, previous, new, reason, self.clock.now())


def _unknown(butler: str) -> ValidationError:
    return NotFound.of("butler", f"no such butler: {butler}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldTools:
    holds: Holds

    def tools(self) -> list[AnyTool]:
        return [
            Tool.of(operations.HOLD, self._hold),
            Tool.of(operations.RELEASE, self._release),
            Tool.of(operations.HISTORY, self._history),
        ]

    async def _hold(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        return wire(await self.holds.hold(given.butler, operator=caller.name, reason=given.reason))

    async def _release(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        return wire(await self.holds.release(given.butler, operator=caller.name, reason=given.reason))

    async def _history(self, _caller: Caller, given: HistoryArguments) -> dict[str, Any]:
        return wire(await self.holds.history(given.butler, before=given.cursor, limit=given.limit))
