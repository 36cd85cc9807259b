"""The rules of the queues as a subscriber sees them on its socket; `test_core` has them one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from butlers.clock import ManualClock
from tests.integration.courier.gateway import INBOX, Socket, gateway


async def ids(socket: Socket, count: int) -> list[str]:
    return [await socket.delivered() for _ in range(count)]


async def first_of(*sockets: Socket) -> tuple[Socket, str]:
    """The socket that gets the next message, and its id."""
    waiting = {asyncio.create_task(socket.delivered()): socket for socket in sockets}
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    (task,) = done
    return waiting[task], task.result()


@pytest.mark.scenario("C2-002")
async def test_a_stream_is_a_fifo_by_http_and_by_socket():
    async with gateway("gateway: {port: 0, messagesPerMinute: null}") as running, running.subscriber() as jen:
        sent = [f"m{number}" for number in range(200)]
        for id in sent[:100]:
            await running.send(id)
        await jen.say(credit=50)
        assert await ids(jen, 50) == sent[:50]
        await running.send(*sent[100:])
        await jen.say(credit=1_000)
        assert await ids(jen, 150) == sent[50:]


@pytest.mark.scenario("C2-003")
async def test_messages_of_one_partition_come_one_after_the_other():
    """The next one waits for the ack of the one before, also while that is delayed or given back; others do not."""
    clock = ManualClock()
    async with (
        gateway(clock=clock) as running,
        running.subscriber(credit=10) as jen,
        running.subscriber(credit=10) as tom,
    ):
        await running.send("p1", "p2", "p3", partitionKey="p")
        await running.send("q1", partitionKey="q")
        await running.send("free")
        holder: dict[str, Socket] = {}
        for socket, count in ((jen, 2), (tom, 1)):
            holder |= dict.fromkeys(await ids(socket, count), socket)
        assert sorted(holder) == ["free", "p1", "q1"]
        await holder["p1"].say(nack="p1", delayMs=5_000)
        await running.until(lambda: running.core.stats(INBOX)["delayed"] == 1)
        assert await jen.is_silent()
        assert await tom.is_silent()
        for expected in ("p1", "p2", "p3"):
            clock.advance(5)
            found = await first_of(jen, tom)
            assert found[1] == expected
            await found[0].say(ack=expected)
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 3)


@pytest.mark.scenario("C2-004")
async def test_nothing_comes_without_credit_a_delivery_takes_one_and_a_grant_resumes():
    async with gateway() as running, running.subscriber() as jen:
        await running.send("a", "b", "c", "d")
        assert await jen.is_silent()
        await jen.say(credit=2)
        assert await ids(jen, 2) == ["a", "b"]
        assert await jen.is_silent()
        await jen.say(ack="a")  # an ack is no credit
        assert await jen.is_silent()
        await jen.say(credit=1)
        assert await ids(jen, 1) == ["c"]
        assert await jen.is_silent()
        await jen.say(ack="b", credit=1)  # both in one frame
        assert await ids(jen, 1) == ["d"]


@pytest.mark.scenario("C2-005")
@pytest.mark.scenario("C2-008")
async def test_a_delivery_is_leased_for_the_ttl_and_comes_again_when_it_expires():
    clock = ManualClock()
    async with (
        gateway(clock=clock) as running,
        running.subscriber(credit=1) as jen,
        running.subscriber(credit=1) as tom,
    ):
        await running.send("a")
        first = await jen.hear()
        assert (await running.http.get(f"/v1/stats?stream={INBOX}")).json()["inflight"] == 1
        clock.advance(29.9)
        assert await tom.is_silent()
        clock.advance(0.1)
        second = await tom.hear()
        assert (second["deliver"], second["attempt"]) == (first["deliver"], 2)
        assert second["lease"] != first["lease"]
        await jen.say(ack="a", lease=first["lease"])
        assert await jen.error() == "LeaseConflict"
        await tom.say(ack="a", lease=second["lease"])
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 1)


@pytest.mark.scenario("C2-006")
async def test_an_ack_removes_the_lease():
    clock = ManualClock()
    async with gateway(clock=clock) as running, running.subscriber(credit=9) as jen:
        await running.send("a")
        assert await ids(jen, 1) == ["a"]
        await jen.say(ack="a")
        await running.until(lambda: running.core.stats(INBOX)["inflight"] == 0)
        clock.advance(3_600)
        assert await jen.is_silent()
        audit: dict[str, Any] = (await running.http.get(f"/v1/audit?stream={INBOX}")).json()["groups"]["default"]
        assert (audit["acked"], audit["leased"], audit["queued"]) == (1, 0, 0)


@pytest.mark.scenario("C2-007")
async def test_a_nack_queues_at_the_tail_at_once_or_after_its_delay():
    clock = ManualClock()
    async with gateway(clock=clock) as running, running.subscriber(credit=1) as jen:
        await running.send("a", "b", "c")
        await jen.say(nack=await jen.delivered(), credit=3)
        assert await ids(jen, 3) == ["b", "c", "a"]  # behind those that waited
        await jen.say(nack="b", delayMs=5_000)
        await jen.say(nack="c", credit=9)
        assert await ids(jen, 1) == ["c"]
        assert await jen.is_silent()
        clock.advance(4.9)
        assert await jen.is_silent()
        clock.advance(0.1)
        assert await ids(jen, 1) == ["b"]


@pytest.mark.scenario("C2-009")
async def test_a_repeat_within_the_recent_ids_is_dropped_and_one_outside_is_new():
    async with gateway("streams: {recentIds: 3}") as running, running.subscriber(credit=99) as jen:
        for id in ("a", "b", "c"):
            assert (await running.send(id)).json() == {"id": id, "duplicate": False}
        assert (await running.send("a")).json() == {"id": "a", "duplicate": True}
        assert await ids(jen, 3) == ["a", "b", "c"]
        await jen.say(ack=["a", "b", "c"])
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 3)
        assert (await running.send("a")).json()["duplicate"]  # also after its ack
        assert await jen.is_silent()
        await running.send("d")
        assert not (await running.send("a")).json()["duplicate"]  # three others came since
        assert await ids(jen, 2) == ["d", "a"]
