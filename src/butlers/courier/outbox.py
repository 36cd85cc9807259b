"""Frames on their way out. Answers that a client does not read hold its next words back; deliveries do not, for its
credit bounds them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
from pydantic_core import to_json

from butlers.courier.websocket import FrameProtocol

MOST_ANSWERS: Final = 1_000
MOST_TOGETHER: Final = 1_000  # deliveries in one frame
LARGEST_TOGETHER: Final = 262_144  # bytes; beyond it no more are added

Document = Mapping[str, Any]


class Outbox:
    """Frames that wait, in their order."""

    def __init__(self, most_answers: int = MOST_ANSWERS) -> None:
        self._frames: deque[Document] = deque()
        self._most_answers = most_answers
        self._answers = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, frame: Document) -> None:
        self._frames.append(frame)
        if "deliver" not in frame:
            self._answers += 1
            if self._answers > self._most_answers:
                self._has_room.clear()

    def _next(self) -> Document:
        frame = self._frames.popleft()
        if "deliver" not in frame:
            self._answers -= 1
            if self._answers <= self._most_answers:
                self._has_room.set()
        return frame

    async def wait_for_room(self) -> None:
        if not self._has_room.is_set():
            await self._has_room.wait()


class PipeOutbox(Outbox):
    """Of a pipe, whose writes are awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._filled = asyncio.Event()

    def put(self, frame: Document) -> None:
        super().put(frame)
        self._filled.set()

    async def run(self, write: Callable[[Any], Awaitable[None]]) -> None:
        """Write whatever is put in, until cancelled or until writing fails."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._frames:
                await write(self._next())


class SocketOutbox(Outbox):
    """Of a WebSocket: a frame is written at once while the client reads, and waits otherwise. `together`: the client
    takes several deliveries in one frame; then they are written at the end of this turn of the event loop.
    """

    def __init__(
        self, protocol: FrameProtocol, *, packed: bool, together: bool, refused: Callable[[Document], None]
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._packed = packed
        self._together = together
        self._refused = refused  # a delivery that cannot be written
        self._flushing = False
        self._emptied = asyncio.Event()
        protocol.on_writable = self._flush

    def put(self, frame: Document) -> None:
        if self._together:
            super().put(frame)
            if not self._flushing:
                self._flushing = True
                asyncio.get_running_loop().call_soon(self._flush)
        elif self._frames or not self._protocol.is_writable:
            super().put(frame)
        else:
            self._write(frame)

    async def empty(self) -> None:
        """Returns when everything is with the transport."""
        self._flush()
        while self._frames:
            self._emptied.clear()
            await self._emptied.wait()

    def _flush(self) -> None:
        self._flushing = False
        while self._frames and self._protocol.is_writable:
            if self._together and "deliver" in self._frames[0]:
                self._write_together()
            else:
                self._write(self._next())
        if not self._frames:
            self._emptied.set()

    def _write(self, frame: Document) -> None:
        if (data := self._encoded(frame)) is not None:
            self._protocol.write_message(data, binary=self._packed)

    def _write_together(self) -> None:
        """The deliveries that wait, as many as one frame holds."""
        parts: list[bytes] = []
        size = 0
        while self._frames and "deliver" in self._frames[0] and len(parts) < MOST_TOGETHER and size < LARGEST_TOGETHER:
            if (data := self._encoded(self._next())) is not None:
                parts.append(data)
                size += len(data)
        if not parts:
            return
        if self._packed:
            head = b"\x81" + msgpack.packb("deliveries") + msgpack.Packer().pack_array_header(len(parts))
            self._protocol.write_message(head + b"".join(parts), binary=True)
        else:
            self._protocol.write_message(b'{"deliveries":[' + b",".join(parts) + b"]}", binary=False)

    def _encoded(self, frame: Document) -> bytes | None:
        """None: this format cannot hold it; JSON knows numbers that MessagePack does not."""
        try:
            data: bytes = msgpack.packb(frame) if self._packed else to_json(frame)
        except (OverflowError, ValueError, TypeError):
            self._refused(frame)
            return None
        return data
