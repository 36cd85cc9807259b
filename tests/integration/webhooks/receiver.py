"""A subscriber's server: it keeps what it was sent, checks signatures by the specification, and misbehaves on demand.

It shares no code with the system: the signature is computed here with hmac alone.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 60.0
Respond = Callable[[asyncio.StreamWriter], Awaitable[None]]


def signature_is_right(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """As https://www.standardwebhooks.com says it."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return f"v1,{expected}" in headers["webhook-signature"].split(" ")


@dataclass(frozen=True, kw_only=True)
class Received:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    @property
    def type(self) -> str:
        return str(self.event["type"])

    def is_signed_with(self, secret: str) -> bool:
        return signature_is_right(secret, self.headers, self.body)


@dataclass(kw_only=True)
class Receiver:
    port: int = 0
    usual: Respond = field(default_factory=lambda: status(204))  # when no answer is prepared
    answers: deque[Respond] = field(default_factory=deque)  # each for one request
    received: list[Received] = field(default_factory=list)
    most_at_once: int = 0
    _under_way: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    async def until(self, is_there: Callable[[], Any]) -> list[Received]:
        """Wait until what was received fulfils a condition."""
        try:
            async with asyncio.timeout(DEADLINE_S), self._changed:
                await self._changed.wait_for(is_there)
        except TimeoutError:
            seen = [(one.type, one.id) for one in self.received]
            raise AssertionError(f"not received within {DEADLINE_S} s; received: {seen}") from None
        return list(self.received)

    async def count(self, number: int) -> list[Received]:
        return await self.until(lambda: len(self.received) >= number)

    async def of_type(self, event_type: str) -> Received:
        """The first event of a type."""
        await self.until(lambda: any(one.type == event_type for one in self.received))
        return next(one for one in self.received if one.type == event_type)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read(reader):
                self._under_way += 1
                self.most_at_once = max(self.most_at_once, self._under_way)
                async with self._changed:
                    self.received.append(request)
                    self._changed.notify_all()
                try:
                    await (self.answers.popleft() if self.answers else self.usual)(writer)
                finally:
                    self._under_way -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(path=first.split(" ")[1], headers=headers, body=body)


def status(code: int, **headers: str) -> Respond:
    """Answer with a status and nothing else."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {code} X", "Content-Length: 0"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join((*lines, "", "")).encode())
        await writer.drain()

    return respond


def silence(release: asyncio.Event) -> Respond:
    """Say nothing until the event is set, then 204."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await status(204)(writer)

    return respond


def endless_body(code: int) -> Respond:
    """A status, then a body without an end."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {code} X\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        while True:
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            await writer.drain()

    return respond


def dripping_head(closed: asyncio.Event) -> Respond:
    """Header after header, one byte at a time, until the client has had enough."""

    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nX-Slow: ")
        try:
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    return respond


@asynccontextmanager
async def receiver(*, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", port, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
