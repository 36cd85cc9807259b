"""Frames that no honest subscriber sends: each gets a documented error or close code, and the courier goes on.

`BUTLERS_FUZZ=100000` sends that many; a fifth of the usual number otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
import websockets

from butlers.clock import SystemClock
from tests.fuzz.mutation import as_json, hostile, mangled, mutated
from tests.fuzz.tries import SLOWEST_S, TOTAL, WHOLE_PROOF, Findings, dice_of
from tests.integration.courier.gateway import DEADLINE_S, INBOX, RunningGateway, bystander, envelope, gateway
from tests.integration.courier.raw_socket import frame, raw_subscriber

FRAMES = TOTAL if TOTAL >= WHOLE_PROOF else max(500, TOTAL // 5)
SOCKETS = 8
CONFIG = """
streams:
  maxDepth: 2000
  maxDead: 500
  recentIds: 1000
  defaultLeaseMs: 500
  perStreamCaps: {"agents/bystander/*": {leaseMs: 30000}}
gateway: {port: 0, messagesPerMinute: null}
"""
ERRORS = {"InvalidEnvelope", "InvalidJSON", "UnknownOp", "LeaseConflict", "StreamFull", "RateLimited"}
CLOSES = {1003, 1007, 1008, 1009}
FULL = envelope(
    "e-1",
    **{"from": "architect", "schema": "a/b@v1", "version": 1, "corr": "c-42", "refs": ["T1"], "tags": ["x"]},
    headers={"priority": "normal"},
    partitionKey="p",
)
VALID: tuple[dict[str, Any], ...] = (
    {"credit": 10},
    {"ack": "e-1"},
    {"ack": "e-1", "lease": "0-1", "stream": INBOX},
    {"ack": ["e-1", {"id": "e-2", "lease": "0-2"}], "credit": 2},
    {"nack": "e-1", "as": "failed", "delayMs": 5, "reason": "busy", "ref": "r"},
    {"nack": "e-1", "as": "poison"},
    {"extend": "e-1", "extendMs": 1000},
    {"enqueue": FULL, "ref": "r1"},
    {"enqueue": envelope("e-2", payload={"deep": [[[{"a": None}]]]})},
)
MADE_BY_HAND: tuple[bytes, ...] = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"credit"',
    b"\x00" * 64,
    b"\xef\xbb\xbf{}",
    b'{"credit": 1, "credit": -1}',
    b'{"credit": -1, "credit": 1}',
    b'{"ack": "a", "ack": ["b"], "ack": null}',
    b'{"enqueue": {"id": "a", "id": "b", "id": 3}}',
    b'{"credit": 1e999}',
    b'{"credit": ' + b"9" * 5_000 + b"}",
    b'{"credit": 1.0}',
    b'{"credit": NaN}',
    b'{"ack": "\\ud800"}',
    b'{"ack": "\\u0000"}',
    b'{"enqueue": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
    b"[" * 100_000,
    b'{"ack": [' + b'"a",' * 5_000 + b'"a"]}',
    b'{"credit": 1}' * 1_000,
    b'{"' + b"k" * 100_000 + b'": 1}',
    b"{" + b",".join(b'"k%d": 1' % number for number in range(5_000)) + b"}",
)


class Sender:
    """One hostile client after another: a socket that the gateway has closed is followed by a new one."""

    def __init__(self, running: RunningGateway, findings: Findings, closes: Counter[int]) -> None:
        self._running = running
        self._findings = findings
        self._closes = closes
        self._clock = SystemClock()
        self.answers: Counter[str] = Counter()
        self.slowest = (0.0, -1)

    async def send(self, numbers: Any) -> None:
        number = next(numbers, None)
        while number is not None:
            packed = dice_of("courier format", number).random() < 0.25
            path = f"/v1/subscribe?stream={INBOX}" + ("&format=msgpack" if packed else "")
            async with websockets.connect(f"ws://{self._running.host}{path}", max_size=None) as socket:
                try:
                    for _ in range(200):
                        if number is None:
                            return
                        await self._try(socket, number, packed)
                        number = next(numbers, None)
                except websockets.ConnectionClosed as closed:
                    self._closed(number or 0, closed)
                    number = next(numbers, None)

    async def _try(self, socket: websockets.ClientConnection, number: int, packed: bool) -> None:
        began = self._clock.monotonic()
        await socket.send(fuzzed_frame(number, packed))
        await self._marked(socket, number, packed)
        self.slowest = max(self.slowest, (self._clock.monotonic() - began, number))

    async def _marked(self, socket: websockets.ClientConnection, number: int, packed: bool) -> None:
        """Everything up to the answer to a frame of ours, which the gateway reads after the hostile one."""
        mark: dict[str, Any] = {"ack": f"no such message {number}", "ref": f"mark-{number}"}
        await socket.send(msgpack.packb(mark) if packed else json.dumps(mark))
        while True:
            async with asyncio.timeout(DEADLINE_S):
                data = await socket.recv()
            answer = msgpack.unpackb(data) if isinstance(data, bytes) else json.loads(data)
            if answer.get("error", {}).get("ref") == mark["ref"]:
                return
            self._check(number, answer)

    def _check(self, number: int, answer: dict[str, Any]) -> None:
        kind = next(iter(answer))
        self.answers[kind] += 1
        if kind not in ("deliver", "enqueued", "error"):
            self._findings.add(number, f"an answer that is not documented: {kind}")
        if kind == "error" and answer["error"]["code"] not in ERRORS:
            self._findings.add(number, f"an error that is not documented: {answer['error']}")

    def _closed(self, number: int, closed: websockets.ConnectionClosed) -> None:
        code = closed.rcvd.code if closed.rcvd is not None else 0
        self._closes[code] += 1
        if code not in CLOSES:
            self._findings.add(number, f"closed with {code}")


def fuzzed_frame(number: int, packed: bool) -> str | bytes:
    dice = dice_of("courier frame", number)
    if number < len(MADE_BY_HAND):
        return _text(MADE_BY_HAND[number])
    document = _own_id(dice.choice(VALID), number)
    if packed:
        return _packed(document, dice)
    match dice.randrange(8):
        case 0:
            return _text(dice.randbytes(dice.choice((1, 16, 400))))
        case 1:
            return as_json(_nested(dice)).decode()
        case 2:
            return as_json(document).decode()
        case 3 | 4:
            return _text(mangled(as_json(document), dice))
        case 5 if dice.random() < 0.05:
            return dice.randbytes(40)  # binary on a socket of JSON: 1003
        case _:
            return as_json(mutated(document, dice)).decode()


def _packed(document: dict[str, Any], dice: random.Random) -> bytes:
    if dice.random() < 0.6:
        try:
            return bytes(msgpack.packb(mutated(document, dice)))
        except (ValueError, OverflowError, TypeError, UnicodeEncodeError):
            return b"\xc1"
    data = bytes(msgpack.packb(document))
    return mangled(data, dice) if dice.random() < 0.7 else dice.randbytes(dice.choice((1, 16, 400)))


def _nested(dice: random.Random) -> Any:
    depth, value = dice.choice((5, 120, 190, 198, 199, 200, 201, 255, 256, 400)), hostile(dice)
    for _ in range(depth):
        value = [value] if dice.random() < 0.5 else {"a": value}
    return {"enqueue": envelope(f"deep-{dice.random()}", payload=value)}


def _own_id(document: dict[str, Any], number: int) -> dict[str, Any]:
    if "enqueue" not in document:
        return document
    return document | {"enqueue": document["enqueue"] | {"id": f"e-{number % 5_000}"}}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@pytest.fixture
async def running(caplog: pytest.LogCaptureFixture) -> AsyncIterator[RunningGateway]:
    """Afterwards the sums are right, a normal subscriber works, and nothing went wrong behind the door."""
    async with gateway(CONFIG) as running:
        async with bystander(running):
            yield running
        for stream in running.core.streams():
            assert running.core.audit(stream)["balanced"]
        async with running.subscriber("agents/after/inbox", credit=1) as jen:
            await running.send("after", to="agents/after/inbox")
            assert await jen.delivered() == "after"
            await jen.say(ack="after")
            await running.until(lambda: running.core.stats("agents/after/inbox")["counts"]["acked"] == 1)
        await running.until(lambda: not len(running.server.gateway.sockets))
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


@pytest.mark.timeout(1_200)
async def test_fuzzed_frames_get_a_documented_answer(running: RunningGateway) -> None:
    findings, closes, numbers = Findings("courier frames"), Counter[int](), iter(range(FRAMES))
    senders = [Sender(running, findings, closes) for _ in range(SOCKETS)]
    await asyncio.gather(*(sender.send(numbers) for sender in senders))
    slowest = max(sender.slowest for sender in senders)
    if slowest[0] > SLOWEST_S:
        findings.add(slowest[1], f"took more than {SLOWEST_S:g} s")
    findings.check()
    answers = sum((sender.answers for sender in senders), Counter[str]())
    print(f"{FRAMES} frames, answers {dict(answers)}, closes {dict(closes)}, slowest {slowest[0]:.3f} s")
    assert answers["error"] > FRAMES / 5
    assert answers["enqueued"] > 0


@pytest.mark.timeout(600)
async def test_fuzzed_bytes_below_the_frames_close_their_own_socket(running: RunningGateway) -> None:
    """Not even frames of a WebSocket: the protocol itself, spoilt."""
    for number in range(max(50, FRAMES // 100)):
        dice = dice_of("courier bytes", number)
        whole = b"".join(frame(as_json(dice.choice(VALID))) for _ in range(3))
        data = mangled(whole, dice) if dice.random() < 0.7 else dice.randbytes(200)
        async with raw_subscriber(running.host) as raw:
            await raw.send(data)
            raw.finish()
            code = await raw.close_code()
            assert code in CLOSES | {1002, 1005, None}, (number, code)
