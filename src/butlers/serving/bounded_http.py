"""uvicorn's HTTP protocol with the limits of `connections`.

A refusal is an answer with a class; then the connection ends.
"""

from __future__ import annotations

import asyncio
import http
import json
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from butlers.errors import ClassifiedError, OverloadRejected, TimeoutExceeded, ValidationError
from butlers.serving.connections import Connections
from butlers.serving.peer_account import with_account

_LINGER_S: Final = 2.0  # how long a closed connection may take to let go of its last bytes
_DRAINED: Final = 64 * 2**20  # bytes of a body that nobody wants any more: the client is to see its answer first


class _TooMuch(Exception):
    """Ends the parser's work; uvicorn takes it for a request that cannot be read."""


class BoundedHttp(HttpToolsProtocol):
    def __init__(self, *arguments: Any, connections: Connections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._book = connections
        self._limits, self._clock = connections.limits, connections.clock
        self.timeout_keep_alive = self._limits.keep_alive_s  # type: ignore[assignment]
        self._address = ""
        self._refusal: tuple[int, ClassifiedError] | None = None
        self._head_since: float | None = None  # None: no head is being read
        self._head_bytes = 0  # of it, as far as they were received
        self._field_bytes = 0  # of it and of trailers, as far as they were understood
        self._fields = 0
        self._in_message = False  # between its first byte and its last
        self._without_content = 0  # bytes that brought neither the end of a head nor anything of a body: trailers
        self._drained = 0  # bytes of the body of a request that is answered already
        self._last_activity = self._clock.monotonic()
        self._unread = 0  # bytes of an answer that the client has not taken

    # --- what the loop tells -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = with_account(self.app_state, transport)
        self._last_activity = self._head_since = self._clock.monotonic()
        self._address = self.client[0] if self.client else ""
        if not self._book.enter(self, self._address):
            self._refuse(503, OverloadRejected("too many connections are open", retry_after=1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        self._book.leave(self, self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._last_activity = self._clock.monotonic()
        if not self._in_message and self._head_since is None:
            self._head_since, self._head_bytes = self._last_activity, 0
        if not self._at_work():
            self._book.waits(self, self._address)
        self._count(len(data))
        super().data_received(data)
        self._check()

    def _count(self, received: int) -> None:
        self._without_content += received
        if self._head_since is not None:
            self._head_bytes += received
        elif self.cycle is not None and self.cycle.response_complete:
            self._drained += received

    def _check(self) -> None:
        """What the parser keeps to itself until it is whole is bounded by how much it was given."""
        if self.transport.is_closing():
            return
        in_head = self._head_bytes if self._head_since is not None else 0
        if max(in_head, self._without_content) > self._limits.head_bytes:
            self._refuse(
                431, ValidationError(f"the head of the request is larger than {self._limits.head_bytes} bytes")
            )
        elif self._drained > _DRAINED:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._last_activity = self._clock.monotonic()
        self._book.waits(self, self._address)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._at_work():
            self._book.works(self, self._address)

    # --- what the parser tells ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_message, self._head_since = True, self._last_activity
        self._head_bytes = self._field_bytes = self._fields = self._drained = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.target_bytes:
            self._too_much(414, f"the address is longer than {self._limits.target_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._field_bytes += len(name) + len(value) + 4
        if self._fields > self._limits.head_fields:
            self._too_much(431, f"the request has more than {self._limits.head_fields} header fields")
        if self._field_bytes + len(self.url) > self._limits.head_bytes:
            self._too_much(431, f"the head of the request is larger than {self._limits.head_bytes} bytes")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_since = None
        self._without_content = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._without_content = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message, self._without_content = False, 0
        super().on_message_complete()
        if self._at_work():
            self._book.works(self, self._address)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and not self._at_work():
            self._last_activity = self._clock.monotonic()
            self._book.waits(self, self._address)

    # --- limits ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """End what has kept us waiting for too long."""
        now = self._clock.monotonic()
        unread = self.transport.get_write_buffer_size()
        if unread != self._unread:
            self._unread, self._last_activity = unread, now
        silent, limits = now - self._last_activity, self._limits
        if unread or self.transport.is_closing():
            if silent > (_LINGER_S if self.transport.is_closing() else limits.body_idle_s):
                self.transport.abort()
        elif self._at_work():
            return
        elif self._head_since is not None:
            if now - self._head_since > limits.head_s:
                self._refuse(408, TimeoutExceeded(f"the request did not come within {limits.head_s:g} s"))
        elif self._in_message and silent > limits.body_idle_s:
            self._refuse(408, TimeoutExceeded(f"the body did not go on for {limits.body_idle_s:g} s"))

    def give_way(self) -> None:
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What the parser could not read, or what we told it to read no further."""
        status, error = self._refusal or (400, ValidationError("this is not a request in HTTP"))
        self._refuse(status, error)

    def _at_work(self) -> bool:
        """Whether the next step is ours: a request is whole, or we take no more of it for now, and somebody reads."""
        cycle = self.cycle
        if cycle is None or self.flow.write_paused:
            return False
        unfinished = not cycle.response_complete and (not cycle.more_body or self.flow.read_paused)
        return unfinished or bool(self.pipeline)

    def _too_much(self, status: int, words: str) -> None:
        self._refusal = (status, ValidationError(words))
        raise _TooMuch(words)

    def _refuse(self, status: int, error: ClassifiedError) -> None:
        """Say why, unless an answer is under way already, and close."""
        if self.transport.is_closing():
            return
        answered = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answered:
            body = json.dumps({"error": error.describe()}).encode()
            self.transport.write(_head(status, len(body)) + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._unset_keepalive_if_required()
        self._book.leave(self, self._address)
        self._last_activity = self._clock.monotonic()
        self.transport.close()


def _head(status: int, length: int) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {length}",
        "connection: close",
        *(["retry-after: 1"] if status == 503 else []),
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
