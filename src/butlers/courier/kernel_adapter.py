"""The courier on a Stream Kernel: a transform service behind a pipe, with the credit of subscribers across it.

    in   {"op": "hello"}  {"op": "enqueue", "envelope"}  {"op": "subscribe", "stream", "group"}
         {"op": "grant", "credit"}  {"op": "ack", "id", "lease"}  {"op": "nack", "id", "lease", "as", "delayMs"}
         {"op": "stats", "stream"}  {"op": "snapshot", "view"}
    out  {"op": "ok", ...}  {"op": "error", "error"}  {"op": "deliver", "deliver", "stream", "lease", "attempt"}

An envelope that comes without an `op` is enqueued, so that sources may be connected directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any, get_args

from pydantic_core import to_json
from starlette.websockets import WebSocket
from websockets.frames import CloseCode

from butlers.courier.envelope import check_depth, read_json
from butlers.courier.errors import CourierError, InvalidEnvelope, LeaseConflict, UnknownOp
from butlers.courier.frames import deliver_frame
from butlers.courier.group import DEFAULT_GROUP, Nack
from butlers.courier.kernel import (
    ANNOUNCE_S,
    HEARTBEAT_S,
    Capabilities,
    Frame,
    Hostess,
    PipeClosed,
    PipeEnd,
    Router,
    StreamKernel,
    make_pipe,
)
from butlers.courier.names import check_group
from butlers.courier.outbox import PipeOutbox
from butlers.courier.service import Courier
from butlers.courier.views import LATEST_PER_AGENT

NAME = "courier"
OPS = ("hello", "enqueue", "subscribe", "grant", "ack", "nack", "stats", "snapshot")
CAPABILITIES = Capabilities(
    type="transform", accepts=("envelope",), produces=("envelope", "view"), features=("credit", "lease", "dead-letter")
)


class PipeSession:
    """The courier's end of a pipe: one subscriber at most, and any number of enqueues."""

    def __init__(self, courier: Courier, pipe: PipeEnd) -> None:
        self._courier = courier
        self._pipe = pipe
        self._outbox = PipeOutbox()
        self._subscriber: str | None = None

    async def run(self) -> None:
        writer = asyncio.create_task(self._outbox.run(self._pipe.write), name="courier pipe")
        try:
            async for frame in self._pipe:
                self._outbox.put(await self._answer(frame))
                await self._outbox.wait_for_room()
        finally:
            if self._subscriber is not None:
                await self._courier.queue.unsubscribe(self._subscriber)
            writer.cancel()
            with suppress(asyncio.CancelledError, PipeClosed):
                await writer

    async def _answer(self, frame: Frame) -> Frame:
        op = frame.get("op", "enqueue")
        try:
            answer = await self._obey(op, frame)
        except CourierError as error:
            return {"op": "error", "error": error.describe(), "of": op}
        return {"op": "ok", "of": op, **answer}

    async def _obey(self, op: str, frame: Frame) -> dict[str, Any]:
        handler = getattr(self, f"_on_{op}", None) if op in OPS else None
        if handler is None:
            raise UnknownOp(f"{op!r} is no word of this pipe; there are: {', '.join(OPS)}")
        answer: dict[str, Any] = await handler(frame)
        return answer

    async def _on_hello(self, _frame: Frame) -> dict[str, Any]:
        return {"service": NAME, "epoch": self._courier.epoch}

    async def _on_enqueue(self, frame: Frame) -> dict[str, Any]:
        envelope = frame.get("envelope") if "op" in frame else frame
        check_depth(envelope)  # it may come from this process, by no parser
        accepted = await self._courier.enqueue(envelope)
        await self._courier.queue.durable()
        return {"id": accepted.id, "duplicate": accepted.duplicate}

    async def _on_subscribe(self, frame: Frame) -> dict[str, Any]:
        if self._subscriber is not None:
            raise InvalidEnvelope("this pipe has a subscriber already", field="op")
        stream, group = str(frame.get("stream", "")), str(frame.get("group", DEFAULT_GROUP))
        check_group(group)
        self._subscriber = await self._courier.queue.subscribe(stream, deliver=self._deliver, group=group)
        return {"subscriber": self._subscriber}

    async def _on_grant(self, frame: Frame) -> dict[str, Any]:
        credit: Any = frame.get("credit")
        return {"credit": await self._courier.queue.grant(self._own(), credit)}

    async def _on_ack(self, frame: Frame) -> dict[str, Any]:
        id, lease = _held(frame)
        await self._courier.queue.ack(self._own(), id, lease=lease)
        return {"id": frame.get("id")}

    async def _on_nack(self, frame: Frame) -> dict[str, Any]:
        delay: Any = frame.get("delayMs", 0)
        meaning: Any = frame.get("as", "failed")
        if type(delay) is not int or meaning not in get_args(Nack):
            raise InvalidEnvelope("delayMs is a whole number, `as` release, failed or poison", field="delayMs")
        id, lease = _held(frame)
        await self._courier.queue.nack(self._own(), id, meaning=meaning, delay_s=delay / 1000, lease=lease)
        return {"id": frame.get("id")}

    async def _on_stats(self, frame: Frame) -> dict[str, Any]:
        queue = self._courier.queue
        names = [str(frame["stream"])] if "stream" in frame else await queue.streams()
        return {"streams": [await queue.stats(name) for name in names]}

    async def _on_snapshot(self, frame: Frame) -> dict[str, Any]:
        return self._courier.views[str(frame.get("view", LATEST_PER_AGENT))].snapshot()

    def _own(self) -> str:
        if self._subscriber is None:
            raise LeaseConflict("", "subscribe first")
        return self._subscriber

    def _deliver(self, delivery: Any) -> None:
        self._outbox.put({"op": "deliver", **deliver_frame(delivery)})


def _held(frame: Frame) -> tuple[str, str | None]:
    """The id and the lease of the message that a frame settles."""
    id, lease = frame.get("id"), frame.get("lease")
    if not isinstance(id, str) or not isinstance(lease, str | None):
        raise InvalidEnvelope("id is text, and lease, where it is given", field="id")
    return id, lease


class Fabric:
    """The kernel of this process, who is alive on it and where; `GET /v1/services` shows it."""

    def __init__(self) -> None:
        self.kernel = StreamKernel()
        self.hostess = Hostess()
        self.router = Router()

    def services(self, now: float) -> list[dict[str, Any]]:
        alive = self.hostess.available(now)
        return [
            {
                "name": name,
                **asdict(self.kernel.capabilities_of(name)),
                "available": name in alive,
                "address": self.router.locate(name, now),
                **alive.get(name, {}),
            }
            for name in self.kernel.lookup()
        ]


async def serve_pipe(courier: Courier, socket: WebSocket) -> None:
    """A kernel elsewhere has the courier on its pipe: one frame of the pipe is one message of the socket."""
    ours, theirs = make_pipe()
    await socket.accept()

    async def into_pipe() -> None:
        while (message := await socket.receive())["type"] == "websocket.receive":
            if (text := message.get("text")) is None:
                await socket.close(CloseCode.UNSUPPORTED_DATA)
                return
            await theirs.write(_frame(text))

    async def out_of_pipe() -> None:
        async for frame in theirs:
            await socket.send_text(to_json(frame).decode())

    tasks = [asyncio.create_task(part) for part in (PipeSession(courier, ours).run(), into_pipe(), out_of_pipe())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await ours.close()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _frame(text: str) -> Frame:
    """What is no object is answered like a word that the pipe does not know."""
    try:
        frame = read_json(text.encode())
    except CourierError:
        frame = None
    return frame if isinstance(frame, dict) else {"op": "not a frame"}


@asynccontextmanager
async def on_kernel(courier: Courier, fabric: Fabric, *, url: str) -> AsyncIterator[PipeSession]:
    """The courier registered with a kernel, alive to the hostess and announced to the router."""
    ours, theirs = make_pipe()
    fabric.kernel.register(NAME, CAPABILITIES, theirs)
    session = PipeSession(courier, ours)
    tasks = [
        asyncio.create_task(session.run(), name="courier on the kernel"),
        asyncio.create_task(_advertise(courier, fabric, url), name="courier advertisement"),
    ]
    try:
        yield session
    finally:
        await ours.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _advertise(courier: Courier, fabric: Fabric, url: str) -> None:
    clock, announced_at = courier.clock, float("-inf")
    while True:
        now = clock.monotonic()
        fabric.hostess.heartbeat(NAME, now, url=url, streams=len(await courier.queue.streams()))
        if now - announced_at >= ANNOUNCE_S:
            fabric.router.announce(NAME, url, now)
            announced_at = now
        await clock.sleep(HEARTBEAT_S)
