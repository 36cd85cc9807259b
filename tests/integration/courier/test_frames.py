"""Frames that hold several messages, and frames that come in pieces or wait for a client that does not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tests.integration.courier.gateway import INBOX, Socket, envelope, gateway

UNLIMITED = "gateway: {port: 0, messagesPerMinute: null}"


async def test_several_envelopes_in_one_frame_are_answered_one_by_one():
    async with gateway() as running, running.subscriber(credit=5) as jen, running.subscriber() as producer:
        wrong: list[Any] = [envelope("b", ts="yesterday"), 7]
        await producer.say(enqueue=[envelope("a"), *wrong, envelope("a"), envelope("c")], ref="r1")
        answer = await producer.hear()
        assert answer["ref"] == "r1"
        accepted = {"id": "a", "duplicate": False}
        assert [answer["enqueued"][place] for place in (0, 3)] == [accepted, accepted | {"duplicate": True}]
        refused = [answer["enqueued"][place]["error"] for place in (1, 2)]
        assert [(error["code"], error["field"]) for error in refused] == [
            ("InvalidEnvelope", "ts"),
            ("InvalidEnvelope", "envelope"),
        ]
        assert [await jen.delivered() for _ in range(2)] == ["a", "c"]
        for wrong_batch in ([], [envelope("x")] * 1_001):
            await producer.say(enqueue=wrong_batch)
            assert await producer.error() == "InvalidEnvelope"


async def test_several_envelopes_count_one_by_one_against_the_rate():
    async with gateway("gateway: {port: 0, messagesPerMinute: 2}") as running, running.subscriber() as jen:
        await jen.say(enqueue=[envelope(f"m{number}") for number in range(4)])
        answers = (await jen.hear())["enqueued"]
        assert [answer.get("id") or answer["error"]["code"] for answer in answers] == [
            "m0",
            "m1",
            "RateLimited",
            "RateLimited",
        ]


async def test_an_envelope_outside_the_scope_ends_the_socket_after_the_answer():
    tokens = 'auth: {tokens: [{token: "jen-secret", scopes: ["streams:agents/jen/*:enqueue", "streams:*:subscribe"]}]}'
    headers = {"authorization": "Bearer jen-secret"}
    async with gateway(tokens) as running, running.subscriber(additional_headers=headers) as jen:
        await jen.say(enqueue=[envelope("a"), envelope("b", to="agents/tom/inbox")])
        answers = (await jen.hear())["enqueued"]
        assert (answers[0]["id"], answers[1]["error"]["code"]) == ("a", "Forbidden")
        assert await jen.closed() == 1008


async def test_deliveries_come_together_for_those_who_ask():
    async with gateway() as running, running.socket(f"/v1/subscribe?stream={INBOX}&batch=1") as jen:
        await running.send("a", "b", "c")
        await jen.say(credit=2)
        deliveries = (await jen.hear())["deliveries"]
        assert [one["deliver"]["id"] for one in deliveries] == ["a", "b"]
        assert all(set(one) == {"deliver", "stream", "lease", "attempt"} for one in deliveries)
        await jen.say(ack=[{"id": one["deliver"]["id"], "lease": one["lease"]} for one in deliveries], credit=1)
        assert [one["deliver"]["id"] for one in (await jen.hear())["deliveries"]] == ["c"]
        assert running.core.stats(INBOX)["counts"]["acked"] == 2


async def test_deliveries_come_together_as_message_pack_without_those_it_cannot_hold():
    async with gateway() as running:
        await running.send("a")
        await running.send("big", payload=2**70)
        await running.send("b")
        async with running.socket(f"/v1/subscribe?stream={INBOX}&format=msgpack&batch=1") as jen:
            await jen.connection.send(msgpack.packb({"credit": 3}))
            deliveries = msgpack.unpackb(await jen.connection.recv())["deliveries"]
            assert [one["deliver"]["id"] for one in deliveries] == ["a", "b"]
            await running.until(lambda: len(running.core.dead(INBOX)) == 1)


async def test_many_large_deliveries_are_split_over_frames():
    async with gateway() as running, running.socket(f"/v1/subscribe?stream={INBOX}&batch=1") as jen:
        for number in range(8):
            await running.send(str(number), payload="x" * 100_000)
        await jen.say(credit=8)
        frames = [(await jen.hear())["deliveries"] for _ in range(3)]
        assert [len(frame) for frame in frames] == [3, 3, 2]
        assert [one["deliver"]["id"] for frame in frames for one in frame] == [str(number) for number in range(8)]


async def test_an_unknown_choice_in_the_query_is_refused():
    async with gateway() as running:
        for query in ("batch=2", "format=xml"):
            response = await running.http.get(f"/v1/subscribe?stream={INBOX}&{query}", headers=_UPGRADE)
            assert response.status_code == 400
            assert response.json()["error"]["field"] == query.partition("=")[0]


_UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def test_a_frame_in_fragments_and_many_frames_at_once_are_read_in_order():
    async with gateway(UNLIMITED) as running, running.subscriber() as jen:
        text = json.dumps({"enqueue": envelope("first"), "ref": "r"})
        await jen.connection.send([text[:20], text[20:50], text[50:]])
        for number in range(300):
            size = 20_000 if number % 50 == 0 else 10
            await jen.say(enqueue=envelope(str(number), payload="é" * size), ref=str(number))
        assert [(await jen.hear())["ref"] for _ in range(301)] == ["r", *map(str, range(300))]


async def test_what_waits_for_a_slow_reader_comes_in_its_order():
    async with (
        gateway(UNLIMITED) as running,
        running.subscriber(credit=2_000) as slow,
        running.subscriber() as producer,
    ):
        for first in range(0, 2_000, 100):
            batch = [envelope(str(first + number), payload="x" * 5_000) for number in range(100)]
            await producer.say(enqueue=batch)
            await producer.hear()
        assert running.core.stats(INBOX)["inflight"] == 2_000
        async with asyncio.timeout(30):
            assert [await slow.delivered() for _ in range(2_000)] == [str(number) for number in range(2_000)]


async def test_a_client_that_goes_without_reading_its_answers_is_gone_at_once():
    async with gateway(UNLIMITED) as running, running.subscriber(credit=10) as jen:
        await running.send("held")
        frame = json.dumps({"enqueue": envelope("same"), "ref": "r" * 250})
        flood = asyncio.create_task(_say_often(jen, frame, 100_000))
        await running.until(lambda: running.core.stats(INBOX)["counts"]["duplicates"] > 3_000)
        await asyncio.sleep(1)
        assert not flood.done()
        flood.cancel()
        jen.connection.transport.abort()
        await running.until(lambda: len(running.server.gateway.sockets) == 0)
        assert running.core.stats(INBOX)["subscribers"] == running.core.stats(INBOX)["inflight"] == 0


async def _say_often(jen: Socket, frame: str, times: int) -> None:
    for _ in range(times):
        await jen.connection.send(frame)
