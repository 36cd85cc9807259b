"""Clients that stall, vanish, flood or speak nonsense: each gets its documented answer, and no other stream notices."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any
from urllib.parse import quote

import pytest
import websockets

from butlers.serving.connections import DoorLimits
from tests.integration.courier.gateway import INBOX, RunningGateway, bystander, envelope, gateway
from tests.integration.courier.raw_socket import (
    BINARY,
    CONTINUATION,
    PING,
    RawSocket,
    connection,
    frame,
    raw_subscriber,
    upgrade,
)

LIMIT = 1_048_576  # bytes of a message
QUICK_PINGS = "gateway: {port: 0, pingS: 1.0, messagesPerMinute: null}"
NO_RATE = "gateway: {port: 0, messagesPerMinute: null}"


@pytest.fixture(autouse=True)
def nothing_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No line of the log at ERROR; an exception that no task handles would be one, too."""
    yield
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert errors == []


async def no_socket_is_left(running: RunningGateway, besides: int = 1) -> None:
    await running.until(lambda: len(running.server.gateway.sockets) == besides)


async def send_big(running: RunningGateway, batches: int) -> None:
    """A megabyte each, in fifty messages: more than the machine's buffers take for a client that does not read."""
    for batch in range(batches):
        messages = [{"envelope": envelope(f"{batch}-{number}", payload="x" * 20_000)} for number in range(50)]
        assert (await running.http.post("/v1/enqueue", json={"messages": messages})).status_code == 200


def unread(running: RunningGateway) -> AbstractAsyncContextManager[RawSocket]:
    """A subscriber that reads nothing."""
    return raw_subscriber(running.host, credit=400, buffer=4_096)


# --- clients that stall or vanish ------------------------------------------------------------------------------------


async def test_a_consumer_that_stops_reading_has_its_credit_at_most_and_is_ended_by_the_ping():
    async with gateway(QUICK_PINGS) as running, bystander(running):
        async with unread(running):
            await send_big(running, 10)
            audit = running.core.audit(INBOX)["groups"]["default"]
            assert (audit["leased"], audit["queued"]) in ((400, 100), (0, 500))  # or it was ended already
            await no_socket_is_left(running)
            audit = running.core.audit(INBOX)["groups"]["default"]
            assert (audit["leased"], audit["queued"]) == (0, 500)
        async with running.subscriber(credit=500) as tom:
            assert len({await tom.delivered() for _ in range(500)}) == 500


async def test_a_client_that_vanishes_without_a_word_gives_back_after_the_ping():
    """Half-open TCP: the connection stands, and nobody answers."""
    async with (
        gateway(QUICK_PINGS) as running,
        bystander(running),
        running.subscriber() as tom,
        raw_subscriber(running.host, credit=5),
    ):
        await running.send("a", "b")
        await running.until(lambda: running.core.stats(INBOX)["inflight"] == 2)
        await tom.say(credit=5)
        frames = [await tom.hear(), await tom.hear()]
        assert [(one["deliver"]["id"], one["attempt"]) for one in frames] == [("a", 2), ("b", 2)]
        await no_socket_is_left(running, besides=2)


async def test_a_reset_connection_gives_back_at_once():
    async with gateway() as running, bystander(running), running.subscriber() as tom:
        async with raw_subscriber(running.host, credit=5) as raw:
            await running.send("a", "b")
            await running.until(lambda: running.core.stats(INBOX)["inflight"] == 2)
            raw.reset()
        await tom.say(credit=5)
        assert [await tom.delivered(), await tom.delivered()] == ["a", "b"]


async def test_an_answer_that_no_one_reads_does_not_keep_a_closed_socket():
    """The gateway closes it for what it says, while its window is full."""
    async with gateway(QUICK_PINGS) as running, bystander(running), unread(running) as raw:
        await send_big(running, 8)
        await raw.send(frame(b"\0", opcode=BINARY))
        await no_socket_is_left(running)
        assert running.core.audit(INBOX)["groups"]["default"]["queued"] == 400


async def test_frames_behind_a_close_are_no_failure():
    """What is still to be written to a client, when the gateway has closed for a frame that it cannot read."""
    async with gateway(NO_RATE) as running, bystander(running), unread(running) as raw:
        await send_big(running, 8)
        await raw.send(frame(b"x", opcode=0x3))  # an opcode that no one has defined
        assert await raw.close_code() == 1002
        await no_socket_is_left(running)


async def test_pings_of_a_client_that_reads_no_pongs_take_no_memory():
    async with gateway(NO_RATE) as running, bystander(running), raw_subscriber(running.host, buffer=4_096) as raw:
        flood = frame(b"p" * 125, opcode=PING) * 1_000
        for _ in range(100):
            await raw.send(flood)
        (socket,) = (one for one in running.server._server.server_state.connections if _peer(one) == raw.name)
        assert socket.transport.get_write_buffer_size() < 1_000_000


def _peer(protocol: Any) -> Any:
    return protocol.transport.get_extra_info("peername")


async def test_a_message_of_endless_empty_parts_is_refused():
    async with gateway(NO_RATE) as running, bystander(running), raw_subscriber(running.host) as raw:
        await raw.send(frame(b"{", final=False))
        parts = frame(b"", opcode=CONTINUATION, final=False) * 10_000
        with suppress(ConnectionError):
            for _ in range(20):
                await raw.send(parts)
        assert await raw.close_code() in (1009, None)  # None: it was reset while we still sent
        await no_socket_is_left(running)


async def test_a_flood_without_credit_is_bounded_by_the_depth_and_nothing_is_delivered():
    config = "streams: {perStreamCaps: {'agents/jen/*': {maxDepth: 10000}}}"
    async with gateway(config) as running, bystander(running), running.subscriber() as jen:
        codes: list[str | None] = []
        for batch in range(11):
            messages = [{"envelope": envelope(f"{batch}-{n}")} for n in range(1_000)]
            answer = await running.http.post("/v1/enqueue", json={"messages": messages})
            codes += [one.get("error", {}).get("code") for one in answer.json()["results"]]
        assert codes == [None] * 10_000 + ["StreamFull"] * 1_000
        assert await jen.is_silent()
        audit = running.core.audit(INBOX)
        assert (audit["balanced"], audit["groups"]["default"]["queued"]) == (True, 10_000)
        await jen.say(credit=1)
        assert await jen.delivered() == "0-0"


async def test_a_gateway_that_ends_waits_for_no_client_that_does_not_read():
    async with AsyncExitStack() as clients, gateway(NO_RATE) as running:
        await clients.enter_async_context(unread(running))
        await send_big(running, 8)


async def test_sockets_leave_room_for_producers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("butlers.courier.server.MOST_CONNECTIONS", 20)
    async with gateway() as running, AsyncExitStack() as sockets:
        with pytest.raises(websockets.InvalidStatus) as refused:
            for _ in range(30):
                await sockets.enter_async_context(running.subscriber())
        assert refused.value.response.status_code == 503
        assert (await running.send("a")).status_code == 200
        assert 10 < running.core.stats(INBOX)["subscribers"] < 20


async def test_slowloris_is_answered_and_ended(monkeypatch: pytest.MonkeyPatch):
    quick = functools.partial(DoorLimits, head_s=0.5, body_idle_s=0.5)
    monkeypatch.setattr("butlers.courier.server.DoorLimits", quick)
    head = b"POST /v1/enqueue HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    async with gateway() as running, bystander(running):
        for begun in (
            b"",
            b"POST",
            head,
            upgrade(running.host, "/v1/subscribe")[:-2],
            head + b"Content-Length: 9\r\n\r\n{",
        ):
            async with connection(running.host) as raw:
                await raw.send(begun)
                answer = b""
                while data := await raw.read():
                    answer += data
                assert answer.startswith(b"HTTP/1.1 408 "), begun


# --- what is too large, and what is nonsense -------------------------------------------------------------------------


def of_size(size: int, id: str, wrap: str) -> bytes:
    """A request whose JSON has exactly that many bytes."""
    empty = len(json.dumps({wrap: envelope(id, payload="")}))
    return json.dumps({wrap: envelope(id, payload="x" * (size - empty))}).encode()


async def test_a_message_of_exactly_the_limit_is_taken_and_one_byte_more_is_not():
    async with gateway() as running, bystander(running), running.subscriber() as jen:
        for size, status in ((LIMIT, 200), (LIMIT + 1, 413)):
            body = of_size(size, f"http-{size}", "envelope")
            assert len(body) == size
            response = await running.http.post("/v1/enqueue", content=body)
            assert response.status_code == status
        assert response.json()["error"]["code"] == "MessageTooLarge"
        await jen.connection.send(of_size(LIMIT, "ws-exact", "enqueue").decode())
        assert (await jen.hear())["enqueued"]["id"] == "ws-exact"
        await jen.say(credit=2)
        assert [await jen.delivered(), await jen.delivered()] == [f"http-{LIMIT}", "ws-exact"]
        await jen.connection.send(of_size(LIMIT + 1, "ws-more", "enqueue").decode())
        assert await jen.closed() == 1009
        assert running.core.stats(INBOX)["counts"]["accepted"] == 2


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"\x00\xff\xfe", opcode=BINARY), 1003),
        (frame(b'{"credit": 1\xff}'), 1007),
        (frame(b"\xed\xa0\x80"), 1007),  # half of a surrogate pair
        (frame(b"{}", reserved=4), 1002),
        (frame(b"{}", opcode=0x3), 1002),
        (frame(b"{}", masked=False), 1002),
        (frame(b"{}", opcode=CONTINUATION), 1002),
        (frame(b"p" * 126, opcode=PING), 1002),
        (frame(b"{", final=False) + frame(b"{"), 1002),
        (frame(b"x" * 600_000, final=False) + frame(b"x" * 600_000, opcode=CONTINUATION), 1009),
        (b"\x81\xff" + b"\xff" * 8 + b"\0\0\0\0", 1009),  # a length that no one can send
        (b"\x81\xff\x00\x00\x00\x00\x7f\xff\xff\xff" + b"\0\0\0\0", 1009),
        (bytes(range(256)) * 40, 1002),
    ],
)
async def test_garbage_closes_its_own_socket_with_its_code(data: bytes, code: int):
    async with gateway() as running, bystander(running):
        async with raw_subscriber(running.host) as raw:
            await raw.send(data)
            assert await raw.close_code() == code
        await no_socket_is_left(running)


@pytest.mark.parametrize("number", ["1e999", "-1E+4000", '[1, {"a": 9e309}]', "NaN", "Infinity"])
async def test_a_number_that_no_subscriber_could_read_is_refused(number: str):
    text = json.dumps(envelope("a", payload="PLACE")).replace('"PLACE"', number)
    async with gateway() as running, bystander(running), running.subscriber() as jen:
        response = await running.http.post("/v1/enqueue", content=f'{{"envelope": {text}}}')
        assert (response.status_code, response.json()["error"]["code"]) == (400, "InvalidEnvelope")
        await jen.connection.send(f'{{"enqueue": {text}}}')
        assert await jen.error() == "InvalidJSON"
        exact = text.replace(number, '[1.7e308, "1e999", 123e100]')
        assert (await running.http.post("/v1/enqueue", content=f'{{"envelope": {exact}}}')).status_code == 200


async def test_late_acks_of_an_honest_subscriber_never_end_its_socket():
    """What a busy subscriber meets now and then is no nonsense: only frames that make no sense are counted."""
    async with gateway("streams: {maxDepth: 1}\n" + NO_RATE) as running, running.subscriber(credit=1) as jen:
        await running.send("a")
        await jen.delivered()
        for number in range(150):
            await jen.say(ack="long-gone")
            assert await jen.error() == "LeaseConflict"
            await jen.say(enqueue=envelope(f"b{number}"))
            assert await jen.error() == "StreamFull"
        await jen.say(ack="a")
        await running.until(lambda: running.core.stats(INBOX)["counts"]["acked"] == 1)


# --- names and rights ------------------------------------------------------------------------------------------------

HOSTILE_NAMES = (
    "",
    "/",
    "..",
    "../../etc/passwd",
    "agents/../../etc/passwd",
    "agents//jen",
    "agents/jen/",
    "/agents/jen",
    "agents/jen inbox",
    "agents/jen\ninbox",
    "agents/jen\x00",
    "agents/\u202enej",
    "agents/jén",
    "agents/\ud800",
    "agents/$dead",
    "agents/jen/inbox/$dead",
    "$dead",
    "*",
    "agents/*",
    "agents/*/inbox",
    "${env.id}",
    "x" * 10_000,
    "a/" * 200 + "a",
)


async def test_hostile_names_of_streams_are_refused_at_every_door():
    async with gateway() as running, bystander(running), running.subscriber() as jen:
        before = running.core.streams()
        for name in HOSTILE_NAMES:
            for body in ({"envelope": envelope("a", to=name)}, {"to": name, "envelope": envelope("a", to=name)}):
                response = await running.http.post("/v1/enqueue", content=json.dumps(body))
                assert (response.status_code, response.json()["error"]["code"]) == (400, "InvalidEnvelope"), name
            await jen.connection.send(json.dumps({"enqueue": envelope("a", to=name)}))
            assert await jen.error() in ("InvalidEnvelope", "InvalidJSON"), name
            await _refused_to_subscribe(running, name)
            await _unknown_to_operators(running, name)
        assert running.core.streams() == before


async def _refused_to_subscribe(running: RunningGateway, name: str) -> None:
    if "*" in name:
        return  # a pattern, which a subscriber may name
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with running.socket(f"/v1/subscribe?stream={_escaped(name)}"):
            pass
    assert refused.value.response.status_code in (400, 414), name


async def _unknown_to_operators(running: RunningGateway, name: str) -> None:
    for path in ("stats", "audit", "dead"):
        response = await running.http.get(f"/v1/{path}?stream={_escaped(name)}")
        assert response.status_code in (400, 404, 414), name
    for path in ("dead/replay", "dead/discard", "streams/pause", "streams/resume", "streams/drain"):
        response = await running.http.post(f"/v1/{path}", content=json.dumps({"stream": name}))
        assert response.status_code in (400, 404), name


def _escaped(name: str) -> str:
    return quote(name.encode("utf-8", "surrogatepass"), safe="")


async def test_a_token_without_the_scope_is_refused_everywhere_and_the_others_go_on():
    tokens = """
auth:
  tokens:
    - { token: "reader-secret", scopes: ["streams:agents/jen/*:subscribe"] }
    - { token: "writer-secret", scopes: ["streams:*:enqueue"] }
"""
    reader, writer = ({"authorization": f"Bearer {name}-secret"} for name in ("reader", "writer"))
    async with gateway(tokens) as running, running.subscriber(credit=5, additional_headers=reader) as jen:
        for method, path, body in (
            ("POST", "/v1/enqueue", {"envelope": envelope("a")}),
            ("POST", "/v1/dead/replay", {"stream": INBOX}),
            ("POST", "/v1/streams/drain", {"stream": INBOX}),
            ("POST", "/v1/explain", {"envelope": envelope("a")}),
            ("GET", "/v1/stats", None),
            ("GET", "/v1/metrics", None),
            ("GET", "/v1/stats?stream=agents/tom/inbox", None),
            ("GET", "/v1/snapshot?view=latestPerAgent", None),
            ("GET", "/v1/live?view=latestPerAgent", None),
        ):
            response = await running.http.request(method, path, json=body, headers=reader)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "Forbidden"), path
        async with running.subscriber(additional_headers=reader) as other:
            await other.say(enqueue=envelope("b"))
            assert await other.error() == "Forbidden"
            assert await other.closed() == 1008
        response = await running.http.post("/v1/enqueue", json={"envelope": envelope("c")}, headers=writer)
        assert response.status_code == 200
        assert await jen.delivered() == "c"
