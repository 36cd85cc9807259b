"""What docs/systems/courier.md promises holds wherever the messages lie: in memory, with a journal, in Redis.

Every test goes through a real gateway, by HTTP and WebSocket, and ends with an audit of every stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import websockets

from butlers.clock import ManualClock
from butlers.courier.core import MOST_GROUPS, QueueCore
from tests.conformance.courier_stores import STORES, THAT_SURVIVE, Store, eventually, open_store
from tests.integration.courier.gateway import INBOX, Socket, envelope

every_store = pytest.mark.parametrize("store", STORES, indirect=True)
every_store_that_survives = pytest.mark.parametrize("store", THAT_SURVIVE, indirect=True)
UNLIMITED = "gateway: {port: 0, messagesPerMinute: null}"
SHORT_LEASE = "streams: {defaultLeaseMs: 300}"


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(request.param, request, tmp_path) as opened:
        yield opened


async def take(socket: Socket, number: int) -> list[str]:
    return [await socket.delivered() for _ in range(number)]


# --- order -----------------------------------------------------------------------------------------------------------


@every_store
async def test_a_stream_is_a_fifo(store: Store):
    ids = [f"m{number}" for number in range(30)]
    async with store.gateway() as running:
        await running.send(*ids[:20])
        async with running.subscriber(credit=25) as jen:
            assert await take(jen, 20) == ids[:20]
            await running.send(*ids[20:])
            await jen.say(credit=5)
            assert await take(jen, 10) == ids[20:]


@every_store
async def test_a_higher_priority_goes_first(store: Store):
    async with store.gateway() as running:
        for number, priority in enumerate(("low", "normal", "high", "urgent", "low", "urgent")):
            await running.send(f"{priority}-{number}", headers={"priority": priority})
        async with running.subscriber(credit=6) as jen:
            got = await take(jen, 6)
        assert got == ["urgent-3", "urgent-5", "high-2", "normal-1", "low-0", "low-4"]


@every_store
async def test_messages_of_one_partition_come_one_after_the_other_also_while_the_first_is_delayed(store: Store):
    async with store.gateway() as running, running.subscriber(credit=10) as jen:
        await running.send("p1", "p2", "p3", partitionKey="p")
        await running.send("q1", partitionKey="q")
        await running.send("free")
        assert await take(jen, 3) == ["p1", "q1", "free"]
        await jen.say(nack="p1", delayMs=100)
        await running.until_counted("nacked", 1)
        audit = await running.audit()
        assert (audit["leased"], audit["queued"], audit["delayed"]) == (2, 2, 1)
        assert await jen.delivered() == "p1"
        await jen.say(ack="p1")
        assert await jen.delivered() == "p2"
        await jen.say(nack="p2", **{"as": "poison"})  # the dead hold nobody up
        assert await jen.delivered() == "p3"
        await jen.say(ack=["p3", "q1", "free"])
        await running.until_counted("acked", 4)


# --- credit ----------------------------------------------------------------------------------------------------------


@every_store
async def test_nothing_is_delivered_without_credit_and_never_more_than_granted(store: Store):
    async with store.gateway() as running, running.subscriber() as jen:
        await running.send("a", "b", "c")
        assert await jen.is_silent()
        assert (await running.stats())["counts"]["delivered"] == 0
        await jen.say(credit=2)
        assert await take(jen, 2) == ["a", "b"]
        await jen.say(ack=["a", "b"])  # an ack is no credit
        await running.until_counted("acked", 2)
        assert await jen.is_silent()
        assert (await running.audit())["queued"] == 1
        await jen.say(credit=1)
        assert await jen.delivered() == "c"


@every_store
async def test_credit_is_exact_while_many_grants_and_messages_are_on_their_way(store: Store):
    async with store.gateway(UNLIMITED) as running, running.subscriber("agents/*/inbox") as jen:
        granted = got = 0
        streams = [f"agents/a{number}/inbox" for number in range(4)]

        async def produce() -> None:
            for number in range(60):
                await running.send(f"m{number}", to=streams[number % 4])

        producing = asyncio.create_task(produce())
        for credit in (1, 2, 3, 1, 4, 2, 1, 5, 1):
            for _ in range(2):
                await jen.say(credit=credit)
                granted += credit
            for _ in range(credit):
                await jen.delivered()
                got += 1
                assert got <= granted
        await producing
        while got < granted:
            await jen.delivered()
            got += 1
        assert await jen.is_silent()
        assert sum([(await running.stats(stream))["counts"]["delivered"] for stream in streams]) == granted == 40


@every_store
async def test_subscribers_of_a_stream_take_turns(store: Store):
    async with store.gateway() as running, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(running.subscriber(credit=4)) for _ in range(3)]
        await eventually(lambda: _has(running, "subscribers", 3))
        await running.send(*(f"m{number}" for number in range(12)))
        got = [await take(socket, 4) for socket in sockets]
        assert sorted(id for ids in got for id in ids) == sorted(f"m{number}" for number in range(12))
        assert all(ids == sorted(ids, key=lambda id: int(id[1:])) for ids in got)


@every_store
async def test_a_subscriber_with_much_credit_leaves_something_to_one_with_little(store: Store):
    async with (
        store.gateway() as running,
        running.subscriber(credit=1_000) as greedy,
        running.subscriber(credit=1) as modest,
    ):
        await eventually(lambda: _has(running, "subscribers", 2))
        await eventually(lambda: _has(running, "busy", 0))
        await running.send("a", "b")
        assert sorted([await greedy.delivered(), await modest.delivered()]) == ["a", "b"]


async def _has(running: Any, name: str, value: int) -> bool:
    stats = await running.stats()
    return name in stats and bool(stats[name] == value)


# --- leases ----------------------------------------------------------------------------------------------------------


@every_store
async def test_an_expired_lease_is_delivered_again_and_the_earlier_holder_is_refused(store: Store):
    async with store.gateway(SHORT_LEASE) as running, running.subscriber(credit=1) as jen:
        await running.send("a")
        first = await jen.hear()
        async with running.subscriber(credit=1) as tom:
            second = await tom.hear()
            assert (first["attempt"], second["attempt"]) == (1, 2)
            assert first["lease"] != second["lease"]
            await jen.say(ack="a", lease=first["lease"])
            assert await jen.error() == "LeaseConflict"
            await tom.say(ack="a", lease=second["lease"])
            await running.until_counted("acked", 1)
        assert (await running.stats())["counts"]["expired"] == 1


@every_store
async def test_the_earlier_lease_of_the_same_subscriber_is_refused_too(store: Store):
    async with store.gateway(SHORT_LEASE) as running, running.subscriber(credit=2) as jen:
        await running.send("a")
        first, second = await jen.hear(), await jen.hear()
        await jen.say(ack="a", lease=first["lease"])
        assert await jen.error() == "LeaseConflict"
        await jen.say(ack="a", lease=second["lease"])
        await running.until_counted("acked", 1)


@every_store
async def test_a_second_ack_and_the_ack_of_another_subscriber_are_conflicts(store: Store):
    async with store.gateway() as running, running.subscriber(credit=2) as jen, running.subscriber() as tom:
        await running.send("a")
        lease = (await jen.hear())["lease"]
        for frame in ({"ack": "a"}, {"ack": "a", "lease": lease}, {"nack": "a", "lease": lease}, {"extend": "a"}):
            await tom.say(**frame)
            assert await tom.error() == "LeaseConflict"
        await jen.say(ack="a", lease=lease)
        await jen.say(ack="a", lease=lease)
        assert await jen.error() == "LeaseConflict"
        assert (await running.audit())["acked"] == 1


@every_store
async def test_an_extended_lease_lasts_longer(store: Store):
    async with store.gateway(SHORT_LEASE) as running, running.subscriber(credit=10) as jen:
        await running.send("short", "long")
        assert await take(jen, 2) == ["short", "long"]
        await jen.say(extend="long", extendMs=60_000)
        for attempt in (2, 3):
            frame = await jen.hear()
            assert (frame["deliver"]["id"], frame["attempt"]) == ("short", attempt)
        await jen.say(ack=["short", "long"])
        await running.until_counted("acked", 2)


@every_store
async def test_a_lost_socket_gives_back_at_once(store: Store):
    async with store.gateway() as running, running.subscriber(credit=5) as jen:
        await running.send("a", "b", "c")
        await take(jen, 3)
        async with running.subscriber(credit=5) as tom:
            jen.connection.transport.abort()
            assert sorted(await take(tom, 3)) == ["a", "b", "c"]  # the lease would last 30 s
        await eventually(lambda: _has(running, "subscribers", 0))


# --- nacks and the dead ----------------------------------------------------------------------------------------------


@every_store
async def test_three_meanings_of_a_nack_with_and_without_delay(store: Store):
    async with store.gateway("streams: {maxDeliveries: 2}") as running, running.subscriber(credit=50) as jen:
        await running.send("released", "failing", "poison", "tail")
        assert await take(jen, 4) == ["released", "failing", "poison", "tail"]
        await jen.say(nack="poison", **{"as": "poison", "reason": "cannot be read"})
        for _ in range(3):
            await jen.say(nack="released", **{"as": "release"})
            assert await jen.delivered() == "released"
        await jen.say(nack="failing", delayMs=60)
        frame = await jen.hear()
        assert (frame["deliver"]["id"], frame["attempt"]) == ("failing", 2)
        await jen.say(nack="failing", reason="no such account")
        await running.until_counted("died", 2)
        dead = await running.dead()
        assert {id: (one["reason"], one["failures"]) for id, one in dead.items()} == {
            "poison": ("cannot be read", 0),
            "failing": ("no such account", 2),
        }
        assert (await running.stats())["counts"]["nacked"] == 6


@every_store
async def test_what_is_given_back_goes_to_the_tail(store: Store):
    async with store.gateway() as running, running.subscriber(credit=1) as jen:
        await running.send("a", "b")
        assert await jen.delivered() == "a"
        await jen.say(nack="a")
        await jen.say(credit=2)
        assert await take(jen, 2) == ["b", "a"]


@every_store
async def test_after_the_last_delivery_a_message_is_dead_until_it_is_replayed_or_discarded(store: Store):
    config = "streams: {maxDeliveries: 2, defaultLeaseMs: 150}"
    async with store.gateway(config) as running, running.subscriber(credit=100) as jen:
        await running.send("a", "b", "c")
        await take(jen, 6)  # leases expire twice
        await running.until_counted("died", 3)
        dead = await running.dead()
        assert {one["reason"] for one in dead.values()} == {"the lease expired"}
        assert dead["a"]["envelope"] == envelope("a")
        assert (dead["a"]["attempts"], dead["a"]["failures"]) == (2, 2)
        assert 0 <= dead["a"]["deadForMs"] < 60_000
        assert (await running.send("a")).json()["duplicate"]
        assert await running.post("/v1/dead/replay", stream=INBOX, ids=["a"]) == {"replayed": 1}
        frame = await jen.hear()
        assert (frame["deliver"]["id"], frame["attempt"]) == ("a", 1)
        await jen.say(ack="a", lease=frame["lease"])
        refused = await running.http.post("/v1/dead/replay", json={"stream": INBOX, "ids": ["b", "a"]})
        assert refused.status_code == 409
        assert await running.post("/v1/dead/discard", stream=INBOX) == {"discarded": 2}
        await running.until_counted("acked", 1)
        audit = await running.audit()
        assert (audit["acked"], audit["dead"], audit["discarded"]) == (1, 0, 2)


@every_store
async def test_more_dead_messages_than_are_stored_are_counted_as_dropped(store: Store):
    async with store.gateway("streams: {maxDead: 2}") as running, running.subscriber(credit=3) as jen:
        await running.send("a", "b", "c")
        for id in await take(jen, 3):
            await jen.say(nack=id, **{"as": "poison"})
        await running.until_counted("died", 3)
        assert list(await running.dead()) == ["b", "c"]
        assert (await running.audit())["dropped"] == 1


# --- what comes in ---------------------------------------------------------------------------------------------------


@every_store
async def test_an_id_is_accepted_once_within_the_recent_ones(store: Store):
    async with store.gateway("streams: {recentIds: 3}") as running, running.subscriber(credit=10) as jen:
        assert not (await running.send("a")).json()["duplicate"]
        assert (await running.send("a")).json()["duplicate"]
        assert await jen.delivered() == "a"
        await jen.say(ack="a")
        await running.until_counted("acked", 1)
        assert (await running.send("a")).json()["duplicate"]
        await running.send("b", "c", "d")
        assert not (await running.send("a")).json()["duplicate"]
        assert (await running.send("b")).json()["duplicate"]  # not recent any more, and not settled
        assert await take(jen, 4) == ["b", "c", "d", "a"]
        stats = await running.stats()
        assert (stats["counts"]["accepted"], stats["counts"]["duplicates"]) == (5, 3)


@every_store
async def test_a_full_stream_rejects_with_the_time_to_come_back(store: Store):
    async with store.gateway("streams: {maxDepth: 2}") as running, running.subscriber(credit=1) as jen:
        await running.send("a", "b")
        refused = await running.send("c")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "StreamFull")
        assert int(refused.headers["retry-after"]) > 0
        assert await jen.delivered() == "a"
        assert (await running.send("c")).status_code == 429  # what is leased counts
        await jen.say(ack="a")
        await running.until_counted("acked", 1)
        assert (await running.send("c")).status_code == 200  # a rejected id is not remembered
        assert (await running.stats())["counts"]["rejected"] == 2


@every_store
@pytest.mark.parametrize(("overflow", "place"), [("dropOldest", "dropped"), ("deadLetterOldest", "dead")])
async def test_a_full_stream_lets_the_oldest_go_and_counts_it(store: Store, overflow: str, place: str):
    async with store.gateway(f"streams: {{maxDepth: 2, overflow: {overflow}}}") as running:
        await running.send("a", "b", "c")
        assert (await running.audit())[place] == 1
        async with running.subscriber(credit=2) as jen:
            assert await take(jen, 2) == ["b", "c"]
            assert (await running.send("d")).status_code == 429  # everything is in the hands of a subscriber


@every_store
async def test_no_more_streams_than_configured(store: Store):
    async with store.gateway("streams: {most: 2}") as running:
        await running.send("a", to="one")
        await running.send("a", to="two")
        assert (await running.send("a", to="three")).status_code == 429
        assert (await running.send("b", to="two")).status_code == 200
        assert (await running.http.get("/v1/stats?stream=three")).status_code == 404


# --- groups and patterns ---------------------------------------------------------------------------------------------


@every_store
async def test_every_group_gets_every_message_and_the_first_one_what_was_queued(store: Store):
    async with store.gateway() as running:
        await running.send("a")
        async with (
            running.subscriber(f"{INBOX}&group=work", credit=10) as worker,
            running.subscriber(f"{INBOX}&group=audit", credit=10) as auditor,
        ):
            assert await worker.delivered() == "a"
            await running.send("b")
            assert (await worker.delivered(), await auditor.delivered()) == ("b", "b")
            await worker.say(ack=["a", "b"])
            await running.until_counted("acked", 2)
            assert (await running.audit("work"))["acked"] == 2
            assert (await running.audit("audit"))["leased"] == 1
            await auditor.say(ack="b")
            await running.until_counted("acked", 3)


@every_store
async def test_a_group_that_nobody_is_in_is_removed_with_what_it_has(store: Store):
    async with store.gateway("streams: {maxDepth: 3}") as running:
        remove = {"stream": INBOX, "group": "watch"}
        async with running.subscriber(credit=10) as jen:
            async with running.subscriber(f"{INBOX}&group=watch"):
                assert (await running.http.post("/v1/groups/remove", json=remove)).status_code == 409
            await running.send("a", partitionKey="p")
            await running.send("b", partitionKey="p")
            await running.send("c")
            for _ in range(3):
                frame = await jen.hear()
                await jen.say(ack=frame["deliver"]["id"], lease=frame["lease"])
            refused = await running.send("d")
            assert refused.status_code == 429  # the group that was left behind is full
            answer = await running.http.post("/v1/groups/remove", json=remove)
            assert answer.json() == {"removed": 3}
            assert (await running.send("d")).status_code == 200
            assert await take(jen, 1) == ["d"]
            for group, status in (("watch", 404), ("default", 409)):
                answer = await running.http.post("/v1/groups/remove", json=remove | {"group": group})
                assert answer.status_code == status


@every_store
async def test_no_more_groups_than_a_stream_may_have(store: Store):
    async with store.gateway() as running, AsyncExitStack() as stack:
        for number in range(MOST_GROUPS):
            await stack.enter_async_context(running.subscriber(f"{INBOX}&group=g{number}"))
        for pattern in (INBOX, "agents/*"):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await stack.enter_async_context(running.subscriber(f"{pattern}&group=more"))
            assert refused.value.response.status_code == 429
        await stack.enter_async_context(running.subscriber(f"{INBOX}&group=g1"))


@every_store
async def test_a_pattern_fits_streams_that_begin_later_for_every_group(store: Store):
    async with (
        store.gateway() as running,
        running.subscriber("agents/*/inbox&group=one", credit=10) as one,
        running.subscriber("agents/*&group=two", credit=10) as two,
    ):
        await running.send("a", to="agents/ann/inbox")
        await running.send("b", to="agents/bob/inbox")
        await running.send("c", to="agents/bob/outbox")
        got = [await one.hear(), await one.hear()]
        assert {(frame["stream"], frame["deliver"]["id"]) for frame in got} == {
            ("agents/ann/inbox", "a"),
            ("agents/bob/inbox", "b"),
        }
        assert sorted(await take(two, 3)) == ["a", "b", "c"]
        assert (await running.stats("agents/ann/inbox"))["groups"] == ["one", "two"]
        await one.say(ack="a", stream="agents/ann/inbox")
        await running.until_counted("acked", 1, "agents/ann/inbox")


# --- operators -------------------------------------------------------------------------------------------------------


@every_store
async def test_a_paused_stream_accepts_and_a_draining_one_delivers(store: Store):
    async with store.gateway() as running, running.subscriber(credit=10) as jen:
        assert (await running.post("/v1/streams/pause", stream=INBOX))["paused"]
        await running.send("a", "b")
        assert await jen.is_silent()
        assert (await running.stats())["counts"]["delivered"] == 0
        assert (await running.post("/v1/streams/drain", stream=INBOX))["draining"]
        assert (await running.send("c")).status_code == 429
        assert not (await running.post("/v1/streams/resume", stream=INBOX))["paused"]
        assert await take(jen, 2) == ["a", "b"]
        await running.post("/v1/streams/drain", stream=INBOX)
        await jen.say(ack=["a", "b"])
        await running.until_counted("acked", 2)
        assert (await running.http.post("/v1/streams/pause", json={"stream": "agents/none"})).status_code == 404


@every_store
async def test_statistics_have_the_same_keys_everywhere(store: Store):
    core = QueueCore(clock=ManualClock())
    core.enqueue(INBOX, envelope("a"))
    expected = core.stats(INBOX)
    async with store.gateway() as running, running.subscriber(credit=1) as jen:
        await running.send("a", "b")
        await jen.delivered()
        stats = await running.stats()
        assert stats.keys() == expected.keys()
        assert stats["counts"].keys() == expected["counts"].keys()
        assert (stats["depth"], stats["inflight"], stats["subscribers"], stats["busy"]) == (1, 1, 1, 1)
        assert stats["lastTs"] == "2026-01-01T00:00:00Z"
        assert stats["rateIn"] > 0
        assert stats["latP95"] >= stats["latP50"] >= 0


@every_store
async def test_a_view_shows_the_last_message_of_every_inbox(store: Store):
    async with store.gateway() as running:
        await running.send("a", "b")
        await running.send("c", to="agents/tom/inbox")
        await running.send("d", to="agents/tom/outbox")
        snapshot = await running.get("/v1/snapshot?view=latestPerAgent")
        assert {key: one["id"] for key, one in snapshot["entries"].items()} == {INBOX: "b", "agents/tom/inbox": "c"}


@every_store_that_survives
async def test_open_messages_are_there_after_a_restart(store: Store):
    async with store.gateway() as running, running.subscriber(credit=3) as jen:
        await running.send("acked", "leased", "poison", "queued")
        await take(jen, 3)
        await jen.say(ack="acked")
        await jen.say(nack="poison", **{"as": "poison", "reason": "cannot be read"})
        await running.until_counted("died", 1)
    async with store.gateway() as running, running.subscriber(credit=10) as jen:
        assert sorted(await take(jen, 2)) == ["leased", "queued"]
        assert (await running.dead())["poison"]["reason"] == "cannot be read"
        assert (await running.send("acked")).json()["duplicate"]
        await jen.say(ack=["leased", "queued"])
        await running.until_counted("acked", 2)
