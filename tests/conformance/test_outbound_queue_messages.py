"""What the outbound queue refuses, and what comes through it unchanged, on every adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest

from butlers.errors import ValidationError
from butlers.outbound.queue import (
    DEEPEST_PAYLOAD,
    LARGEST_KEY,
    LARGEST_PAYLOAD,
    LONGEST_KEY,
    QueueAdapter,
    QueueMessage,
)
from butlers.storage.embedded import EmbeddedPostgres
from tests.conformance.outbound_queues import ADAPTERS, EMPTY, LEASE_S, START, at, keys, message, opened, take, take_one
from tests.redis_server import RedisServer


@pytest.fixture(params=ADAPTERS)
async def queue(
    request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres, redis_server: RedisServer
) -> AsyncIterator[QueueAdapter]:
    async with opened(request.param, postgres_server, redis_server) as queue:
        yield queue


# Characters of four bytes that no compression shortens.
UNLIKE = "".join(map(chr, Random(15).sample(range(0x10000, 0x110000), LONGEST_KEY)))
DEEP: dict[str, Any] = {}
for _ in range(DEEPEST_PAYLOAD):
    DEEP = {"in": DEEP}


@pytest.mark.parametrize(
    "bad",
    [
        message(""),
        message("x" * (LONGEST_KEY + 1)),
        message(UNLIKE[: LARGEST_KEY // 4 + 1]),
        message("nul\0"),
        message("half \ud800"),
        message("a", attempts=-1),
        message("a", scheduled_at=datetime(2026, 1, 1)),  # noqa: DTZ001
        message("a", scheduled_at=datetime.max.replace(tzinfo=START.tzinfo)),
        message("a", payload=[1]),
        message("a", payload={"x": float("nan")}),
        message("a", payload={"x": b"bytes"}),
        message("a", payload={"x": START}),
        message("a", payload={"x": "half \ud800"}),
        message("a", payload=DEEP),
        message("a", payload={"x": "ä" * (LARGEST_PAYLOAD // 2)}),
    ],
    ids=range(15),
)
async def test_a_message_that_cannot_be_stored_is_refused_and_nothing_is_written(
    queue: QueueAdapter, bad: QueueMessage
):
    with pytest.raises(ValidationError):
        await queue.enqueue([message("good"), bad])
    assert await queue.stats(now=at(0)) == EMPTY


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"empty": [{}, [], "", None, False, 0, -0.5], "nested": {"a": {"b": [1, [2, [3]]]}}},
        {"text": 'quote " backslash \\ slash / newline \n nul \0 tab \t ,"payload": {"x"', ',"payload":': 1},
        {"unicode": "Grüße, 世界 👩‍👩‍👧 \u2028 \u202e", "ключ": ["ß"]},
        {"large": 2**63, "precise": 9007199254740993, "small": 1e-300, "float": 0.1},
        {"long": "x" * 500_000},
    ],
    ids=["empty", "shapes", "text", "unicode", "numbers", "long"],
)
async def test_a_payload_comes_back_as_it_was(queue: QueueAdapter, payload: dict[str, Any]):
    await queue.enqueue([message("a", payload=payload)])
    assert (await queue.peek())[0].payload == payload
    leased = await take_one(queue)
    assert leased.message.payload == payload
    await queue.nack(leased, now=at(0))
    again = await take_one(queue)
    assert again.message.payload == payload
    await queue.dead_letter(again, "no")
    assert (await queue.dead_letters())[0].message.payload == payload


@pytest.mark.parametrize(
    "key",
    [
        '"quoted" {x}',
        ',"payload":',
        "a:b:{c}",
        "0000000000000001",
        "ключ 👩‍👩‍👧",
        "x" * LONGEST_KEY,
        UNLIKE[: LARGEST_KEY // 4],
        f"018f0000-0000-7000-8000-000000000000:{UNLIKE[:512]}",
        "-",
        "\x01\x7f/\\",
    ],
    ids=range(10),
)
async def test_any_text_may_be_a_key(queue: QueueAdapter, key: str):
    await queue.enqueue([message(key, 5)])
    assert await queue.reschedule([key], scheduled_at=at(0)) == 1
    leased = await take_one(queue)
    assert leased.message.key == key
    await queue.nack(leased, now=at(0))
    await queue.ack(await take_one(queue))
    assert (await queue.stats(now=at(0))).acknowledged == 1


async def test_a_payload_that_changes_later_does_not_change_the_entry(queue: QueueAdapter):
    payload: dict[str, Any] = {"list": [1]}
    await queue.enqueue([message("a", payload=payload)])
    payload["list"].append(2)
    leased = await take_one(queue)
    assert leased.message.payload == {"list": [1]}
    leased.message.payload["list"].append(3)
    await queue.nack(leased, now=at(0))
    assert (await take_one(queue)).message.payload == {"list": [1]}


async def test_times_of_any_zone_are_the_same_moment(queue: QueueAdapter):
    kabul = timezone(timedelta(hours=4, minutes=30))
    await queue.enqueue([message("a", scheduled_at=at(5).astimezone(kabul))])
    (shown,) = await queue.peek()
    assert (shown.scheduled_at, shown.scheduled_at.utcoffset()) == (at(5), timedelta(0))
    assert await queue.dequeue(now=at(4).astimezone(kabul), limit=1, worker="one") == []
    (leased,) = await queue.dequeue(now=at(5).astimezone(kabul), limit=1, worker="one")
    assert leased.lease_expires_at == at(5 + LEASE_S)


async def test_many_are_enqueued_and_taken_in_order_at_once(queue: QueueAdapter):
    names = [f"k{(index * 7919) % 2500}" for index in range(2500)]
    assert await queue.enqueue([message(name) for name in names]) == set(names)
    assert keys(await take(queue, limit=5000)) == names
