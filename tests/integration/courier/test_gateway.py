"""What programs of any language see: HTTP for producers, WebSocket with credit for subscribers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import msgpack  # type: ignore[import-untyped]
import pytest
import websockets

from tests.integration.courier.gateway import DEADLINE_S, INBOX, Socket, envelope, gateway

TOKENS = """
auth:
  tokens:
    - { token: "jen-secret", scopes: ["streams:agents/jen/*:enqueue", "streams:agents/jen/*:subscribe"] }
    - { token: "reader-secret", scopes: ["views:*:read"] }
    - { token: "slow-secret", scopes: ["streams:*:enqueue"], messagesPerMinute: 2 }
"""


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.scenario("C2-011")
async def test_a_posted_message_reaches_a_subscriber():
    async with gateway() as running:
        response = await running.http.post("/v1/enqueue", json={"to": INBOX, "envelope": envelope("e-91a")})
        assert (response.status_code, response.json()) == (200, {"id": "e-91a", "duplicate": False})
        assert (await running.send("e-91a")).json() == {"id": "e-91a", "duplicate": True}
        async with running.subscriber(credit=1) as jen:
            assert (await jen.hear())["deliver"] == envelope("e-91a")


@pytest.mark.scenario("C2-012")
async def test_a_subscriber_grants_credit_acks_and_nacks():
    async with gateway() as running, running.subscriber() as jen:
        await running.send("a", "b", "c")
        assert await jen.is_silent()
        await jen.say(credit=2)
        first = await jen.hear()
        assert (first["deliver"]["id"], first["attempt"], first["stream"]) == ("a", 1, INBOX)
        assert await jen.delivered() == "b"
        await jen.say(ack="a", lease=first["lease"])
        await jen.say(nack="b")
        assert await jen.is_silent()
        await jen.say(credit=10)
        assert [await jen.delivered(), await jen.delivered()] == ["c", "b"]
        await jen.say(ack=["b", {"id": "c"}])
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 3)


async def test_a_batch_answers_for_each_of_its_messages():
    async with gateway() as running:
        messages = [{"envelope": envelope("a")}, {"envelope": {"id": "b"}}, {"envelope": envelope("a")}, "no"]
        results = (await running.http.post("/v1/enqueue", json={"messages": messages})).json()["results"]
        assert [one.get("id") for one in results] == ["a", None, "a", None]
        assert results[2]["duplicate"]
        assert {results[1]["error"]["code"], results[3]["error"]["code"]} == {"InvalidEnvelope"}
        for wrong in ([], "x", [1] * 1_001):
            assert (await running.http.post("/v1/enqueue", json={"messages": wrong})).status_code == 400


@pytest.mark.scenario("C2-001")
@pytest.mark.parametrize("missing", ["id", "ts", "to", "type", "payload"])
async def test_an_envelope_without_a_required_field_is_refused_by_its_name(missing: str):
    async with gateway() as running:
        given = {name: value for name, value in envelope("a").items() if name != missing}
        response = await running.http.post("/v1/enqueue", json={"envelope": given})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "InvalidEnvelope")
        assert response.json()["error"]["field"] == missing
        async with running.subscriber() as jen:
            await jen.say(enqueue=given, ref="r1")
            answer = (await jen.hear())["error"]
            assert (answer["code"], answer["field"], answer["ref"]) == ("InvalidEnvelope", missing, "r1")
        assert running.core.streams() == [INBOX]  # the subscriber's
        assert running.core.audit(INBOX)["groups"]["default"]["accepted"] == 0


@pytest.mark.parametrize(
    "more",
    [
        {"id": ""},
        {"id": 7},
        {"ts": "yesterday"},
        {"ts": "2026-01-01T00:00:00"},
        {"tags": "sprint"},
        {"headers": {"a": 1}},
        {"to": "agents/../x y"},
        {"to": "a/$dead"},
        {"extra": 1},
        {"payload": {"text": "nul \x00"}},
        {"version": "1"},
    ],
)
async def test_a_wrong_envelope_is_refused_and_nothing_is_stored(more: dict[str, Any]):
    async with gateway() as running:
        response = await running.http.post("/v1/enqueue", json={"envelope": envelope("a") | more})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "InvalidEnvelope")
        assert running.core.streams() == []


async def test_a_message_over_the_limit_is_refused_and_one_below_is_taken():
    async with gateway() as running:
        for size, status in ((1_048_576 - 400, 200), (1_048_577, 413)):
            response = await running.http.post("/v1/enqueue", json={"envelope": envelope("a", payload="x" * size)})
            assert response.status_code == status
        async with running.subscriber() as jen:
            with pytest.raises(websockets.ConnectionClosed):
                await jen.connection.send("x" * 1_048_577)
                await jen.hear()
            assert jen.connection.close_code == 1009
        assert (await running.send("b")).status_code == 200


async def test_a_lost_socket_gives_back_at_once():
    async with gateway() as running:
        async with running.subscriber(credit=5) as jen:
            await running.send("a", "b")
            assert [await jen.delivered(), await jen.delivered()] == ["a", "b"]
            jen.connection.transport.abort()
        async with running.subscriber(credit=5) as tom:
            assert [await tom.delivered(), await tom.delivered()] == ["a", "b"]


@pytest.mark.scenario("C2-020")
async def test_refusals_have_their_codes_on_both_ways_in():
    async with gateway("streams: {maxDepth: 1}") as running:
        http = running.http
        assert (await http.post("/v1/enqueue", content=b"{")).status_code == 400
        unknown = await http.get("/v1/stats?stream=agents/none")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "UnknownStream")
        assert (await http.get("/v1/snapshot?view=none")).json()["error"]["code"] == "UnknownView"
        await running.send("a")
        full = await running.send("b")
        assert (full.status_code, full.json()["error"]["code"]) == (429, "StreamFull")
        assert int(full.headers["retry-after"]) >= 1
        assert "send again in" in full.json()["error"]["message"]
        assert (await http.post("/v1/dead/replay", json={"stream": INBOX, "ids": ["x"]})).status_code == 409
        async with running.subscriber(credit=1) as jen:
            assert await jen.delivered() == "a"
            await jen.say(ack="a")
            await jen.say(ack="a")
            assert await jen.error() == "LeaseConflict"
            await jen.say(credit=-1)
            assert await jen.error() == "InvalidEnvelope"
            await jen.say(dance=1)
            assert await jen.error() == "UnknownOp"
            await jen.say()
            assert await jen.error() == "UnknownOp"
            await jen.connection.send("{")
            assert await jen.error() == "InvalidJSON"
            await running.send("c")
            await jen.say(enqueue=envelope("d"))
            answer = (await jen.hear())["error"]
            assert (answer["code"], answer["retryAfterMs"] > 0) == ("StreamFull", True)
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with running.socket("/v1/subscribe?stream=a%20b"):
                pass
        assert refused.value.response.status_code == 400
    async with gateway(TOKENS) as running:
        assert (await running.http.get("/v1/stats")).status_code == 401
        forbidden = await running.http.get("/v1/stats?stream=agents/tom/inbox", headers=bearer("jen-secret"))
        assert (forbidden.status_code, forbidden.json()["error"]["code"]) == (403, "Forbidden")


@pytest.mark.scenario("C2-013")
async def test_tokens_with_scopes_and_the_loopback_without_any():
    async with gateway() as running:
        assert (await running.send("a")).status_code == 200  # no token is configured
    async with gateway(TOKENS) as running:
        assert (await running.send("a")).status_code == 401
        for token, status in (("jen-secret", 200), ("reader-secret", 403), ("guessed", 401)):
            response = await running.http.post("/v1/enqueue", json={"envelope": envelope("a")}, headers=bearer(token))
            assert response.status_code == status
        async with running.subscriber(credit=1, additional_headers=bearer("jen-secret")) as jen:
            assert await jen.delivered() == "a"
            await jen.say(enqueue=envelope("b", to="agents/tom/inbox"))
            assert await jen.error() == "Forbidden"
        # a browser's WebSocket cannot set headers
        async with running.subscriber(subprotocols=["courier.v1", "bearer.jen-secret"]) as jen:
            assert jen.connection.subprotocol == "courier.v1"
        for path, token, status in (
            ("/v1/subscribe?stream=agents/tom/inbox", "jen-secret", 403),
            ("/v1/subscribe?stream=*", "jen-secret", 403),
            (f"/v1/subscribe?stream={INBOX}", "", 401),
            ("/v1/live?view=latestPerAgent", "jen-secret", 403),
        ):
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with running.socket(path, additional_headers=bearer(token)):
                    pass
            assert refused.value.response.status_code == status


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example"])
async def test_no_page_of_another_site_may_use_the_loopback(origin: str):
    async with gateway() as running:
        response = await running.http.post("/v1/enqueue", json={"envelope": envelope("a")}, headers={"origin": origin})
        assert response.status_code == 403
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with running.socket(f"/v1/subscribe?stream={INBOX}", additional_headers={"origin": origin}):
                pass
        assert refused.value.response.status_code == 403
        assert running.core.streams() == []


async def test_a_page_that_the_configuration_names_may():
    async with gateway("gateway: {port: 0, origins: ['https://desk.example']}") as running:
        headers = {"origin": "https://desk.example"}
        response = await running.http.post("/v1/enqueue", json={"envelope": envelope("a")}, headers=headers)
        assert response.status_code == 200


@pytest.mark.scenario("C2-021")
async def test_scopes_and_rates_by_token_and_by_stream():
    streams = 'streams: {perStreamCaps: {"agents/busy": {messagesPerMinute: 3}}}\n'
    async with gateway(streams + TOKENS) as running:

        async def status(token: str, id: str, to: str) -> int:
            body = {"envelope": envelope(id, to=to)}
            response: httpx2.Response = await running.http.post("/v1/enqueue", json=body, headers=bearer(token))
            return response.status_code

        assert await status("jen-secret", "x", "agents/tom") == 403
        assert [await status("slow-secret", f"a{n}", "agents/tom") for n in range(3)] == [200, 200, 429]
        assert [await status("jen-secret", f"b{n}", "agents/jen/inbox") for n in range(5)] == [200] * 5
    async with gateway(streams) as running:
        answers = [await running.send(f"a{n}", to="agents/busy") for n in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[-1].json()["error"]["code"] == "RateLimited"
        assert answers[-1].json()["error"]["retryAfterMs"] > 0
        assert (await running.send("b", to="agents/other")).status_code == 200


async def test_message_pack_carries_the_same_frames():
    async with gateway() as running:
        await running.send("a")
        async with running.socket(f"/v1/subscribe?stream={INBOX}&format=msgpack") as jen:
            await jen.connection.send(msgpack.packb({"credit": 1}))
            frame = msgpack.unpackb(await jen.connection.recv())
            assert frame["deliver"] == envelope("a")
            await jen.connection.send(msgpack.packb({"ack": "a", "lease": frame["lease"]}))
            await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 1)
            await jen.connection.send(b"\xc1garbage")
            assert msgpack.unpackb(await jen.connection.recv())["error"]["code"] == "InvalidJSON"
            assert await jen.closed() == 1007


async def test_binary_garbage_on_a_json_socket_closes_it_alone():
    async with gateway() as running, running.subscriber(credit=5) as other:
        async with running.subscriber() as jen:
            await jen.connection.send(b"\x00\xff\x00")
            assert await jen.error() == "InvalidJSON"
            assert await jen.closed() == 1003
        await running.send("a")
        assert await other.delivered() == "a"


async def test_a_flood_of_wrong_frames_ends_the_socket():
    async with gateway() as running, running.subscriber() as jen:
        for _ in range(101):
            await jen.connection.send("{")
        assert await jen.closed() == 1008
        assert (await running.send("a")).status_code == 200


async def test_a_subscriber_without_credit_is_busy_and_not_absent():
    async with gateway() as running, running.subscriber() as jen:
        stats = (await running.http.get(f"/v1/stats?stream={INBOX}")).json()
        assert (stats["subscribers"], stats["busy"]) == (1, 1)
        await jen.say(credit=3)
        assert await jen.is_silent()
        stats = (await running.http.get(f"/v1/stats?stream={INBOX}")).json()
        assert (stats["subscribers"], stats["busy"]) == (1, 0)


async def test_a_slow_consumer_holds_up_no_one_else():
    async with gateway() as running, running.subscriber("agents/slow/inbox", credit=100_000) as slow:
        for round in range(8):
            big = [
                {"envelope": envelope(f"{round}-{n}", to="agents/slow/inbox", payload="x" * 10_000)} for n in range(90)
            ]
            await running.http.post("/v1/enqueue", json={"messages": big})
        async with running.subscriber(credit=10) as jen:
            await running.send("a")
            assert await jen.delivered() == "a"
        assert await slow.delivered() == "0-0"
        slow.connection.transport.abort()


@pytest.mark.scenario("C2-019")
async def test_metrics_of_every_stream_and_a_line_for_every_event(tmp_path: Path):
    events = tmp_path / "events.jsonl"
    async with gateway(f"events: '{events}'") as running, running.subscriber(credit=5) as jen:
        await running.send("a", "b")
        await jen.delivered()
        await jen.say(ack="a")
        await jen.delivered()
        await jen.say(nack="b")
        await jen.delivered()
        text = (await running.http.get("/v1/metrics")).text
        for expected in (
            f'courier_q_in_total{{stream="{INBOX}"}} 2',
            f'courier_q_out_total{{stream="{INBOX}"}} 3',
            f'courier_q_ack_total{{stream="{INBOX}"}} 1',
            f'courier_q_nack_total{{stream="{INBOX}"}} 1',
            f'courier_q_re_total{{stream="{INBOX}"}} 1',
            f'courier_q_depth{{stream="{INBOX}"}} 0',
            f'courier_q_if{{stream="{INBOX}"}} 1',
        ):
            assert expected in text.splitlines()
        assert "courier_q_lat_p50_ms" in text
        assert "courier_q_lat_p95_ms" in text
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert [line["event"] for line in lines][:6] == ["enqueue", "deliver", "enqueue", "deliver", "ack", "nack"]
    assert {(line["stream"], line["id"]) for line in lines} == {(INBOX, "a"), (INBOX, "b")}
    assert "payload" not in events.read_text()


@pytest.mark.scenario("C2-014")
@pytest.mark.scenario("C2-015")
@pytest.mark.scenario("C2-016")
async def test_triggers_answer_what_is_posted():
    rules = """
triggers:
  - id: jen.log
    when: {to: agents/jen/outbox, type: sprint.log, from: jen, tags: [sprint], headers: {team: blue}}
    do: [{action: notify, to: agents/architect/inbox, payload: {title: "Jen: ${env.payload.title}", ref: "${env.id}"}}]
    limits: {cooldownMs: 3600000}
"""
    fits: dict[str, Any] = {
        "to": "agents/jen/outbox",
        "type": "sprint.log",
        "from": "jen",
        "tags": ["sprint"],
        "headers": {"team": "blue"},
        "payload": {"title": "done"},
    }
    wrong: list[dict[str, Any]] = [
        {"to": "agents/jen/inbox"},
        {"type": "x"},
        {"from": "tom"},
        {"tags": []},
        {"headers": {"team": "red"}},
    ]
    async with gateway(rules) as running, running.subscriber("agents/architect/inbox", credit=100) as architect:
        for number, other in enumerate(wrong):
            await running.send(f"no-{number}", **(fits | other))
        for number in range(20):
            await running.send(f"yes-{number}", **fits)
        frame = await architect.hear()
        assert frame["deliver"]["payload"] == {"title": "Jen: done", "ref": "yes-0"}
        assert await architect.is_silent()  # the cooldown
        body = {"envelope": envelope("x", **fits)}
        (explained,) = (await running.http.post("/v1/explain", json=body)).json()["rules"]
        assert explained["cooldownLeftMs"] > 0


async def test_dead_messages_are_listed_inspected_replayed_and_discarded():
    async with gateway() as running, running.subscriber(credit=10) as jen:
        await running.send("a", "b")
        await jen.delivered()
        await jen.delivered()
        await jen.say(nack="a", **{"as": "poison", "reason": "cannot be read"})
        await jen.say(nack="b", **{"as": "poison"})
        await running.until(lambda: len(running.core.dead(INBOX)) == 2)
        dead = (await running.http.get(f"/v1/dead?stream={INBOX}")).json()
        assert dead["stream"] == f"{INBOX}/$dead"
        assert {one["id"]: one["reason"] for one in dead["messages"]}["a"] == "cannot be read"
        only = (await running.http.get(f"/v1/dead?stream={INBOX}&id=b")).json()["messages"]
        assert [one["envelope"] for one in only] == [envelope("b")]
        answer = await running.http.post("/v1/dead/replay", json={"stream": INBOX, "ids": ["a"]})
        assert answer.json() == {"replayed": 1}
        assert await jen.delivered() == "a"
        assert (await running.http.post("/v1/dead/discard", json={"stream": INBOX})).json() == {"discarded": 1}
        assert (await running.http.get(f"/v1/audit?stream={INBOX}")).json()["balanced"]


async def test_a_stream_can_be_paused_drained_and_resumed():
    async with gateway() as running, running.subscriber(credit=10) as jen:
        steer = running.http.post
        assert (await steer("/v1/streams/pause", json={"stream": INBOX})).json()["paused"]
        await running.send("a")
        assert await jen.is_silent()
        await steer("/v1/streams/resume", json={"stream": INBOX})
        assert await jen.delivered() == "a"
        await steer("/v1/streams/drain", json={"stream": INBOX})
        assert (await running.send("b")).status_code == 429


async def test_many_idle_sockets_and_one_message():
    async with gateway() as running:
        sockets = [websockets.connect(f"ws://{running.host}/v1/subscribe?stream={INBOX}") for _ in range(50)]
        open_sockets = await asyncio.gather(*sockets)
        assert (await running.http.get("/health")).json()["subscribers"] == 50
        await open_sockets[7].send(json.dumps({"credit": 1}))
        await running.send("a")
        assert json.loads(await open_sockets[7].recv())["deliver"]["id"] == "a"
        await asyncio.gather(*(socket.close() for socket in open_sockets))
        await running.until(lambda: len(running.server.gateway.sockets) == 0)


async def test_a_lease_that_expires_comes_again_by_itself_and_an_extended_one_does_not():
    async with gateway("streams: {defaultLeaseMs: 300}") as running, running.subscriber(credit=10) as jen:
        await running.send("short", "long")
        assert [await jen.delivered(), await jen.delivered()] == ["short", "long"]
        await jen.say(extend="long", extendMs=60_000)
        frame = await jen.hear()
        assert (frame["deliver"]["id"], frame["attempt"]) == ("short", 2)
        assert running.core.stats(INBOX)["counts"]["expired"] == 1


async def test_delays_partitions_priorities_groups_and_patterns_by_socket():
    async with gateway() as running:
        await running.send("low", headers={"priority": "low"})
        await running.send("high", headers={"priority": "high"})
        await running.send("p1", "p2", partitionKey="p")
        async with running.subscriber("agents/*/inbox", credit=10) as jen:
            assert [await jen.delivered() for _ in range(3)] == ["high", "p1", "low"]  # p2 waits for p1
            await jen.say(nack="p1", delayMs=50)
            assert await jen.delivered() == "p1"
            await jen.say(ack="p1", stream=INBOX)
            assert await jen.delivered() == "p2"
        async with (
            running.subscriber("audit/log&group=one", credit=5) as one,
            running.subscriber("audit/log&group=two", credit=5) as two,
        ):
            await running.send("x", to="audit/log")
            assert [await one.delivered(), await two.delivered()] == ["x", "x"]


async def test_what_only_one_format_can_hold_is_refused_or_set_aside():
    async with gateway() as running, running.subscriber() as jen:
        await jen.connection.send('{"enqueue": {"id": "a", "payload": NaN}}')
        assert await jen.error() == "InvalidJSON"
        await running.send("big", payload=2**70)
        async with running.socket(f"/v1/subscribe?stream={INBOX}&format=msgpack") as packed:
            await packed.connection.send(msgpack.packb({"credit": 5}))
            await running.until(lambda: len(running.core.dead(INBOX)) == 1)
            await running.send("small")
            assert msgpack.unpackb(await packed.connection.recv())["deliver"]["id"] == "small"


async def test_a_client_that_does_not_read_its_answers_is_not_read_either():
    async with gateway("gateway: {port: 0, messagesPerMinute: null}") as running, running.subscriber() as jen:
        frame = json.dumps({"enqueue": envelope("same"), "ref": "r" * 250})
        flood = asyncio.create_task(_flood(jen, frame, 200_000))
        seen = [-1, -2]
        async with asyncio.timeout(DEADLINE_S):
            while seen[-1] != seen[-2] or not seen[-1]:  # until the socket is read no more
                await asyncio.sleep(0.5)
                seen.append(running.core.stats(INBOX)["counts"]["duplicates"])
        assert not flood.done()  # held back, and what waits for it is bounded
        assert seen[-1] < 200_000
        assert (await running.send("other", to="agents/tom/inbox")).status_code == 200
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
        jen.connection.transport.abort()
        await running.until(lambda: not running.core.stats(INBOX)["subscribers"])  # nobody waits for it to read


async def _flood(jen: Socket, frame: str, times: int) -> None:
    for _ in range(times):
        await jen.connection.send(frame)


@pytest.mark.parametrize(("limit", "status"), [(2_097_152, 200), (1_048_576, 413)])
async def test_the_limit_of_a_message_is_the_configured_one(limit: int, status: int):
    async with gateway(f"gateway: {{port: 0, maxMessageBytes: {limit}}}") as running:
        assert (await running.send("a", payload="x" * 1_500_000)).status_code == status


async def test_a_socket_has_a_rate():
    async with gateway("gateway: {port: 0, messagesPerMinute: 2}") as running, running.subscriber() as jen:
        for number in range(3):
            await jen.say(enqueue=envelope(f"m{number}"))
        answers = [await jen.hear() for _ in range(3)]
        assert [next(iter(answer)) for answer in answers] == ["enqueued", "enqueued", "error"]
        assert answers[-1]["error"]["code"] == "RateLimited"
