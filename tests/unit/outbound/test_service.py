"""The service on a real database: decided and scheduled in one transaction."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from butlers.errors import ValidationError
from butlers.outbound import MIGRATIONS
from butlers.outbound.service import MessageDeliveryService, OutboundStore, sender_turn
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database

_NOW = datetime(2026, 6, 10, 21, 0, tzinfo=UTC)
_NIGHT = {"start_time": "22:00", "end_time": "07:00", "timezone": "Europe/Berlin"}


@pytest.fixture
async def database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    async with cloned_database(postgres_server, [MIGRATIONS]) as database:
        yield database


@pytest.fixture
async def store(database: Database) -> OutboundStore:
    store = OutboundStore(database)
    await store.grant("billing", "messages:send:*", now=_NOW)
    for name in ("ann", "bob", "cid"):
        await store.grant(name, "messages:receive:*", now=_NOW)
    return store


@pytest.fixture
def service(database: Database, store: OutboundStore) -> MessageDeliveryService:
    return MessageDeliveryService(database=database, store=store)


def _message(*recipients: str, **changes: Any) -> str:
    return json.dumps({"id": str(uuid4()), "sender_id": "billing", "body": "Hi", "recipient_ids": recipients} | changes)


async def test_what_may_go_is_queued_and_what_may_not_is_kept_with_its_reason(
    database: Database, store: OutboundStore, service: MessageDeliveryService
) -> None:
    await store.set_preferences("ann", json.dumps({"quietHours": _NIGHT}), now=_NOW)
    await store.set_organization_defaults(
        "acme", json.dumps({"notifications": {"matrix": {"message": {"sms": True}}}}), now=_NOW
    )
    await store.set_system_defaults(json.dumps({"channels": ["email", "sms"]}), now=_NOW)

    result = await service.send_message(_message("ann", "stranger", "bob", organization_id="acme"), now=_NOW)

    assert result.to_wire() | {"message_id": None} == {
        "message_id": None,
        "queued": [
            {"recipient_id": "ann", "channel": "sms", "scheduled_at": "2026-06-11T05:00:00+00:00"},
            {"recipient_id": "bob", "channel": "sms", "scheduled_at": "2026-06-10T21:00:00+00:00"},
        ],
        "blocked": [{"recipient_id": "stranger", "reason": "recipient-permission", "detail": "messages:receive:sms"}],
    }
    rows = await database.fetch(
        "SELECT dedupe_key, channel, scheduled_at, state, attempts, priority "
        "FROM outbound.scheduled_messages ORDER BY dedupe_key"
    )
    assert [tuple(row) for row in rows] == [
        (f"{result.message_id}:ann", "sms", datetime(2026, 6, 11, 5, tzinfo=UTC), "queued", 0, "normal"),
        (f"{result.message_id}:bob", "sms", _NOW, "queued", 0, "normal"),
    ]
    assert await database.fetchval("SELECT reason FROM outbound.blocked_recipients") == "recipient-permission"


async def test_a_repeat_gets_its_first_answer(
    database: Database, store: OutboundStore, service: MessageDeliveryService
) -> None:
    message = _message("ann", "stranger")
    first = await service.send_message(message, now=_NOW)
    await store.grant("stranger", "messages:receive:*", now=_NOW)

    assert await service.send_message(message, now=_NOW + timedelta(hours=1)) == first
    more = json.loads(message) | {"recipient_ids": ["bob", "ann"]}
    added = await service.send_message(json.dumps(more), now=_NOW + timedelta(hours=1))

    assert [(q.recipient_id, q.scheduled_at.hour) for q in added.queued] == [("bob", 22), ("ann", 21)]
    assert await database.fetchval("SELECT count(*) FROM outbound.scheduled_messages") == 2


async def test_two_who_add_the_same_recipient_at_once_get_one_answer(
    database: Database, service: MessageDeliveryService
) -> None:
    message = _message("ann")
    first = await service.send_message(message, now=_NOW)
    more = json.dumps(json.loads(message) | {"recipient_ids": ["ann", "bob"]})

    # Both are on their way before either may decide.
    async with asyncio.TaskGroup() as group, database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", sender_turn("billing"))
        calls = [group.create_task(service.send_message(more, now=_NOW + timedelta(hours=n))) for n in (1, 2)]
        await _until_waiting(database, 2)

    one, other = (call.result() for call in calls)
    assert one == other
    assert one.queued[0] == first.queued[0]
    assert await database.fetchval("SELECT count(*) FROM outbound.scheduled_messages") == 2


async def _until_waiting(database: Database, count: int) -> None:
    query = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    async with asyncio.timeout(20):
        while await database.fetchval(query) < count:
            await asyncio.sleep(0)


async def test_an_id_stands_for_one_message(database: Database, service: MessageDeliveryService) -> None:
    message = _message("ann")
    await service.send_message(message, now=_NOW)

    with pytest.raises(ValidationError, match="used for another message"):
        await service.send_message(json.dumps(json.loads(message) | {"body": "Other"}), now=_NOW)


@pytest.mark.parametrize("message", [_message(), "{", "[]", _message("ann", sender_id=" ")])
async def test_a_wrong_message_leaves_nothing_behind(
    database: Database, service: MessageDeliveryService, message: str
) -> None:
    with pytest.raises(ValidationError):
        await service.send_message(message, now=_NOW)

    assert await database.fetchval("SELECT count(*) FROM outbound.messages") == 0


async def test_messages_at_once_share_the_senders_limits(database: Database, service: MessageDeliveryService) -> None:
    policy = {"pacing": {"max_per_minute": 4, "max_per_hour": 500, "max_per_day": 20}}
    messages = [_message("ann", "bob", "cid", delivery_policy=policy) for _ in range(8)]

    results = await asyncio.gather(*(service.send_message(message, now=_NOW) for message in messages))

    times = Counter(row["scheduled_at"] for row in await database.fetch("SELECT * FROM outbound.scheduled_messages"))
    assert max(times.values()) == 4
    assert sum(n for moment, n in times.items() if moment.date() == _NOW.date()) == 20
    assert sum(len(result.queued) for result in results) == 24


async def test_what_nobody_could_read_is_not_stored(store: OutboundStore) -> None:
    with pytest.raises(ValidationError, match=r"quietHours\.0\.timezone"):
        await store.set_preferences("ann", json.dumps({"quietHours": _NIGHT | {"timezone": "Nowhere"}}), now=_NOW)
