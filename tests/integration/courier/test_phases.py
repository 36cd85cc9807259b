"""The later phases of the design, each as one story through the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from butlers.clock import ManualClock
from tests.integration.courier.gateway import INBOX, RunningGateway, Socket, envelope, gateway

PHASE_B = """
streams: {recentIds: 3, perStreamCaps: {agents/jen/inbox: {messagesPerMinute: 10}}}
auth:
  tokens:
    - {token: "jen-secret", messagesPerMinute: 20, scopes: ["streams:*:enqueue", "streams:*:subscribe", "views:*:read"]}
"""
BEARER = {"authorization": "Bearer jen-secret"}


async def post(running: RunningGateway, id: str, **more: Any) -> Any:
    return await running.http.post("/v1/enqueue", json={"envelope": envelope(id, **more)}, headers=BEARER)


@pytest.mark.scenario("C2-025")
async def test_phase_b_delays_partitions_buckets_recent_ids_and_a_live_view():
    clock = ManualClock()
    async with (
        gateway(PHASE_B, clock=clock) as running,
        running.socket("/v1/live?view=latestPerAgent", additional_headers=BEARER) as live,
        running.subscriber(credit=100, additional_headers=BEARER) as jen,
    ):
        assert (await live.hear())["snapshot"]["entries"] == {}

        # Partition key: the second waits for the first, also while that is delayed.
        for id in ("first", "second"):
            assert (await post(running, id, partitionKey="sprint")).status_code == 200
        assert [(await live.hear())["change"]["envelope"]["id"] for _ in range(2)] == ["first", "second"]
        assert await jen.delivered() == "first"
        await jen.say(nack="first", delayMs=2_000)
        assert await jen.is_silent()
        clock.advance(2)
        again = await jen.hear()
        assert (again["deliver"]["id"], again["attempt"]) == ("first", 2)
        await jen.say(ack="first")
        assert await jen.delivered() == "second"
        await jen.say(ack="second")

        # The cache of ids: a repeat is taken once, and forgotten when three others have come.
        assert (await post(running, "first")).json() == {"id": "first", "duplicate": True}
        for id in ("x", "y", "z"):
            await post(running, id)
            await jen.say(ack=await jen.delivered())
            assert (await live.hear())["change"]["envelope"]["id"] == id
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 5)
        assert (await post(running, "first")).json() == {"id": "first", "duplicate": False}
        assert (await live.hear())["change"]["key"] == INBOX

        # Token buckets: seven messages of the ten and the twenty were sent; both buckets fill up again.
        answers = [await post(running, f"m{number}") for number in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2
        assert "agents/jen/inbox may send 10" in answers[-1].json()["error"]["message"]
        answers = [await post(running, f"n{number}", to="agents/tom/inbox") for number in range(10)]
        assert [answer.status_code for answer in answers] == [200] * 8 + [429] * 2
        assert "this token may send 20" in answers[-1].json()["error"]["message"]
        clock.advance(60)
        assert (await post(running, "later")).status_code == 200


PHASE_C = """
triggers:
  - id: add
    when: {type: sprint.log}
    do: [{action: enrich, tags: [seen], headers: {priority: high, team: blue}, payload: {by: "${env.from}", title: no}}]
  - {id: copy, when: {tags: [seen]}, do: [{action: route, to: audit/log}]}
  - {id: tell, when: {to: audit/log}, do: [{action: notify, to: agents/architect/inbox, payload: {ref: "${env.corr}"}}]}
"""


async def answered(pipe: Socket, **frame: Any) -> Any:
    """The answer to an operation on the pipe."""
    await pipe.say(**frame)
    while (answer := await pipe.hear())["op"] == "deliver":
        pass
    return answer


@pytest.mark.scenario("C2-026")
async def test_phase_c_a_message_is_enriched_routed_and_seen_through_the_gateway_and_the_kernel():
    async with (
        gateway(PHASE_C) as running,
        running.subscriber(credit=5) as jen,
        running.subscriber("audit/log", credit=5) as auditor,
        running.subscriber("agents/architect/inbox", credit=5) as architect,
        running.socket("/v1/pipe") as pipe,
    ):
        given: dict[str, Any] = {"type": "sprint.log", "from": "jen", "headers": {"priority": "low"}}
        assert (await running.send("e-1", payload={"title": "done"}, **given)).status_code == 200
        enriched = (await jen.hear())["deliver"]
        assert enriched["tags"] == ["seen"]
        assert enriched["headers"] == {"priority": "low", "team": "blue"}  # what the producer wrote stays
        assert enriched["payload"] == {"title": "done", "by": "jen"}
        copy = (await auditor.hear())["deliver"]
        assert copy == enriched | {"id": copy["id"], "to": "audit/log", "corr": "e-1"}
        assert copy["id"] != "e-1"
        assert (await architect.hear())["deliver"]["payload"] == {"ref": "e-1"}
        assert (await running.send("e-1", payload={}, **given)).json()["duplicate"]  # which sets off nothing
        for socket in (jen, auditor, architect):
            assert await socket.is_silent()

        # The adapter: what comes by the pipe takes the same way, and nonsense on it gets an answer.
        sent = await answered(pipe, op="enqueue", envelope=envelope("e-2", **given))
        assert (sent["op"], sent["id"]) == ("ok", "e-2")
        assert (await auditor.hear())["deliver"]["corr"] == "e-2"
        await _nonsense_is_answered(pipe)
        assert (await answered(pipe, op="hello"))["service"] == "courier"


async def _nonsense_is_answered(pipe: Socket) -> None:
    assert (await answered(pipe, op="subscribe", stream=INBOX))["op"] == "ok"
    for frame, code in (
        ({"op": "dance"}, "UnknownOp"),
        ({"op": ["enqueue"]}, "UnknownOp"),
        ({"op": None}, "UnknownOp"),
        ({"op": "enqueue", "envelope": 7}, "InvalidEnvelope"),
        ({"op": "enqueue"}, "InvalidEnvelope"),
        ({"op": "subscribe", "stream": INBOX}, "InvalidEnvelope"),
        ({"op": "grant", "credit": 1.5}, "InvalidEnvelope"),
        ({"op": "grant"}, "InvalidEnvelope"),
        ({"op": "ack", "id": "none"}, "LeaseConflict"),
        ({"op": "ack", "id": "none", "lease": ["x"]}, "InvalidEnvelope"),
        ({"op": "ack", "id": 5}, "InvalidEnvelope"),
        ({"op": "nack", "id": "none", "delayMs": "x"}, "InvalidEnvelope"),
        ({"op": "nack", "id": "none", "as": ["failed"]}, "InvalidEnvelope"),
        ({"op": "nack", "id": "none", "lease": {}}, "InvalidEnvelope"),
        ({"op": "stats", "stream": "agents/none"}, "UnknownStream"),
        ({"op": "snapshot", "view": "none"}, "UnknownView"),
    ):
        answer = await answered(pipe, **frame)
        assert (answer["op"], answer.get("error", {}).get("code")) == ("error", code), frame


async def test_a_pipe_that_is_sent_bytes_is_closed_with_its_code():
    async with gateway() as running, running.socket("/v1/pipe") as pipe:
        await pipe.connection.send("no JSON")
        assert (await pipe.hear())["error"]["code"] == "UnknownOp"
        await pipe.connection.send(b"\x00\xff")
        assert await pipe.closed() == 1003
        await running.until(lambda: not len(running.server.gateway.sockets))
