"""What only a store that gateways share can show: several gateways, one that dies, and Redis that goes and comes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from butlers.courier.redis_queue import RedisQueue
from butlers.errors import ConfigurationError, ServiceDown
from tests.conformance.courier_stores import Store, Watched, eventually, redis_config
from tests.integration.courier.gateway import INBOX, RunningGateway, Socket, envelope, gateway
from tests.redis_server import RedisServer

# A gateway in a process of its own, which others miss after a second.
GATEWAY = """
import asyncio, sys
import butlers.courier.redis_watch as watch
from butlers.clock import SystemClock
from butlers.courier.config import parse_config
from butlers.courier.server import serving

async def serve():
    async with serving(parse_config(sys.argv[1], source="test"), clock=SystemClock()) as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()

watch.ALIVE_S = 1.0
asyncio.run(serve())
"""


@pytest.fixture
def shared(redis_server: RedisServer) -> Store:
    return Store("redis", redis_config(redis_server))


@dataclass(slots=True)
class Port:
    port: int


@asynccontextmanager
async def foreign_gateway(store: Store) -> AsyncIterator[tuple[subprocess.Popen[str], RunningGateway]]:
    config = f"{store.config}\ngateway: {{port: 0}}\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, config], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        yield process, RunningGateway(None, Port(int(line)), None)  # type: ignore[arg-type]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_message_of_one_gateway_reaches_a_subscriber_of_another(shared: Store):
    async with shared.gateway() as here, shared.gateway() as there, there.subscriber(credit=20) as jen:
        ids = [f"m{number}" for number in range(20)]
        await here.send(*ids)
        assert [await jen.delivered() for _ in ids] == ids
        await jen.say(ack=ids)
        await here.until_counted("acked", 20)
        assert (await here.send("m3")).json()["duplicate"]
        snapshots = [await one.get("/v1/snapshot?view=latestPerAgent") for one in (here, there)]
        assert [snapshot["entries"][INBOX]["id"] for snapshot in snapshots] == ["m19", "m19"]


async def test_a_pattern_at_one_gateway_fits_streams_that_begin_at_another(shared: Store):
    async with (
        shared.gateway() as here,
        shared.gateway() as there,
        here.subscriber("agents/*/inbox&group=one", credit=5) as one,
        there.subscriber("agents/*/inbox&group=two", credit=5) as two,
    ):
        await here.send("a", to="agents/ann/inbox")
        assert (await one.delivered(), await two.delivered()) == ("a", "a")
        await there.send("b", to="agents/bob/inbox")
        assert (await one.delivered(), await two.delivered()) == ("b", "b")


async def test_subscribers_of_two_gateways_share_a_group_and_each_message_has_one_of_them(shared: Store):
    async with (
        shared.gateway() as here,
        shared.gateway() as there,
        here.subscriber() as jen,
        there.subscriber() as tom,
    ):
        ids = [f"m{number}" for number in range(60)]

        async def work(socket: Socket) -> list[str]:
            done: list[str] = []
            await socket.say(credit=5)
            while True:
                try:
                    async with asyncio.timeout(30 if not done else 0.5):
                        frame = await socket.hear()
                except TimeoutError:
                    return done
                done.append(frame["deliver"]["id"])
                await socket.say(ack=frame["deliver"]["id"], lease=frame["lease"])
                await socket.say(credit=1)

        working = [asyncio.create_task(work(socket)) for socket in (jen, tom)]
        await asyncio.gather(here.send(*ids[:30]), there.send(*ids[30:]))
        first, second = await asyncio.gather(*working)
        assert sorted(first + second) == sorted(ids)
        assert first and second
        assert (await here.audit())["acked"] == 60
        assert (await there.stats())["counts"]["redelivered"] == 0


async def test_the_partition_holds_across_gateways(shared: Store):
    async with (
        shared.gateway() as here,
        shared.gateway() as there,
        here.subscriber(credit=5) as jen,
        there.subscriber(credit=5) as tom,
    ):
        await here.send("p1", "p2", partitionKey="p")
        holder, frame = await _next_of(jen, tom)
        audit = await here.audit()
        assert (frame["deliver"]["id"], audit["leased"], audit["queued"]) == ("p1", 1, 1)
        await holder.say(ack="p1")
        _, frame = await _next_of(jen, tom)
        assert frame["deliver"]["id"] == "p2"


async def _next_of(*sockets: Socket) -> tuple[Socket, dict[str, Any]]:
    """The next frame that any of them gets."""
    tasks = {asyncio.create_task(socket.hear()): socket for socket in sockets}
    (done, *_), waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return tasks[done], done.result()


async def test_pause_and_replay_at_one_gateway_hold_at_the_other(shared: Store):
    async with shared.gateway() as here, shared.gateway() as there, there.subscriber(credit=10) as jen:
        await here.send("a")
        assert await jen.delivered() == "a"
        await jen.say(nack="a", **{"as": "poison"})
        await here.until_counted("died", 1)
        await here.post("/v1/streams/pause", stream=INBOX)
        await here.post("/v1/dead/replay", stream=INBOX)
        assert await jen.is_silent()
        assert (await there.audit())["queued"] == 1
        await here.post("/v1/streams/resume", stream=INBOX)
        assert await jen.delivered() == "a"


async def test_what_a_killed_gateway_held_comes_back_long_before_its_leases_end(shared: Store):
    async with shared.gateway() as here, foreign_gateway(shared) as (process, there):
        await here.send("a", "b")
        async with there.subscriber(credit=2) as jen:
            assert [await jen.delivered(), await jen.delivered()] == ["a", "b"]
            assert (await here.stats())["subscribers"] == 1
            process.kill()
            async with here.subscriber(credit=2) as tom:
                assert sorted([await tom.delivered(), await tom.delivered()]) == ["a", "b"]  # a lease lasts 30 s
                await eventually(lambda: _has_subscribers(here, 1))


async def _has_subscribers(running: Watched, number: int) -> bool:
    return bool((await running.stats())["subscribers"] == number)


async def test_a_gateway_that_was_taken_for_dead_takes_part_again(shared: Store, redis_server: RedisServer):
    base = f"{{{shared.config.rpartition(' ')[2]}}}"
    async with (
        shared.gateway() as here,
        shared.gateway() as there,
        there.subscriber(credit=9) as jen,
        there.subscriber("jobs/*&group=work", credit=9) as tom,
        Redis.from_url(redis_server.url) as redis,
    ):
        await here.send("a")
        first = await jen.hear()
        epoch, queue = there.running.courier.epoch, here.running.courier.queue
        assert isinstance(queue, RedisQueue)

        async def is_given_back() -> bool:
            await redis.zadd(f"{base}:gateways", {epoch: 1})  # as if it had said nothing for long
            await queue.call("tend", 10_000_000, "[]")
            return not await redis.hexists(f"{base}:held:{epoch}", first["lease"])

        await eventually(is_given_back)
        second = await jen.hear()
        assert (first["attempt"], second["attempt"]) == (1, 2)
        await jen.say(ack="a", lease=first["lease"])
        assert await jen.error() == "LeaseConflict"
        await jen.say(ack="a", lease=second["lease"])
        await here.until_counted("acked", 1)
        await here.send("b", to="jobs/new")
        assert await tom.delivered() == "b"
        assert (await here.stats("jobs/new"))["groups"] == ["work"]


async def test_a_view_is_there_after_all_gateways_were_away(shared: Store):
    async with shared.gateway() as running:
        await running.send("a", "b")
        await running.send("c", to="agents/tom/inbox")
    async with shared.gateway() as running:
        entries = (await running.get("/v1/snapshot?view=latestPerAgent"))["entries"]
        assert [(key, one["id"]) for key, one in entries.items()] == [(INBOX, "b"), ("agents/tom/inbox", "c")]


async def test_a_lost_piece_of_the_log_loses_no_message(shared: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("butlers.courier.redis_store.RedisStore.read_log", _never)
    async with shared.gateway() as here, shared.gateway() as there, there.subscriber("agents/*", credit=5) as jen:
        await here.send("a")
        assert await jen.delivered() == "a"


async def _never(_store: object, _after: int) -> None:
    await asyncio.Event().wait()


# --- Redis goes and comes --------------------------------------------------------------------------------------------


async def test_while_redis_is_away_producers_learn_it_and_subscribers_stay(caplog: pytest.LogCaptureFixture):
    with RedisServer(durable=True) as server:
        store = Store("redis", redis_config(server))
        async with store.gateway() as running, running.subscriber(credit=2) as jen, running.subscriber() as tom:
            await running.send("a", "b")
            first, second = await jen.hear(), await jen.hear()
            await running.send("c")
            await jen.say(ack="a", lease=first["lease"])
            await running.until_counted("acked", 1)
            server.stop()
            refused = await running.send("lost")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "StoreUnavailable")
            assert (await running.running.http.get("/readyz")).status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            await jen.say(ack="b", lease=second["lease"])
            assert await jen.error() == "StoreUnavailable"
            await tom.say(credit=5)
            server.start()
            assert await tom.delivered() == "c"
            await jen.say(ack="b", lease=second["lease"])
            await running.until_counted("acked", 2)
            assert not (await running.send("lost")).json()["duplicate"]
            assert await tom.delivered() == "lost"
            assert (await running.running.http.get("/readyz")).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_subscriber_that_goes_while_redis_is_away_gives_back_when_it_is_there_again():
    with RedisServer(durable=True) as server:
        store = Store("redis", redis_config(server))
        async with store.gateway() as running:
            async with running.subscriber(credit=2) as jen:
                await running.send("a")
                await jen.delivered()
                server.stop()
            await running.running.until(lambda: len(running.running.server.gateway.sockets) == 0)
            server.start()
            await eventually(lambda: _has_subscribers(running, 0))
            async with running.subscriber(credit=2) as tom:
                frame = await tom.hear()
                assert (frame["deliver"]["id"], frame["attempt"]) == ("a", 2)


async def test_redis_that_comes_back_without_its_data_begins_anew():
    with RedisServer() as server:
        store = Store("redis", redis_config(server))
        async with (
            store.gateway() as running,
            running.subscriber(credit=9) as jen,
            running.subscriber("other/*&group=all", credit=9) as tom,
        ):
            await running.send("a")
            frame = await jen.hear()
            server.stop()
            server.start()
            await eventually(lambda: _is_served(running))
            assert await jen.delivered() == "a"
            await jen.say(ack="a", lease=frame["lease"])
            assert await jen.error() == "LeaseConflict"
            await running.send("b", to="other/stream")
            assert await tom.delivered() == "b"


async def _is_served(running: Watched) -> bool:
    response = await running.http.post("/v1/enqueue", json={"envelope": envelope("a")})
    return bool(response.status_code == 200)


async def test_a_store_that_does_not_answer_stops_the_start_without_its_password():
    with pytest.raises(ServiceDown) as refused:
        async with gateway("store: redis://jen:very-secret@127.0.0.1:1/0"):
            pass
    assert refused.value.key == "store"
    assert "very-secret" not in str(refused.value)


async def test_a_wrong_password_is_named_as_such(redis_server: RedisServer):
    url = redis_server.url.replace("redis://", "redis://jen:very-secret@")
    with pytest.raises(ConfigurationError, match="password") as refused:
        async with gateway(f"store: {url}"):
            pass
    assert "very-secret" not in str(refused.value)
