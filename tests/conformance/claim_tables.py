"""The tables whose rows are claimed, each with a way to fill it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.approvals.runner import ACTION_CLAIMS
from butlers.butler.memory.episodes import EPISODE_CLAIMS
from butlers.butler.route_inbox import ROUTE_CLAIMS
from butlers.clock import ManualClock
from butlers.errors import LeaseLost
from butlers.ids import Uuid7Factory
from butlers.messenger.deliveries import DELIVERY_CLAIMS
from butlers.outbound.postgres_queue import QUEUE_CLAIMS
from butlers.storage.claims import Claim, Claims, ClaimTable
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.requests.inbox import MESSAGE_CLAIMS
from butlers.webhooks.deliveries import WEBHOOK_CLAIMS

LEASE_S = 10.0
LIMIT = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One table: how a row comes into it, and how its work ends."""

    table: ClaimTable
    schema: str
    row: Callable[[Fixture], dict[str, Any]]
    ended: dict[str, Any]  # what `settle` writes
    before: str | None = None  # SQL of what a row refers to; $1 is the present time
    same_line: str = ""  # the column whose equal values are worked on one after the other, if there is one

    def __str__(self) -> str:
        return self.table.name


@dataclass(kw_only=True)
class Fixture:
    """Rows of one table, and workers that claim them."""

    case: Case
    database: Database
    clock: ManualClock = field(default_factory=ManualClock)
    new_id: Uuid7Factory = field(init=False)
    claims: Claims = field(init=False)

    def __post_init__(self) -> None:
        self.new_id = Uuid7Factory(self.clock)
        self.claims = Claims(
            self.case.table,
            database=self.database,
            schema=self.case.schema,
            clock=self.clock,
            new_id=self.new_id,
            limit=LIMIT,
        )

    @property
    def table(self) -> str:
        return f"{self.case.schema}.{self.case.table.name}"

    async def add(self, **changed: Any) -> tuple[Any, ...]:
        """The key of a new row that waits."""
        if self.case.before is not None:
            await self.database.execute(self.case.before, self.clock.now())
        row = self.case.row(self) | changed
        places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
        await self.database.execute(f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({places})", *row.values())
        return tuple(row[column] for column in self.case.table.key)

    async def row(self, key: tuple[Any, ...]) -> dict[str, Any]:
        conditions = " AND ".join(f"{column} = ${number}" for number, column in enumerate(self.case.table.key, 1))
        found = await self.database.fetchrow(f"SELECT * FROM {self.table} WHERE {conditions}", *key)
        assert found is not None
        return dict(found)

    async def state(self, key: tuple[Any, ...]) -> str:
        state: str = (await self.row(key))[self.case.table.state]
        return state

    async def claim(self, key: tuple[Any, ...], worker: str = "one", **options: Any) -> Claim | None:
        held = await self.claims.claim(key, worker=worker, lease_s=LEASE_S, **options)
        return held[0] if held is not None else None

    async def must_claim(self, key: tuple[Any, ...], worker: str = "one") -> Claim:
        claim = await self.claim(key, worker)
        assert claim is not None
        return claim

    async def take_over(self, key: tuple[Any, ...], worker: str) -> Claim | None:
        """Claim what a dead worker held; a table that wants to look first has a statement of its own for it."""
        if self.case.table.takes_over:
            return await self.claim(key, worker)
        sql = self.claims.fill(Queries.load("butlers.messenger", schema=self.case.schema).claim_abandoned)
        token, rows = await self.claims.run(sql, 10, [], [], [], worker=worker, lease_s=LEASE_S)
        return Claim(key=key, token=token) if key in [(row["id"],) for row in rows] else None

    async def claim_next(self, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], Claim]:
        """What may be claimed of these rows now, by the way in which the table's user claims."""
        if self.case.table is not DELIVERY_CLAIMS:
            claims = {key: await self.claim(key) for key in keys}
            return {key: claim for key, claim in claims.items() if claim is not None}
        sql = self.claims.fill(Queries.load("butlers.messenger", schema=self.case.schema).claim_due)
        token, rows = await self.claims.run(sql, 10, None, [], None, worker="one", lease_s=LEASE_S)
        return {(row["id"],): Claim(key=(row["id"],), token=token) for row in rows}

    async def settle(self, claim: Claim) -> bool:
        return await _written(self.claims.settle(claim, self.case.ended))

    async def record(self, claim: Claim) -> bool:
        return await _written(self.claims.record(claim, {"attempts": 1}))

    def worker_dies(self) -> None:
        """No claim is renewed until its lease has run out."""
        self.clock.advance(LEASE_S + 1)


async def _written(write: Awaitable[None]) -> bool:
    try:
        await write
    except LeaseLost:
        return False
    return True


def _message(given: Fixture) -> dict[str, Any]:
    now = given.clock.now()
    return {
        "request_id": given.new_id(),
        "received_at": now,
        "request_context": {},
        "normalized_text": "pay",
        "policy_tier": "default",
        "dedupe_key": str(given.new_id()),
        "submitted_by": "tests",
        "schema_version": "ingest.v1",
        "source_channel": "api",
        "updated_at": now,
    }


def _route(given: Fixture) -> dict[str, Any]:
    now = given.clock.now()
    keys = {"id": given.new_id(), "request_id": given.new_id(), "subrequest_id": given.new_id(), "segment_id": "s1"}
    return keys | {"envelope": {}, "created_at": now, "updated_at": now}


def _action(given: Fixture) -> dict[str, Any]:
    now, identity = given.clock.now(), given.new_id()
    asked = {"id": identity, "request_key": str(identity), "tool_name": "pay", "tool_args": {}, "summary": "pay"}
    decided = {"status": "approved", "decided_by": "operator", "decided_at": now}
    return asked | decided | {"requested_by": "tests", "requested_at": now, "expires_at": now + timedelta(days=1)}


def _episode(given: Fixture) -> dict[str, Any]:
    now = given.clock.now()
    said = {"id": given.new_id(), "source": "tests", "speaker": "ann", "content": "I like tea", "importance": 0.5}
    return said | {"created_at": now, "expires_at": now + timedelta(days=1)}


def _delivery(given: Fixture) -> dict[str, Any]:
    now, identity = given.clock.now(), given.new_id()
    return {
        "id": identity,
        "idempotency_key": str(identity),
        "origin_butler": "general",
        "channel": "telegram",
        "intent": "send",
        "target_identity": "7",
        "ordering_key": str(identity),
        "message": "hello",
        "envelope": {},
        "next_attempt_at": now,
        "created_at": now,
        "updated_at": now,
    }


def _entry(given: Fixture) -> dict[str, Any]:
    now = given.clock.now()
    return {"key": str(given.new_id()), "payload": {}, "priority": 2, "scheduled_at": now, "seq": 1}


# Nothing is due before: an entry of the queue ends by being deleted, so the engine's `settle` puts one off here.
_LATER = datetime(2255, 1, 1, tzinfo=UTC)


_ENDPOINT = UUID(int=1)


def _webhook(given: Fixture) -> dict[str, Any]:
    now, identity = given.clock.now(), given.new_id()
    return {
        "id": identity,
        "endpoint_id": _ENDPOINT,
        "event_id": str(identity),
        "event_type": "delivery.delivered",
        "payload": {},
        "next_attempt_at": now,
        "created_at": now,
        "updated_at": now,
    }


CASES = [
    Case(
        table=MESSAGE_CLAIMS,
        schema="switchboard",
        row=_message,
        ended={"lifecycle_state": "parsed"},
        same_line="thread_key",
    ),
    Case(table=ROUTE_CLAIMS, schema="general", row=_route, ended={"lifecycle_state": "processed"}),
    Case(table=ACTION_CLAIMS, schema="messenger", row=_action, ended={"status": "executed"}),
    Case(table=EPISODE_CLAIMS, schema="switchboard", row=_episode, ended={"consolidation_status": "consolidated"}),
    Case(
        table=DELIVERY_CLAIMS,
        schema="messenger",
        row=_delivery,
        ended={"status": "delivered"},
        same_line="ordering_key",
    ),
    Case(table=QUEUE_CLAIMS, schema="outbound", row=_entry, ended={"state": "queued", "scheduled_at": _LATER}),
    Case(
        table=WEBHOOK_CLAIMS,
        schema="webhooks",
        row=_webhook,
        ended={"state": "delivered"},
        before="INSERT INTO webhooks.endpoints (id, url, event_types, secret, created_by, created_at, updated_at)"
        f" VALUES ('{_ENDPOINT}', 'https://example.com', '{{*}}', 'whsec_', 'tests', $1, $1) ON CONFLICT DO NOTHING",
    ),
]
