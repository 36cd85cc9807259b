"""The WebSockets of the gateway: subscribers with credit, and live readers of views.

A subscriber's messages wait in its outbox until the socket takes them; credit bounds how many. When the socket is gone,
what it held is queued again at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]
from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from butlers.courier.access import SUBPROTOCOL, Access, Principal
from butlers.courier.errors import CourierError, InvalidEnvelope, InvalidJson, RateLimited
from butlers.courier.frames import Ack, ClientFrame, Outbox, deliver_frame, error_frame, read_frame
from butlers.courier.group import DEFAULT_GROUP
from butlers.courier.live import HEARTBEAT_S, LiveReader
from butlers.courier.messages import Delivery
from butlers.courier.queue import AckOf
from butlers.courier.service import Courier, Rate
from butlers.telemetry import get_logger

UNSUPPORTED, NOT_VALID, POLICY, FAILED = 1003, 1007, 1008, 1011  # close codes
LAST_FRAMES_S = 5.0
MOST_REFUSALS = 100  # wrong frames of one socket; then it is closed
log = get_logger(__name__)


class Sockets:
    def __init__(self, courier: Courier, access: Access) -> None:
        self._courier = courier
        self._access = access
        self._open: set[WebSocket] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def subscribe(self, socket: WebSocket) -> None:
        """WS /v1/subscribe?stream=<name or pattern>&group=&format=json|msgpack"""
        try:
            principal = self._access.principal_of(socket)
            stream = socket.query_params.get("stream", "")
            principal.check("streams", stream, "subscribe")
            session = Subscription(self._courier, socket, principal, packed=_format(socket))
            await session.begin(stream, group=socket.query_params.get("group", DEFAULT_GROUP))
        except CourierError as error:
            await _refuse(socket, error)
            return
        await self._serve(socket, session.run)

    async def live(self, socket: WebSocket) -> None:
        """WS /v1/live?view=&epoch=&offset="""
        try:
            principal = self._access.principal_of(socket)
            name = socket.query_params.get("view", "")
            principal.check("views", name, "read")
            place = (socket.query_params.get("epoch", ""), socket.query_params.get("offset", ""))
            reader = LiveReader(self._courier.views[name], place=place)
        except CourierError as error:
            await _refuse(socket, error)
            return
        await self._serve(socket, lambda: _follow(socket, reader))

    async def _serve(self, socket: WebSocket, run: Callable[[], Awaitable[None]]) -> None:
        self._open.add(socket)
        try:
            await run()
        except WebSocketDisconnect:
            pass
        except Exception as error:
            log.error("a socket of the courier failed", error=error)
            with suppress(Exception):
                await socket.close(FAILED)
        finally:
            self._open.discard(socket)


class Subscription:
    """One subscriber: reads its frames, and writes what the core delivers."""

    def __init__(self, courier: Courier, socket: WebSocket, principal: Principal, *, packed: bool) -> None:
        self._courier = courier
        self._queue = courier.queue
        self._socket = socket
        self._principal = principal
        self._packed = packed
        self._outbox = Outbox()
        self._id = ""
        self._refusals = 0
        per_minute = courier.config.gateway.messages_per_minute
        self._rate = None if per_minute is None else Rate(per_minute, courier.clock)

    async def begin(self, stream: str, *, group: str) -> None:
        if not 0 < len(group) <= 64:
            raise InvalidEnvelope("must have 1 to 64 characters", field="group")
        self._id = await self._queue.subscribe(stream, deliver=self._deliver, group=group)

    async def run(self) -> None:
        """Until the client goes, or no frame can be sent to it any more."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._socket.accept(subprotocol=_chosen_protocol(self._socket))
            tasks = [
                asyncio.create_task(self._read(), name=f"courier reader {self._id}"),
                asyncio.create_task(self._outbox.run(self._send), name=f"courier writer {self._id}"),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await self._queue.unsubscribe(self._id)
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- out ---------------------------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        self._outbox.put(deliver_frame(delivery))

    async def _send(self, frame: Mapping[str, Any]) -> None:
        if not self._packed:
            await self._socket.send({"type": "websocket.send", "text": to_json(frame).decode()})
            return
        try:
            data = msgpack.packb(frame)
        except (OverflowError, ValueError):  # JSON knows numbers that MessagePack does not
            reason = "cannot be written as MessagePack"
            await self._queue.nack(
                self._id, frame["deliver"]["id"], meaning="poison", reason=reason, lease=frame["lease"]
            )
            return
        await self._socket.send({"type": "websocket.send", "bytes": data})

    # --- in ----------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            await self._outbox.wait_for_room()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            ref = None
            try:
                frame = self._parsed(message)
                ref = frame.ref
                await self._obey(frame)
            except CourierError as error:
                self._outbox.put(error_frame(error, ref))
                if (code := self._closes(error)) is not None:
                    await self._end(code)
                    return

    def _parsed(self, message: Mapping[str, Any]) -> ClientFrame:
        text, data = message.get("text"), message.get("bytes")
        if text is not None:
            return read_frame(text)
        if not self._packed:
            raise Unsupported("binary frames need format=msgpack")
        try:
            document = to_json(msgpack.unpackb(data, strict_map_key=True), inf_nan_mode="constants")
        except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
            raise NotMessagePack("is not MessagePack that JSON can hold") from None
        return read_frame(document)

    async def _obey(self, frame: ClientFrame) -> None:
        queue, me = self._queue, self._id
        if frame.ack is not None:
            await self._ack(frame)
        if frame.nack is not None:
            await queue.nack(
                me,
                frame.nack,
                meaning=frame.as_,
                delay_s=frame.delay_ms / 1000,
                reason=frame.reason,
                lease=frame.lease,
                stream=frame.stream,
            )
        if frame.extend is not None:
            lease_s = None if frame.extend_ms is None else frame.extend_ms / 1000
            await queue.extend(me, frame.extend, lease_s=lease_s, lease=frame.lease, stream=frame.stream)
        if frame.credit is not None:
            await queue.grant(me, frame.credit)
        if frame.enqueue is not None:
            await self._enqueue(frame.enqueue, frame.ref)

    async def _ack(self, frame: ClientFrame) -> None:
        if isinstance(frame.ack, str):
            await self._queue.ack(self._id, frame.ack, lease=frame.lease, stream=frame.stream)
            return
        acks = [one if isinstance(one, Ack) else Ack(id=one) for one in frame.ack or ()]
        for error in await self._queue.ack_each(self._id, [AckOf(ack.id, ack.lease, ack.stream) for ack in acks]):
            self._outbox.put(error_frame(error, frame.ref))  # the others of the frame are dealt with all the same

    async def _enqueue(self, envelope: dict[str, Any], ref: str | None) -> None:
        to = envelope.get("to")
        self._principal.check("streams", to if isinstance(to, str) else "", "enqueue")
        self._principal.spend()
        if self._rate is not None:
            self._rate.spend("this connection")
        accepted = await self._courier.enqueue(envelope)
        await self._queue.durable()
        answer: dict[str, Any] = {"enqueued": {"id": accepted.id, "duplicate": accepted.duplicate}}
        self._outbox.put(answer | ({"ref": ref} if ref is not None else {}))

    def _closes(self, error: CourierError) -> int | None:
        """The close code, when this refusal ends the socket."""
        if error.close_code is not None:
            return error.close_code
        if not isinstance(error, RateLimited):
            self._refusals += 1
        return POLICY if self._refusals > MOST_REFUSALS else None

    async def _end(self, code: int) -> None:
        """Write what is left, and close; a client that does not read is not waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_FRAMES_S):
                await self._outbox.empty(self._send)
        await self._socket.close(code)


class Unsupported(InvalidJson):
    close_code = UNSUPPORTED


class NotMessagePack(InvalidJson):
    close_code = NOT_VALID


async def _follow(socket: WebSocket, reader: LiveReader) -> None:
    await socket.accept(subprotocol=_chosen_protocol(socket))
    gone = asyncio.create_task(_drained(socket))
    try:
        with reader:
            while not gone.done():
                coming = asyncio.create_task(reader.next())
                await asyncio.wait([coming, gone], timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    continue
                name, _, data = coming.result()
                await socket.send_text(to_json({name: data}).decode())
    finally:
        gone.cancel()


async def _drained(socket: WebSocket) -> None:
    """Returns when the client has gone; what it sends is not read."""
    with suppress(WebSocketDisconnect):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


async def _refuse(socket: WebSocket, error: CourierError) -> None:
    """Before the handshake: an HTTP answer, which says why."""
    headers = [(b"content-type", b"application/json")]
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        body = to_json({"error": error.describe()})
        await socket.send({"type": "websocket.http.response.start", "status": error.http_status, "headers": headers})
        await socket.send({"type": "websocket.http.response.body", "body": body})
    else:
        await socket.close(error.close_code or POLICY)


def _format(socket: WebSocket) -> bool:
    chosen = socket.query_params.get("format", "json")
    if chosen not in ("json", "msgpack"):
        raise InvalidEnvelope("must be json or msgpack", field="format")
    return chosen == "msgpack"


def _chosen_protocol(socket: WebSocket) -> str | None:
    return SUBPROTOCOL if SUBPROTOCOL in socket.scope.get("subprotocols", ()) else None
