"""What the first implementation got wrong, by the gateway. A test is named after the fault, and shows what is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from butlers.clock import ManualClock
from tests.integration.courier.gateway import INBOX, envelope, gateway

# "YAML limits were never read" is `test_configuration`, key by key.


async def test_a_full_ring_silently_dropped_the_oldest():
    async with gateway("streams: {maxDepth: 2}") as running:
        answers = [await running.send(id) for id in ("a", "b", "c")]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        refused = answers[-1].json()["error"]
        assert (refused["code"], refused["retryAfterMs"] > 0) == ("StreamFull", True)
        async with running.subscriber(credit=9) as jen:
            assert [await jen.delivered(), await jen.delivered()] == ["a", "b"]
            await jen.say(ack=["a", "b"])
            await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 2)
            assert (await running.send("c")).status_code == 200  # the same message, sent again, is taken
            assert await jen.delivered() == "c"


async def test_the_second_subscriber_of_a_stream_threw():
    async with gateway() as running, running.subscriber(credit=2) as one, running.subscriber(credit=2) as two:
        await running.send("a", "b", "c", "d")
        assert {await one.delivered(), await one.delivered()} | {await two.delivered(), await two.delivered()} == set(
            "abcd"
        )


async def test_a_closed_socket_kept_its_leases_until_the_ttl():
    """The lease is a day: only the end of the socket can have given it back. `test_hostile_clients` has ruder ends."""
    async with gateway("streams: {defaultLeaseMs: 86400000}") as running, running.subscriber() as tom:
        async with running.subscriber(credit=5) as jen:
            await running.send("a", "b")
            assert [await jen.delivered(), await jen.delivered()] == ["a", "b"]
        await tom.say(credit=5)
        frames = [await tom.hear(), await tom.hear()]
        assert [(frame["deliver"]["id"], frame["attempt"]) for frame in frames] == [("a", 2), ("b", 2)]


async def test_all_sockets_shared_one_callback():
    names = [f"agents/agent-{number}/inbox" for number in range(5)]
    async with (
        gateway() as running,
        running.subscriber(names[0], credit=5) as first,
        running.subscriber(names[1], credit=5) as second,
    ):
        for name in names:
            await running.send(f"for {name}", to=name)
        assert [await first.delivered(), await second.delivered()] == [f"for {names[0]}", f"for {names[1]}"]
        assert await first.is_silent()
        assert await second.is_silent()


async def test_lease_expiry_queued_again_but_did_not_push():
    async with gateway("streams: {defaultLeaseMs: 200}") as running, running.subscriber(credit=1) as jen:
        await running.send("a")
        assert await jen.delivered() == "a"
        async with running.subscriber(credit=1) as tom:
            frame = await tom.hear()  # nothing was sent, granted or asked for meanwhile
            assert (frame["deliver"]["id"], frame["attempt"]) == ("a", 2)


async def test_duplicates_were_only_noticed_after_the_ack():
    async with gateway() as running, running.subscriber(credit=9) as jen:
        assert [(await running.send("a")).json()["duplicate"] for _ in range(2)] == [False, True]  # leased
        assert await jen.delivered() == "a"
        await jen.say(enqueue=envelope("a"))
        assert (await jen.hear())["enqueued"] == {"id": "a", "duplicate": True}
        await jen.say(ack="a")
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 1)
        assert (await running.send("a")).json()["duplicate"]
        assert await jen.is_silent()
        assert running.core.stats(INBOX)["counts"]["accepted"] == 1


async def test_a_double_ack_and_an_unknown_stream_were_silent():
    async with gateway() as running, running.subscriber(credit=1) as jen:
        await running.send("a")
        lease = (await jen.hear())["lease"]
        await jen.say(ack="a", lease=lease)
        for word in ("ack", "nack", "extend"):
            await jen.say(**{word: "a"}, lease=lease, ref=word)
            refused = (await jen.hear())["error"]
            assert (refused["code"], refused["ref"]) == ("LeaseConflict", word)
        for path in ("stats", "audit", "dead"):
            response = await running.http.get(f"/v1/{path}?stream=agents/none/inbox")
            assert (response.status_code, response.json()["error"]["code"]) == (404, "UnknownStream")
        for path in ("dead/replay", "dead/discard", "streams/pause", "streams/resume", "streams/drain"):
            response = await running.http.post(f"/v1/{path}", json={"stream": "agents/none/inbox"})
            assert (response.status_code, response.json()["error"]["code"]) == (404, "UnknownStream")


async def test_rates_were_counters_of_a_lifetime():
    clock = ManualClock()
    async with gateway(clock=clock) as running, running.subscriber(credit=30) as jen:

        async def rates() -> tuple[float, float]:
            stats = (await running.http.get(f"/v1/stats?stream={INBOX}")).json()
            return stats["rateIn"], stats["rateOut"]

        await running.send(*(f"m{number}" for number in range(30)))
        for _ in range(30):
            await jen.delivered()
        assert await rates() == (30.0, 30.0)
        clock.advance(5)
        assert await rates() == (6.0, 6.0)
        clock.advance(60)
        assert await rates() == (0.0, 0.0)
        await running.send("later")
        assert (await rates())[0] == 1.0


async def test_the_limiter_never_refilled():
    clock = ManualClock()
    token = 'auth: {tokens: [{token: "dev-local", scopes: ["streams:*:enqueue"], messagesPerMinute: 60}]}'
    stream = "streams: {perStreamCaps: {agents/jen/inbox: {messagesPerMinute: 60}}}"
    for config in (token, stream):
        async with gateway(config, clock=clock) as running:

            async def status(id: str, running: Any = running) -> int:
                headers = {"authorization": "Bearer dev-local"}
                response = await running.http.post("/v1/enqueue", json={"envelope": envelope(id)}, headers=headers)
                return int(response.status_code)

            assert [await status(f"m{number}") for number in range(61)] == [200] * 60 + [429]
            clock.advance(5)
            assert [await status(f"n{number}") for number in range(6)] == [200] * 5 + [429]


async def test_notify_envelopes_entered_the_triggers_again_and_looped():
    rules = """
triggers:
  - {id: ping, when: {to: agents/jen/inbox}, do: [{action: notify, to: agents/architect/inbox}]}
  - {id: pong, when: {to: agents/architect/inbox}, do: [{action: notify, to: agents/jen/inbox}]}
  - {id: self, when: {to: agents/loop/inbox}, do: [{action: route, to: agents/loop/inbox}]}
"""
    async with gateway(rules) as running, running.subscriber("agents/*/inbox", credit=100) as everyone:
        await running.send("a", to="agents/jen/inbox")
        await running.send("b", to="agents/loop/inbox")
        streams = sorted([(await everyone.hear())["stream"] for _ in range(5)])
        expected = ["agents/architect/inbox", *["agents/jen/inbox"] * 2, *["agents/loop/inbox"] * 2]
        assert streams == expected
        assert await everyone.is_silent()


@pytest.mark.parametrize("credit", ["-1", "0", "1.5", "1.0", "true", '"3"', "null", "[1]", "1e3", "1000001"])
async def test_credit_took_negatives_and_floats(credit: str):
    async with gateway() as running, running.subscriber() as jen:
        await running.send("a")
        await jen.connection.send(f'{{"credit": {credit}}}')
        if credit != "null":  # which says nothing
            refused = (await jen.hear())["error"]
            assert (refused["code"], refused["field"]) == ("InvalidEnvelope", "credit")
        assert await jen.is_silent()
        await jen.connection.send(json.dumps({"credit": 1}))
        assert await jen.delivered() == "a"
