"""A process that hands in messages as fast as they are taken: keep-alive connections, one request under way on each.

It writes bytes that are ready before the clock starts and reads no more of an answer than it has to, so that it takes
little of the machine that is measured.

    python -m benchmarks.ingress.load '{"port": ..., "path": ..., "token": ..., "connections": ..., "messages": ...}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import uvloop

from butlers.clock import SystemClock

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    port: int
    path: str
    token: str
    connections: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    seconds: float
    p50_ms: float
    p99_ms: float


def message(number: int, run: str) -> dict[str, Any]:
    """A chat message of the usual size."""
    text = f"I paid the electricity bill of {number % 90 + 10} euros for the flat, please note it under household"
    return {
        "schema_version": "ingest.v1",
        "source": {"channel": "api", "provider": "internal", "endpoint_identity": "client:bench"},
        "event": {
            "external_event_id": f"{run}-{number}",
            "external_thread_id": f"chat-{number % 500}",
            "observed_at": "2026-01-01T00:00:00+00:00",
        },
        "sender": {"identity": f"person-{number % 500}", "display_name": "Ann Example"},
        "payload": {"raw": {"text": text, "chat": {"id": number % 500}, "number": number}, "normalized_text": text},
        "control": {"idempotency_key": f"{run}-{number}"},
    }


class Connection(asyncio.Protocol):
    """Sends the next request when the answer to the last one is there."""

    def __init__(self, requests: deque[bytes], latencies: list[float], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._latencies = latencies
        self._done = done
        self._now = SystemClock().monotonic
        self._sent_at = 0.0
        self._answer = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def next(self) -> None:
        assert self._transport is not None
        if not self._requests:
            self._transport.close()
            if not self._done.done():
                self._done.set_result(None)
            return
        self._sent_at = self._now()
        self._transport.write(self._requests.popleft())

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not _complete(self._answer):
            return
        if not self._answer.startswith(b"HTTP/1.1 202"):
            self._fail(RuntimeError(f"answered {self._answer[:200]!r}"))
            return
        self._answer = b""
        self._latencies.append(self._now() - self._sent_at)
        self.next()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(error)


def _complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)


async def run(load: Load) -> Measured:
    requests, latencies = deque(_requests(load)), list[float]()
    loop, clock = asyncio.get_running_loop(), SystemClock()
    done = [loop.create_future() for _ in range(load.connections)]
    opened = [
        await loop.create_connection(lambda end=end: Connection(requests, latencies, end), HOST, load.port)  # type: ignore[misc]
        for end in done
    ]
    began = clock.monotonic()
    for _, connection in opened:
        connection.next()
    await asyncio.gather(*done)
    seconds = clock.monotonic() - began
    latencies.sort()
    return Measured(
        seconds=seconds,
        p50_ms=round(latencies[len(latencies) // 2] * 1000, 2),
        p99_ms=round(latencies[int(len(latencies) * 0.99)] * 1000, 2),
    )


def _requests(load: Load) -> list[bytes]:
    run_name = uuid4().hex
    return [_request(load, json.dumps(message(number, run_name)).encode()) for number in range(load.messages)]


def _request(load: Load, body: bytes) -> bytes:
    head = (
        f"POST {load.path} HTTP/1.1\r\nHost: {HOST}:{load.port}\r\nAuthorization: Bearer {load.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    print(json.dumps(asdict(uvloop.run(run(Load(**json.loads(sys.argv[1])))))), flush=True)


if __name__ == "__main__":
    main()
