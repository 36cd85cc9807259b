"""Claims on rows: one engine for every table whose rows are worked on by one worker at a time.

    waiting ──claim──> held ──settle──> a state of the table's own
       ^                │ renew: the lease is extended
       ├──give back─────┤ (the attempt does not count, unless the caller says so)
       └──lease ran out─┘ (the worker died: the attempt counts, and the next claim takes the row over)

- A claim lasts until its lease runs out. The worker renews it; a dead worker does not, so another takes the row over.
- Every claim brings a fresh token, the fencing token. Only its holder may write (`record`, `settle`); a worker that was
  replaced gets `LeaseLost`, however late it comes. Time decides who may take over, the token who may write, so a wrong
  clock costs repeated work and never a second result.
- The count of attempts is the count of deaths plus one, because an attempt that ends well, or is given back, does not
  stay counted. A row that has seen `SUSPECT_AFTER` deaths runs alone (`SuspectGate`): the process that dies takes
  everything it holds with it, and only one row may be to blame. After the limit of deaths the row is quarantined.

A table has the columns claim_token, claimed_by, lease_expires_at and attempts, and a state (`ClaimTable`). A statement
that does more than the methods here keeps its own SQL and uses the engine's words, which `Claims.fill` replaces. The
table's alias is `work`, and the parameters $1 to $4 are those of `Claims.run`: now, token, worker, end of the lease.

    {claimable}  condition: the row waits, or its worker died      {held}  condition: some worker holds the row
    {abandoned}  condition: the worker of a held row died          {take}  assignments: held, with one attempt more
    {take_over}  assignments: held by another worker               {free}  assignments: no worker holds the row
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.errors import LeaseLost
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import fill_schema

MOST_DEATHS = 3  # attempts that never ended; the next claim quarantines the work
SUSPECT_AFTER = 2  # of them


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    ttl: float = 10.0  # seconds without a renewal until others may take the work over
    renew_every: float = 3.0  # seconds

    def __post_init__(self) -> None:
        if not 0 < self.renew_every < self.ttl:
            raise ValueError("renew_every must be positive and shorter than ttl")


class SuspectGate:
    """Lets the suspects of one process in one request at a time. Parts of the same request may be in together."""

    def __init__(self) -> None:
        self._request_id: UUID | None = None
        self._inside = 0

    def enter(self, request_id: UUID) -> bool:
        """False: another suspect is inside; ask again later."""
        if self._inside and self._request_id != request_id:
            return False
        self._request_id = request_id
        self._inside += 1
        return True

    def leave(self) -> None:
        self._inside -= 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClaimTable:
    """How one table stores its claims. SQL names the row `work` and the present time $1."""

    name: str
    key: Mapping[str, str]  # column -> SQL type
    state: str  # column
    held: str  # the state of a row that a worker holds
    waiting: str  # SQL condition of a row that no worker has claimed
    order: str = "true"  # SQL condition of a row whose turn it is, claimed for the first time or taken over
    takes_over: bool = True  # false: what dead workers held is taken over by a statement of the table's own
    deaths: str = "work.attempts"  # SQL: how many workers died over the row
    on_claim: Mapping[str, str] = field(default_factory=dict)  # column -> SQL, what a claim changes besides
    returned: Sequence[str] = ("attempts",)  # the columns that a claim returns
    given_back: str | None = None  # SQL of the state of a row that was given back; None: held, with its lease run out
    quarantined: str | None = None  # the state of a row that reached the limit of deaths, where the engine writes it
    updated: str | None = "updated_at"

    def words(self) -> dict[str, str]:
        """What the engine's words stand for."""
        held = f"work.{self.state} = {_text(self.held)}"
        abandoned = f"{held} AND work.lease_expires_at <= $1"
        stamp = {self.updated: "$1"} if self.updated else {}
        taken = {"claim_token": "$2", "claimed_by": "$3", "lease_expires_at": "$4", **stamp}
        counted = {self.state: _text(self.held), "attempts": f"{self.deaths} + 1", **taken, **self.on_claim}
        either = f"(({self.waiting}) OR ({abandoned}))" if self.takes_over else f"({self.waiting})"
        return {
            "{claimable}": f"({either} AND {self.order})",
            "{abandoned}": f"({abandoned})",
            "{held}": f"({held})",
            "{take}": _assignments(counted),
            "{take_over}": _assignments(taken),
            "{free}": "claim_token = NULL, lease_expires_at = NULL",
        }

    def fill(self, sql: str, schema: str) -> str:
        """A statement with the engine's words replaced."""
        for word, meaning in self.words().items():
            sql = sql.replace(word, fill_schema(meaning, schema))
        return sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """That a worker holds a row: what it needs to renew, to write and to give back."""

    key: tuple[Any, ...]  # in the order of `ClaimTable.key`
    token: UUID


class Claims:
    """The claims on one table of one schema. `limit`: of deaths, where the engine quarantines."""

    def __init__(
        self,
        table: ClaimTable,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        new_id: Callable[[], UUID],
        limit: int = MOST_DEATHS,
    ) -> None:
        self._table = table
        self._schema = schema
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._limit = limit
        self._sql = _Statements(table, schema)

    def fill(self, sql: str) -> str:
        """A statement of the caller's with the engine's words replaced, for `run`."""
        return self._table.fill(sql, self._schema)

    async def claim(
        self, key: tuple[Any, ...], *, worker: str, lease_s: float, suspects: bool = True
    ) -> tuple[Claim, Record] | None:
        """None: another worker holds the row, it is not its turn, or it is a suspect and `suspects` is false."""
        values = (*key, suspects, SUSPECT_AFTER)
        token, rows = await self.run(self._sql.claim, *values, worker=worker, lease_s=lease_s)
        return (Claim(key=key, token=token), rows[0]) if rows else None

    async def run(
        self,
        sql: str,
        *values: Any,
        worker: str,
        lease_s: float,
        now: datetime | None = None,
        connection: Executor | None = None,
    ) -> tuple[UUID, list[Record]]:
        """Run a claiming statement, whose own parameters begin at $5; the rows it returns are held under the token.
        The statement locks what it selects (FOR UPDATE SKIP LOCKED). `now`: of a caller that was given the time.
        """
        token, now = self._new_id(), now or self._clock.now()
        expires = now + timedelta(seconds=lease_s)
        return token, await (connection or self._database).fetch(sql, now, token, worker, expires, *values)

    async def renew(self, claims: Sequence[Claim], *, lease_s: float) -> set[tuple[Any, ...]]:
        """Extend the leases; the keys of the rows that are still held under these claims."""
        expires = self._clock.now() + timedelta(seconds=lease_s)
        rows = await self._database.fetch(self._sql.renew, expires, *_columns(claims))
        return {tuple(row.values()) for row in rows}

    async def record(self, claim: Claim, values: Mapping[str, Any], *, connection: Executor | None = None) -> None:
        """Write columns of a row that stays held. Raises `LeaseLost` when another worker holds it."""
        if not await self._write([claim], values, freed=False, connection=connection):
            raise _lost(claim)

    async def settle(self, claim: Claim, values: Mapping[str, Any], *, connection: Executor | None = None) -> None:
        """Write columns, the state among them, and let the row go. Raises `LeaseLost` like `record`."""
        if not await self._write([claim], values, freed=True, connection=connection):
            raise _lost(claim)

    async def settle_all(
        self, claims: Sequence[Claim], values: Mapping[str, Any], *, connection: Executor | None = None
    ) -> set[tuple[Any, ...]]:
        """Settle rows alike; the keys of those that were held under these claims. The rest is another worker's."""
        return await self._write(claims, values, freed=True, connection=connection)

    async def _write(
        self, claims: Sequence[Claim], values: Mapping[str, Any], *, freed: bool, connection: Executor | None
    ) -> set[tuple[Any, ...]]:
        sql = self._sql.fenced(tuple(values), freed=freed)
        columns = [*_columns(claims), *values.values()]
        return {tuple(row.values()) for row in await (connection or self._database).fetch(sql, *columns)}

    async def give_back(
        self,
        claims: Sequence[Claim],
        *,
        counted: bool = False,
        values: Mapping[str, Any] | None = None,
        connection: Executor | None = None,
    ) -> list[Record]:
        """Let rows go without an outcome; the keys of those that changed, each with its `state`. The attempt does not
        count, unless `counted`: then a row at the limit of deaths is quarantined. Where a row stays held (`given_back`
        is None), the attempt is taken back even if another worker holds the row by now; that worker keeps it.
        """
        extra, now = values or {}, self._clock.now()
        arguments = (now, *_columns(claims), counted, self._limit, *extra.values())
        return await (connection or self._database).fetch(self._sql.give_back(tuple(extra)), *arguments)

    async def end_leases_of(self, workers: Sequence[str]) -> int:
        """Let what these workers hold be taken over at once; they are known to be dead. How many rows that were."""
        return len(await self._database.fetch(self._sql.end_leases, self._clock.now(), list(workers)))

    async def quarantine_abandoned(self, note: Mapping[str, str]) -> int:
        """Quarantine what reached the limit of deaths and no living worker holds; how many rows that were. `note` has
        texts for columns that have none yet.
        """
        sql = self._sql.quarantine(tuple(note))
        return len(await self._database.fetch(sql, self._clock.now(), self._limit, *note.values()))


class _Statements:
    """The SQL of one table."""

    def __init__(self, table: ClaimTable, schema: str) -> None:
        self._table = table
        self._name = fill_schema(f"{{schema}}.{table.name}", schema)
        self._words = {name.strip("{}"): fill_schema(sql, schema) for name, sql in table.words().items()}
        self._keys = list(table.key)
        self._after_claims = 2 + len(self._keys)  # parameters: a moment or none, the keys, the tokens
        self._of_work = ", ".join(f"work.{column}" for column in self._keys)
        self._fence = f"work.claim_token = mine.claim_token AND {self._words['held']}"
        self.fenced = functools.cache(self._make_fenced)

    @functools.cached_property
    def claim(self) -> str:
        keys = " AND ".join(f"work.{column} = ${number}" for number, column in enumerate(self._keys, 5))
        after = 5 + len(self._keys)
        allowed = f"(${after}::boolean OR {self._table.deaths} < ${after + 1}::integer)"
        returned = ", ".join(f"work.{column}" for column in self._table.returned)
        condition = f"{keys} AND {self._words['claimable']} AND {allowed}"
        return self._update("claim", f"SET {self._words['take']} WHERE {condition} RETURNING {returned}")

    @functools.cached_property
    def renew(self) -> str:
        # A row that is locked is just being settled and needs no lease; to wait for it while others are locked here
        # could wait in a circle.
        join = _equal(self._keys, "work", "mine")
        return (
            f"/* renew {self._table.name} */ WITH mine AS ({self._mine(2)}), standing AS ("
            f"SELECT {self._of_work} FROM {self._name} AS work, mine WHERE {join} AND {self._fence}"
            f" FOR UPDATE OF work SKIP LOCKED), renewed AS (UPDATE {self._name} AS work SET lease_expires_at = $1"
            f" FROM standing WHERE {_equal(self._keys, 'work', 'standing')})"
            f" SELECT {self._of_work} FROM {self._name} AS work, mine WHERE {join} AND {self._fence}"
        )

    @functools.cached_property
    def end_leases(self) -> str:
        of_dead = f"{self._words['held']} AND work.claimed_by = ANY($2::text[])"
        rest = f"SET lease_expires_at = $1 WHERE {of_dead} AND work.lease_expires_at > $1 RETURNING 1"
        return self._update("end leases", rest)

    def _make_fenced(self, columns: tuple[str, ...], *, freed: bool) -> str:
        """A write that only the holder of the claim may make."""
        written = {column: f"${number}" for number, column in enumerate(columns, self._after_claims)}
        assigned = _assignments({"claim_token": "NULL", "lease_expires_at": "NULL"} | written if freed else written)
        return self._update_mine("write", 1, assigned, self._fence, self._of_work)

    def give_back(self, columns: tuple[str, ...]) -> str:
        table, counted, limit = self._table, self._after_claims + 1, self._after_claims + 2
        attempts = f"greatest(work.attempts - CASE WHEN ${counted}::boolean THEN 0 ELSE 1 END, 0)"
        extra = {column: f"${number}" for number, column in enumerate(columns, limit + 1)}
        stamp = {table.updated: "$1"} if table.updated else {}
        # The server wants every parameter used, so the moment is named here although not every table stores it.
        ended = f"$1::timestamptz IS NOT NULL AND ${counted}::boolean AND work.attempts >= ${limit}::integer"
        if table.given_back is None:
            lease = "CASE WHEN work.claim_token = mine.claim_token THEN $1 ELSE work.lease_expires_at END"
            state, freed, fence = _text(table.held), {"lease_expires_at": lease}, self._words["held"]
        else:
            state, freed, fence = table.given_back, {"claim_token": "NULL", "lease_expires_at": "NULL"}, self._fence
        state = f"CASE WHEN {ended} THEN {_text(table.quarantined) if table.quarantined else state} ELSE {state} END"
        assigned = _assignments({table.state: state, "attempts": attempts, **freed, **extra, **stamp})
        return self._update_mine("give back", 2, assigned, fence, f"{self._of_work}, work.{table.state} AS state")

    def quarantine(self, columns: tuple[str, ...]) -> str:
        notes = {column: f"coalesce(work.{column}, ${number}::text)" for number, column in enumerate(columns, 3)}
        assigned = _assignments({self._table.state: _text(self._table.quarantined or "")} | notes)
        condition = f"{self._words['abandoned']} AND work.attempts >= $2"
        return self._update("quarantine", f"SET {assigned}, {self._words['free']} WHERE {condition} RETURNING 1")

    def _update(self, verb: str, rest: str) -> str:
        return f"/* {verb} {self._table.name} */ UPDATE {self._name} AS work {rest}"

    def _update_mine(self, verb: str, first: int, assigned: str, condition: str, returned: str) -> str:
        """An update of the rows of claims, whose arrays begin at the parameter `first`."""
        mine = f"WITH mine AS ({self._mine(first)})"
        where = f"{_equal(self._keys, 'work', 'mine')} AND {condition}"
        update = f"UPDATE {self._name} AS work SET {assigned} FROM mine WHERE {where} RETURNING {returned}"
        return f"/* {verb} {self._table.name} */ {mine} {update}"

    def _mine(self, first: int) -> str:
        types = [*self._table.key.values(), "uuid"]
        arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, first))
        return f"SELECT * FROM unnest({arrays}) AS mine ({', '.join(self._keys)}, claim_token)"


def _text(value: str) -> str:
    """A state as SQL text."""
    return f"'{value}'"


def _assignments(values: Mapping[str, str]) -> str:
    return ", ".join(f"{column} = {sql}" for column, sql in values.items())


def _equal(columns: Sequence[str], one: str, other: str) -> str:
    return " AND ".join(f"{one}.{column} = {other}.{column}" for column in columns)


def _columns(claims: Sequence[Claim]) -> list[list[Any]]:
    """The keys and the tokens as arrays, one for each column."""
    if not claims:
        raise ValueError("there is no claim")
    return [list(column) for column in zip(*((*claim.key, claim.token) for claim in claims), strict=True)]


def _lost(claim: Claim) -> LeaseLost:
    return LeaseLost(f"another worker has taken over {' '.join(str(part) for part in claim.key)}")
