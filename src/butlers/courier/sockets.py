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
from butlers.courier.envelope import may_hold_nul
from butlers.courier.errors import CourierError, InvalidEnvelope, InvalidJson
from butlers.courier.frames import deliver_frame, error_frame, read_frame
from butlers.courier.group import DEFAULT_GROUP
from butlers.courier.kernel_adapter import serve_pipe
from butlers.courier.live import HEARTBEAT_S, LiveReader
from butlers.courier.messages import Delivery
from butlers.courier.names import check_group
from butlers.courier.outbox import SocketOutbox
from butlers.courier.queue import AckOf
from butlers.courier.service import Courier, Rate
from butlers.courier.websocket import protocol_of
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
        self._refusals: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def subscribe(self, socket: WebSocket) -> None:
        """WS /v1/subscribe?stream=<name or pattern>&group=&format=json|msgpack&batch=0|1"""
        try:
            principal = self._access.principal_of(socket)
            stream = socket.query_params.get("stream", "")
            principal.check("streams", stream, "subscribe")
            session = Subscription(self._courier, socket, principal)
            await session.begin(stream, group=socket.query_params.get("group", DEFAULT_GROUP))
        except CourierError as error:
            await _refuse(socket, error)
            return
        await self._serve(socket, session.run)

    async def pipe(self, socket: WebSocket) -> None:
        """WS /v1/pipe: for a kernel elsewhere, whose services may use every stream"""
        try:
            principal = self._access.principal_of(socket)
            for kind, right in (("streams", "enqueue"), ("streams", "subscribe"), ("views", "read")):
                principal.check(kind, "*", right)
        except CourierError as error:
            await _refuse(socket, error)
            return
        await self._serve(socket, lambda: serve_pipe(self._courier, socket))

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

    async def close_refused(self) -> None:
        """End the sockets whose token counts no more."""
        for number, socket in enumerate(list(self._open)):
            if number % 100 == 99:
                await self._courier.clock.sleep(0)  # thousands of them hold up nobody
            if not self._access.admits(socket):
                task = asyncio.create_task(_close_or_abort(socket), name="courier refusal")
                self._refusals.add(task)
                task.add_done_callback(self._refusals.discard)

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

    def __init__(self, courier: Courier, socket: WebSocket, principal: Principal) -> None:
        self._courier = courier
        self._queue = courier.queue
        self._socket = socket
        self._protocol = protocol_of(socket)
        self._principal = principal
        self._packed = _option(socket, "format", ("json", "msgpack")) == "msgpack"
        together = _option(socket, "batch", ("0", "1")) == "1"
        self._outbox = SocketOutbox(self._protocol, packed=self._packed, together=together, refused=self._set_aside)
        self._tasks: set[asyncio.Task[None]] = set()
        self._id = ""
        self._nul_free = False  # of the frame that is carried out
        self._refusals = 0
        self._close_code: int | None = None  # set: the socket ends after what it has to say
        per_minute = courier.config.gateway.messages_per_minute
        self._rate = None if per_minute is None else Rate(per_minute, courier.clock)

    async def begin(self, stream: str, *, group: str) -> None:
        check_group(group)
        self._id = await self._queue.subscribe(stream, deliver=self._deliver, group=group)

    async def run(self) -> None:
        """Until the client goes."""
        try:
            await self._socket.accept(subprotocol=_chosen_protocol(self._socket))
            await self._read()
        finally:
            await self._queue.unsubscribe(self._id)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- out ---------------------------------------------------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        self._outbox.put(deliver_frame(delivery))

    def _set_aside(self, frame: Mapping[str, Any]) -> None:
        """A delivery that the subscriber's format cannot hold; the core is in the middle of something."""
        nack = self._queue.nack(
            self._id,
            frame["deliver"]["id"],
            meaning="poison",
            reason=f"cannot be written as {'MessagePack' if self._packed else 'JSON'}",
            lease=frame["lease"],
        )
        task = asyncio.create_task(nack, name=f"courier poison {self._id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- in ----------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        receive = self._protocol.receive
        while True:
            await self._outbox.wait_for_room()
            message: Mapping[str, Any] = await receive()
            if message["type"] == "websocket.disconnect":
                return
            ref = None
            try:
                frame = self._parsed(message)
                ref = frame.get("ref")
                await self._obey(frame)
            except CourierError as error:
                self._outbox.put(error_frame(error, ref))
                self._count(error)
            if self._close_code is not None:
                await self._end(self._close_code)
                return

    def _parsed(self, message: Mapping[str, Any]) -> dict[str, Any]:
        text: str | None = message.get("text")
        if text is None:
            text = self._unpacked(message["bytes"])
        self._nul_free = not may_hold_nul(text)
        return read_frame(text)

    def _unpacked(self, data: bytes) -> str:
        """MessagePack as JSON."""
        if not self._packed:
            raise Unsupported("binary frames need format=msgpack")
        try:
            return to_json(msgpack.unpackb(data, strict_map_key=True), inf_nan_mode="constants").decode()
        except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError):
            raise NotMessagePack("is not MessagePack that JSON can hold") from None

    async def _obey(self, frame: dict[str, Any]) -> None:
        word = frame.get
        if (ack := word("ack")) is not None:
            await self._ack(ack, frame)
        if word("nack") is not None:
            await self._nack(frame)
        if (extended := word("extend")) is not None:
            length_ms = word("extendMs")
            lease_s = None if length_ms is None else length_ms / 1000
            await self._queue.extend(self._id, extended, lease_s=lease_s, lease=word("lease"), stream=word("stream"))
        if (credit := word("credit")) is not None:
            await self._queue.grant(self._id, credit)
        if (enqueued := word("enqueue")) is not None:
            await self._enqueue(enqueued, word("ref"))

    async def _ack(self, ack: str | list[Any], frame: dict[str, Any]) -> None:
        if isinstance(ack, str):
            await self._queue.ack(self._id, ack, lease=frame.get("lease"), stream=frame.get("stream"))
            return
        acks = [
            AckOf(one) if isinstance(one, str) else AckOf(one["id"], one.get("lease"), one.get("stream")) for one in ack
        ]
        for error in await self._queue.ack_each(self._id, acks):
            self._outbox.put(
                error_frame(error, frame.get("ref"))
            )  # the others of the frame are dealt with all the same

    async def _nack(self, frame: dict[str, Any]) -> None:
        await self._queue.nack(
            self._id,
            frame["nack"],
            meaning=frame.get("as", "failed"),
            delay_s=frame.get("delayMs", 0) / 1000,
            reason=frame.get("reason", ""),
            lease=frame.get("lease"),
            stream=frame.get("stream"),
        )

    async def _enqueue(self, envelopes: dict[str, Any] | list[Any], ref: str | None) -> None:
        """The error of a single envelope is raised; of several, each has its own in the answer."""
        answer: dict[str, Any] = {} if ref is None else {"ref": ref}
        if isinstance(envelopes, dict):
            accepted = await self._accept(envelopes)
            await self._queue.durable()
            self._outbox.put({"enqueued": accepted, **answer})
            return
        results: list[dict[str, Any]] = []
        for envelope in envelopes:
            try:
                results.append(await self._accept(envelope))
            except CourierError as error:
                results.append({"error": error.describe()})
                self._count(error)
        await self._queue.durable()
        self._outbox.put({"enqueued": results, **answer})

    async def _accept(self, envelope: Any) -> dict[str, Any]:
        to = envelope.get("to") if isinstance(envelope, dict) else None
        self._principal.check("streams", to if isinstance(to, str) else "", "enqueue")
        self._principal.spend()
        if self._rate is not None:
            self._rate.spend("this connection")
        accepted = await self._courier.enqueue(envelope, nul_free=self._nul_free)
        return {"id": accepted.id, "duplicate": accepted.duplicate}

    def _count(self, error: CourierError) -> None:
        """Some refusals end the socket, and so do too many of the others."""
        if error.close_code is not None:
            self._close_code = error.close_code
        elif error.http_status == 400:  # the frame makes no sense; what is late or too much may be honest
            self._refusals += 1
            if self._refusals > MOST_REFUSALS:
                self._close_code = POLICY

    async def _end(self, code: int) -> None:
        """Write what is left, and close; a client that does not read is not waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_FRAMES_S):
                await self._outbox.empty()
        await self._socket.close(code)


async def _close_or_abort(socket: WebSocket) -> None:
    """A client that does not read is not waited for."""
    with suppress(Exception):
        async with asyncio.timeout(LAST_FRAMES_S):
            await socket.close(POLICY)
            return
    protocol_of(socket).transport.abort()


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


def _option(socket: WebSocket, name: str, choices: tuple[str, str]) -> str:
    """The first choice is the default."""
    chosen = socket.query_params.get(name, choices[0])
    if chosen not in choices:
        raise InvalidEnvelope(f"must be {' or '.join(choices)}", field=name)
    return chosen


def _chosen_protocol(socket: WebSocket) -> str | None:
    return SUBPROTOCOL if SUBPROTOCOL in socket.scope.get("subprotocols", ()) else None
