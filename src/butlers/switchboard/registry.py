"""Who can take work: butlers register at start and give signs of life; operators hold them and release them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import outbound_names
from butlers.clock import Clock
from butlers.contracts.envelope import Identity, Value, invalid
from butlers.contracts.route import RouteEnvelope
from butlers.errors import NotFound, ValidationError
from butlers.operations import routing as operations
from butlers.operations.operation import ADDS_ONCE, BUTLERS, CHANGES, EVERY_ROLE, READS, NoArguments, Result, Role, Row
from butlers.operations.routing import HistoryArguments, HoldArguments
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.registry")

NOT_ROUTABLE = frozenset({"switchboard", "messenger"})  # the doors themselves never take user requests
FALLBACK = "general"
USUAL_ROUTE_S, LONGEST_ROUTE_S = 60.0, 600.0
SNAPSHOT_S = 1.0  # how long `Registry.target` may answer from what `Registry.butlers` has read
_SEVERITY = {"active": 0, "stale": 1, "quarantined": 2}  # silence only makes it worse; a sign of life makes it good
_CHANNEL_OWNER = "messenger"
_CHANNEL_VERBS = ("send", "reply", "react")


class ButlerCard(Value):
    """What a butler says of itself."""

    name: Identity = Field(description="the butler's name")
    endpoint_url: Identity = Field(description="where its doors are")
    transport: Literal["mcp", "courier"] = Field(
        description="how it is called: mcp at its endpoint_url, or courier by its inbox"
    )
    description: str = Field(description="what it is for, in one line")
    triggers: list[str] = Field(default_factory=list, description="words that say a message is for it")
    required_information: list[str] = Field(default_factory=list, description="what it needs to know to act")
    capabilities: list[str] = Field(default_factory=list, description="the names of its tools")
    modules: list[str] = Field(default_factory=list, description="the modules it has loaded")
    route_timeout_s: float = Field(default=USUAL_ROUTE_S, gt=0, description="seconds one route.execute may take")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredButler:
    name: str
    eligibility_state: str  # active | stale | quarantined
    triggers: tuple[str, ...] = ()
    capabilities: tuple[str, ...]
    transport: str = "mcp"
    route_timeout_s: float = USUAL_ROUTE_S
    description: str = ""
    required_information: tuple[str, ...] = ()
    held: bool = False  # an operator took it out of service
    route_contract_min: str = RouteEnvelope.VERSION  # the versions of route.v* that it understands
    route_contract_max: str = RouteEnvelope.VERSION

    @property
    def takes_routes(self) -> bool:
        return (
            self.eligibility_state == "active"
            and not self.held
            and "route.execute" in self.capabilities
            and self.name not in NOT_ROUTABLE
        )


class ButlerRegistered(Result):
    status: str = Field(description="ok")
    name: str = Field(description="the butler's name")


class HeartbeatReceived(Result):
    status: str = Field(description="ok")
    registered: bool = Field(description="false: the butler is not known and must register")


class ButlerList(Result):
    butlers: list[Row] = Field(
        description="the butlers: name, description, triggers, tools and whether they get routes"
    )


class Registry:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.registry", schema=schema)
        self._clock = clock
        self._new_id = new_id
        self.registered: Callable[[str], None] = lambda _butler: None  # told of each butler that is there now
        self._snapshot: dict[str, RegisteredButler] = {}
        self._snapshot_at: float | None = None  # on the monotonic clock; None: this process changed the registry since
        self._changes = 0

    async def butlers(self) -> list[RegisteredButler]:
        changes, at = self._changes, self._clock.monotonic()
        found = [
            RegisteredButler(
                name=row["name"],
                eligibility_state=row["eligibility_state"],
                triggers=tuple(row["triggers"]),
                capabilities=tuple(row["capabilities"]),
                transport=row["transport"],
                route_timeout_s=row["route_timeout_s"],
                description=row["description"],
                required_information=tuple(row["required_information"]),
                held=row["held"] is not None,
                route_contract_min=row["route_contract_min"],
                route_contract_max=row["route_contract_max"],
            )
            for row in await self._database.fetch(self._queries.list_butlers)
        ]
        if changes == self._changes:
            self._snapshot, self._snapshot_at = {butler.name: butler for butler in found}, at
        return found

    async def target(self, name: str) -> RegisteredButler | None:
        """One butler as of at most a second ago, and after every change that this process made; None: unknown."""
        if self._snapshot_at is not None and self._clock.monotonic() - self._snapshot_at <= SNAPSHOT_S:
            return self._snapshot.get(name)
        return next((butler for butler in await self.butlers() if butler.name == name), None)

    def route_timeout_s(self, name: str) -> float:
        """What a butler may take for one route, by its own word; the usual where that was not read yet."""
        known = self._snapshot.get(name)
        return min(known.route_timeout_s, LONGEST_ROUTE_S) if known is not None else USUAL_ROUTE_S

    async def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._database.fetch(self._queries.list_butlers)]

    async def register(self, card: ButlerCard) -> None:
        """Raises `ValidationError` when a butler other than Messenger offers tools that reach people."""
        reaching = tuple(f"{channel}_{verb}" for channel in outbound_names() for verb in _CHANNEL_VERBS)
        exposed = [
            tool for tool in card.capabilities if tool.removeprefix("user_").removeprefix("bot_").startswith(reaching)
        ]
        if exposed and card.name != _CHANNEL_OWNER:
            problem = f"only {_CHANNEL_OWNER} may have channel tools; use notify"
            raise invalid("capabilities", f"{', '.join(sorted(exposed))}: {problem}")
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
                self._clock.now(),
            )
            if previous != "active":
                reason = "re_registered" if previous else "registered"
                await self._log(connection, card.name, previous, "active", reason)
        self._changed()

    async def heartbeat(self, name: str) -> bool:
        """A sign of life; false when the butler must register first."""
        async with self._database.transaction() as connection:
            state = await connection.fetchval(self._queries.touch_butler, name, self._clock.now())
            if state not in (None, "active"):
                await self._move(connection, name, state, "active", "heartbeat_recovery")
        self._changed()
        return state is not None

    async def sweep(self) -> dict[str, Any]:
        """Decide by the last sign of life which butlers are stale or quarantined (the job `eligibility-sweep`)."""
        changed = []
        async with self._database.transaction() as connection:
            # The rows stay locked: a sign of life that comes now is not overtaken by an old decision.
            for row in await connection.fetch(self._queries.lock_butlers):
                state = row["eligibility_state"]
                due = eligibility(row["last_seen_at"], row["liveness_ttl_seconds"], self._clock.now())
                if _SEVERITY[due] > _SEVERITY[state]:
                    await self._move(connection, row["name"], state, due, "liveness_expired")
                    changed.append({"butler": row["name"], "from": state, "to": due})
        self._changed()
        return {"changed": changed}

    def tools(self) -> list[AnyTool]:
        return [
            Tool(
                name="register_butler",
                description="A butler says what it is and becomes eligible for routes.",
                arguments=ButlerCard,
                returns=ButlerRegistered,
                hints=CHANGES,
                handler=self._register,
                roles=BUTLERS,
            ),
            Tool(
                name="butler.heartbeat",
                description="A sign of life of the calling butler.",
                returns=HeartbeatReceived,
                hints=ADDS_ONCE,
                handler=self._heartbeat,
                roles=frozenset({Role.BUTLER}),
            ),
            Tool(
                name="list_butlers",
                description="The registry.",
                arguments=NoArguments,
                returns=ButlerList,
                hints=READS,
                handler=self._list,
                roles=EVERY_ROLE,
            ),
            Tool.of(operations.HOLD, self._hold),
            Tool.of(operations.RELEASE, self._release),
            Tool.of(operations.HISTORY, self._history),
        ]

    async def _register(self, caller: Caller, card: ButlerCard) -> dict[str, Any]:
        if caller.role is Role.BUTLER and caller.name != card.name:
            raise invalid("name", f"is not the caller, who is {caller.name!r}")
        await self.register(card)
        self.registered(card.name)
        return {"status": "ok", "name": card.name}

    async def _heartbeat(self, caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return {"status": "ok", "registered": await self.heartbeat(caller.name)}

    async def _list(self, _caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
        return wire({"butlers": await self.rows()})

    async def _hold(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        butler, operator = given.butler, caller.name
        if butler in NOT_ROUTABLE:
            raise invalid("butler", f"{butler} takes no routes anyway")
        held = {"operator": operator, "reason": given.reason, "at": self._clock.now().isoformat()}
        async with self._database.transaction() as connection:
            state = await connection.fetchval(self._queries.hold_butler, butler, held)
            if state is None:
                raise await self._not_possible(connection, butler, "is held already")
            await self._log(connection, butler, state, "held", f"held by {operator}: {given.reason}")
        self._changed()
        return wire({"butler": butler, "held": held, "eligibility_state": state})

    async def _release(self, caller: Caller, given: HoldArguments) -> dict[str, Any]:
        butler = given.butler
        async with self._database.transaction() as connection:
            state = await connection.fetchval(self._queries.release_butler, butler)
            if state is None:
                raise await self._not_possible(connection, butler, "is not held")
            await self._log(connection, butler, "held", state, f"released by {caller.name}: {given.reason}")
        self._changed()
        return wire({"butler": butler, "held": None, "eligibility_state": state})

    async def _history(self, _caller: Caller, given: HistoryArguments) -> dict[str, Any]:
        if await self._database.fetchrow(self._queries.butler_held, given.butler) is None:
            raise _unknown(given.butler)
        values = (given.butler, given.cursor, given.limit + 1)
        rows = await self._database.fetch(self._queries.history_of_butler, *values)
        page = [dict(row) for row in rows[: given.limit]]
        cursor = page[-1]["id"] if len(rows) > given.limit else None
        return wire({"butler": given.butler, "history": page, "next_cursor": cursor})

    async def _not_possible(self, connection: Executor, butler: str, why: str) -> ValidationError:
        known = await connection.fetchrow(self._queries.butler_held, butler)
        return invalid("butler", f"{butler} {why}") if known else _unknown(butler)

    async def _move(self, connection: Executor, name: str, previous: str, new: str, reason: str) -> None:
        # Compare and set: an operator may have changed the state since it was read.
        moved = await connection.fetchval(self._queries.set_eligibility, name, previous, new, self._clock.now(), reason)
        if moved is not None:
            await self._log(connection, name, previous, new, reason)

    async def _log(self, connection: Executor, name: str, previous: str | None, new: str, reason: str) -> None:
        await connection.execute(
            self._queries.log_eligibility, self._new_id(), name, previous, new, reason, self._clock.now()
        )
        log.info("eligibility changed", butler=name, status=new, reason=reason)

    def _changed(self) -> None:
        """After a commit: the next `target` reads anew, and a read that began before counts for no snapshot."""
        self._changes += 1
        self._snapshot_at = None


def eligibility(last_seen_at: datetime, ttl_seconds: int, now: datetime) -> str:
    """Past its time to live a butler is stale, past twice that it is quarantined."""
    silent = (now - last_seen_at).total_seconds()
    if silent <= ttl_seconds:
        return "active"
    return "stale" if silent <= 2 * ttl_seconds else "quarantined"


def _unknown(butler: str) -> ValidationError:
    return NotFound.of("butler", f"no such butler: {butler}")
