"""A stranger at an HTTP door: heads, bodies and connections are bounded, and whoever behaves is answered meanwhile.

The limits are small here; the rules are those of `serving/bounded_http.py`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.serving.connections import RESERVED_FILES, Connections, DoorLimits, raise_file_limit
from butlers.serving.server import GuestServer, listen

HOST = "127.0.0.1"
DEADLINE_S = 30.0
SMALL = DoorLimits(
    head_bytes=4_096, head_fields=20, target_bytes=512, head_s=0.5, body_idle_s=0.5, connections=40, per_address=20
)


@dataclass
class BoundedServer:
    port: int
    connections: Connections
    gate: asyncio.Event
    inside: list[str] = field(default_factory=list)  # requests that wait at the gate
    gone: list[str] = field(default_factory=list)  # clients that went away in the middle of a body

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)

    async def send(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        """One request in these very bytes, and the answer."""
        reader, writer = await self.connect()
        try:
            writer.write(raw)
            return await answer(reader)
        finally:
            writer.close()

    async def works(self) -> bool:
        return (await self.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))[0] == 200


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    async with asyncio.timeout(DEADLINE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:"))
        return int(head.split()[1]), json.loads(await reader.readexactly(length) or b"{}")


async def until(look: Callable[[], Awaitable[Any] | Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            seen = look()
            if await seen if isinstance(seen, Awaitable) else seen:
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(limits: DoorLimits = SMALL) -> AsyncIterator[BoundedServer]:
    listener = listen(HOST, 0, source="test", remedy="none")
    server = BoundedServer(port=listener.getsockname()[1], connections=Connections(limits), gate=asyncio.Event())

    async def hello(_request: Request) -> Response:
        return JSONResponse({"hello": "world"})

    async def takes(request: Request) -> Response:
        try:
            return JSONResponse({"bytes": len(await request.body())})
        except ClientDisconnect:
            server.gone.append("body")
            raise

    async def early(_request: Request) -> Response:
        return JSONResponse({"read": False}, status_code=413)

    async def waits(_request: Request) -> Response:
        server.inside.append("here")
        await server.gate.wait()
        return JSONResponse({"waited": True})

    async def large(_request: Request) -> Response:
        return Response(b"x" * 64 * 2**20)

    routes = [Route("/hello", hello), Route("/waits", waits), Route("/large", large)]
    routes += [Route("/takes", takes, methods=["POST"]), Route("/early", early, methods=["POST"])]
    guest = GuestServer(Starlette(routes=routes), grace_s=1, connections=server.connections)
    await guest.open(listener)
    try:
        yield server
    finally:
        server.gate.set()
        await guest.close()


@pytest.fixture
async def server() -> AsyncIterator[BoundedServer]:
    async with serving() as server:
        yield server


# --- heads ------------------------------------------------------------------------------------------------------------

TOO_LARGE = {
    "one long field": b"GET /hello HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 5_000 + b"\r\n\r\n",
    "many fields": b"GET /hello HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 30 + b"\r\n",
    "fields that are long together": b"GET /hello HTTP/1.1\r\nhost: x\r\n"
    + (b"a: " + b"b" * 500 + b"\r\n") * 10
    + b"\r\n",
    "a long name": b"GET /hello HTTP/1.1\r\nhost: x\r\n" + b"a" * 5_000 + b": b\r\n\r\n",
    "a field without end": b"GET /hello HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 5_000,
}


@pytest.mark.parametrize("raw", TOO_LARGE.values(), ids=TOO_LARGE.keys())
async def test_a_head_that_is_too_large_is_431(server: BoundedServer, raw: bytes) -> None:
    status, body = await server.send(raw)
    assert (status, body["error"]["class"]) == (431, "validation_error")
    assert await server.works()


async def test_a_target_that_is_too_long_is_414(server: BoundedServer) -> None:
    assert (await server.send(b"GET /hello?" + b"a" * 600 + b" HTTP/1.1\r\nhost: x\r\n\r\n"))[0] == 414


async def test_what_fits_is_served_however_it_is_cut(server: BoundedServer) -> None:
    raw = (
        b"GET /hello?"
        + b"a" * 400
        + b" HTTP/1.1\r\nhost: x\r\n"
        + b"a: b\r\n" * 15
        + b"b: "
        + b"c" * 3_000
        + b"\r\n\r\n"
    )
    reader, writer = await server.connect()
    for part in (raw[:7], raw[7:300], raw[300:2_000], raw[2_000:]):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    assert (await answer(reader))[0] == 200
    writer.close()


async def test_a_header_of_many_megabytes_is_not_kept(server: BoundedServer) -> None:
    """200 MB were accepted once. What is read of them is little more than the limit."""
    reader, writer = await server.connect()
    writer.write(b"GET /hello HTTP/1.1\r\nhost: x\r\nx: ")
    sent = 0
    try:
        async with asyncio.timeout(DEADLINE_S):
            while sent < 200 * 2**20 and not reader.at_eof():
                writer.write(b"a" * 65_536)
                await writer.drain()
                sent += 65_536
                assert await server.works()
    except ConnectionError:
        pass
    assert sent < 20 * 2**20  # the rest of it stayed in the buffers of two sockets
    writer.close()


@pytest.mark.parametrize("trailer", [b"t: " + b"a" * 100_000, b"t: a\r\n" * 5_000])
async def test_trailers_are_bounded_like_heads(server: BoundedServer, trailer: bytes) -> None:
    head = b"POST /waits HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    reader, writer = await server.connect()
    writer.write(head + trailer)
    async with asyncio.timeout(DEADLINE_S):
        assert b"HTTP/1.1 4" in await reader.read(100)
    writer.close()


async def test_what_is_no_http_is_400_with_a_class(server: BoundedServer) -> None:
    status, body = await server.send(b"\x16\x03\x01 hello\r\n\r\n")
    assert (status, body["error"]["class"]) == (400, "validation_error")


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [b"", b"GET /hel", b"GET /hello HTTP/1.1\r\nhost: x\r\nx: y", b"\r\n\r\n"])
async def test_half_a_request_is_408_and_ends(server: BoundedServer, half: bytes) -> None:
    reader, writer = await server.connect()
    writer.write(half)
    status, body = await answer(reader)
    assert (status, body["error"]["class"], body["error"]["retryable"]) == (408, "timeout", True)
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    await until(lambda: len(server.connections) == 0)
    writer.close()


async def test_a_head_that_drips_is_408(server: BoundedServer) -> None:
    """Each byte is on time; the head is not."""
    reader, writer = await server.connect()
    status = asyncio.create_task(answer(reader))
    async with asyncio.timeout(DEADLINE_S):
        while not status.done():
            writer.write(b"a")
            await asyncio.sleep(0.05)
    assert (await status)[0] in (400, 408)  # ours, or the parser's for so long a method
    writer.close()


async def test_a_head_that_drips_after_a_good_request_is_408(server: BoundedServer) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await answer(reader))[0] == 200
    writer.write(b"GET /hello HTTP/1.1\r\nhost:")
    assert (await answer(reader))[0] == 408
    writer.close()


async def test_a_body_that_stops_is_408_and_the_handler_is_told(
    server: BoundedServer, caplog: pytest.LogCaptureFixture
) -> None:
    status, body = await server.send(b"POST /takes HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
    assert (status, body["error"]["class"]) == (408, "timeout")
    await until(lambda: server.gone == ["body"])
    assert not caplog.records  # nothing went wrong here


async def test_a_slow_handler_is_not_hurried(server: BoundedServer) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: server.inside)
    await until(lambda: _elapsed(server))  # more than twice as long as a client may be silent
    server.gate.set()
    assert (await answer(reader))[0] == 200
    writer.close()


_BEGAN: dict[int, float] = {}


def _elapsed(server: BoundedServer) -> bool:
    now = asyncio.get_running_loop().time()
    return now - _BEGAN.setdefault(id(server), now) > 2 * SMALL.body_idle_s


async def test_an_answer_that_nobody_reads_does_not_hold_a_place(server: BoundedServer) -> None:
    _, writer = await server.connect()
    writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: len(server.connections) == 1)
    await until(lambda: len(server.connections) == 0)
    writer.close()


async def test_an_early_answer_is_seen_by_a_client_that_still_writes(server: BoundedServer) -> None:
    """The body is larger than a head may be, and it is no head."""
    async with httpx2.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
        for _ in range(3):
            response = await client.post(f"{server.url}/early", content=b"a" * 3_000_000)
            assert (response.status_code, response.json()) == (413, {"read": False})


async def test_large_bodies_and_many_requests_on_one_connection_are_served(server: BoundedServer) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
        for size in (0, 1, 4_095, 70_000, 3_000_000):
            response = await client.post(f"{server.url}/takes", content=b"a" * size)
            assert response.json() == {"bytes": size}
        assert len(server.connections) == 1

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(500):
            yield b"a" * 10

    async with httpx2.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
        assert (await client.post(f"{server.url}/takes", content=pieces())).json() == {"bytes": 5_000}


async def test_pipelined_requests_are_answered_in_order(server: BoundedServer) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n" * 200)
    for _ in range(200):
        assert (await answer(reader))[0] == 200
    writer.close()


# --- connections ------------------------------------------------------------------------------------------------------


async def test_half_requests_give_way_to_whoever_behaves() -> None:
    """Ten times as many as there are places, and a normal caller is answered between any two."""
    async with serving(DoorLimits(per_address=20, connections=40)) as server, AsyncExitStack() as stack:
        for number in range(200):
            _, writer = await server.connect()
            stack.callback(writer.close)
            writer.write(b"GET /hello HTTP/1.1\r\nhost:")
            assert len(server.connections) <= 20
            if number % 10 == 0:
                assert await server.works()
        assert server.connections.gave_way >= 180
        assert await server.works()


async def test_bodies_that_never_come_give_way_too() -> None:
    async with serving(DoorLimits(per_address=20, connections=40)) as server, AsyncExitStack() as stack:
        for number in range(100):
            _, writer = await server.connect()
            stack.callback(writer.close)
            writer.write(b"POST /takes HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n")
            if number % 10 == 0:
                assert await server.works()
        assert len(server.connections) <= 20


def _inside(server: BoundedServer, count: int) -> bool:
    return len(server.inside) == count


async def test_requests_at_work_are_never_interrupted_and_the_next_one_is_503(server: BoundedServer) -> None:
    busy = []
    for number in range(SMALL.per_address):
        reader, writer = await server.connect()
        writer.write(b"GET /waits HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await until(functools.partial(_inside, server, number + 1))
        busy.append((reader, writer))
    status, body = await server.send(b"")
    assert (status, body["error"]["class"], body["error"]["retryable"]) == (503, "overload_rejected", True)
    server.gate.set()
    for reader, writer in busy:
        assert (await answer(reader))[0] == 200
        writer.close()
    await until(lambda: len(server.connections) == 0)
    assert await server.works()


async def test_one_address_does_not_take_the_places_of_others() -> None:
    """By the rule itself: this machine has one address only."""
    limits = DoorLimits(per_address=3, connections=5)
    connections, closed = Connections(limits), []

    class Guest:
        def __init__(self, name: str) -> None:
            self.name = name

        def give_way(self) -> None:
            closed.append(self.name)

    guests = [Guest(f"a{n}") for n in range(4)]
    assert all(connections.enter(guest, "a") for guest in guests)
    assert closed == ["a0"]  # of its own address, the silent one
    assert all(connections.enter(Guest(f"b{n}"), "b") for n in range(2))
    assert connections.enter(Guest("c0"), "c")
    assert closed == ["a0", "a1"]  # of the address that holds most
    connections.works(guests[2], "a")
    connections.works(guests[3], "a")
    assert connections.enter(Guest("c1"), "c")
    assert closed == ["a0", "a1", "b0"]  # nobody at work
    assert (len(connections), connections.turned_away) == (5, 0)


async def test_two_hundred_callers_at_once_are_served_by_the_usual_limits() -> None:
    async with serving(DoorLimits()) as server, AsyncExitStack() as stack:
        held = [await server.connect() for _ in range(300)]
        for _, writer in held:
            stack.callback(writer.close)
            writer.write(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        assert {(await answer(reader))[0] for reader, _ in held} == {200}
        assert (server.connections.gave_way, server.connections.turned_away) == (0, 0)


def test_there_are_never_more_connections_than_file_descriptors() -> None:
    allowed = raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed
    assert DoorLimits(connections=10**6, per_address=10**6).within(2_048).connections == 2_048 - RESERVED_FILES
    assert DoorLimits().within(100).connections == 64
    assert DoorLimits().within(100_000) == DoorLimits()
