"""uvicorn's HTTP protocol with limits (`limits`). A refusal is an answer with a class; then the connection ends."""

from __future__ import annotations

import asyncio
import http
import json
import resource
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from butlers.clock import Clock, SystemClock
from butlers.errors import ClassifiedError, OverloadRejected, TimeoutExceeded, ValidationError
from butlers.serving.peer_account import with_account

KEPT_BACK = 512  # file descriptors for the database, files, pipes, and calls of our own
FEWEST = 64  # connections, on a machine that gives hardly any descriptors
WANTED_FILES = 16_384
_LINGER_S: Final = 2.0  # how long a closed connection may take to let go of its last bytes
_DRAINED: Final = 64 * 2**20  # bytes of a body that nobody wants any more: the client is to see its answer first


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    head_bytes: int = 32_768  # request line and header fields together
    head_fields: int = 100
    target_bytes: int = 8_192  # path and query
    head_s: float = 10.0  # from the first byte, or the connection, to the end of the head
    body_idle_s: float = 30.0  # silence within a body, or while an answer is not read
    keep_alive_s: float = 5.0  # silence between two requests
    connections: int = 1_000  # of all doors of the process
    per_address: int = 500

    def within(self, files: int) -> DoorLimits:
        """The same, with no more connections than there are file descriptors."""
        most = max(FEWEST, files - KEPT_BACK)
        return replace(self, connections=min(self.connections, most), per_address=min(self.per_address, most))


def raise_file_limit(wanted: int = WANTED_FILES) -> int:
    """Allow this process more open files, as far as the machine lets us; returns how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= goal:
        return goal if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    except (OSError, ValueError):  # a sandbox may forbid even what the limits allow
        return soft
    return goal


class Guest(Protocol):
    """A connection, as far as it is counted."""

    def give_way(self) -> None:
        """Close at once: somebody else needs the place."""


@dataclass(slots=True)
class _Address:
    present: set[Guest] = field(default_factory=set)
    waiting: OrderedDict[Guest, None] = field(default_factory=OrderedDict)  # for their clients; silent longest first


class Connections:
    """The open connections of one process, by address."""

    def __init__(self, limits: DoorLimits, clock: Clock | None = None) -> None:
        self.limits = limits
        self.clock: Clock = clock or SystemClock()  # sockets live in real time, whatever clock the system runs on
        self.turned_away = 0  # told 503
        self.gave_way = 0  # closed for somebody else
        self._addresses: dict[str, _Address] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, guest: Guest, address: str) -> bool:
        """Whether there is a place; a silent connection may lose its own for it."""
        if len(self._of(address).present) >= self.limits.per_address and not self._free_one_of([address]):
            self.turned_away += 1
            return False
        if self._count >= self.limits.connections and not self._free_one_of(self._largest_first()):
            self.turned_away += 1
            return False
        mine = self._addresses.setdefault(address, _Address())
        mine.present.add(guest)
        mine.waiting[guest] = None
        self._count += 1
        return True

    def leave(self, guest: Guest, address: str) -> None:
        mine = self._of(address)
        if guest not in mine.present:
            return
        mine.present.discard(guest)
        mine.waiting.pop(guest, None)
        self._count -= 1
        if not mine.present:
            self._addresses.pop(address, None)

    def waits(self, guest: Guest, address: str) -> None:
        """The client is to do the next step, and has just been heard of."""
        mine = self._of(address)
        if guest in mine.present:
            mine.waiting[guest] = None
            mine.waiting.move_to_end(guest)

    def works(self, guest: Guest, address: str) -> None:
        """The next step is ours."""
        self._of(address).waiting.pop(guest, None)

    def _of(self, address: str) -> _Address:
        return self._addresses.get(address) or _Address()

    def _largest_first(self) -> Iterator[str]:
        yield from sorted(self._addresses, key=lambda name: len(self._addresses[name].present), reverse=True)

    def _free_one_of(self, addresses: Iterator[str] | list[str]) -> bool:
        for address in addresses:
            if waiting := self._of(address).waiting:
                guest = next(iter(waiting))
                self.leave(guest, address)
                self.gave_way += 1
                guest.give_way()
                return True
        return False


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
        self._heard_at = self._clock.monotonic()
        self._unread = 0  # bytes of an answer that the client has not taken

    # --- what the loop tells -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = with_account(self.app_state, transport)
        self._heard_at = self._head_since = self._clock.monotonic()
        self._address = self.client[0] if self.client else ""
        if not self._book.enter(self, self._address):
            self._refuse(503, OverloadRejected("too many connections are open", retry_after=1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        self._book.leave(self, self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._heard_at = self._clock.monotonic()
        if not self._in_message and self._head_since is None:
            self._head_since, self._head_bytes = self._heard_at, 0
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
        self._heard_at = self._clock.monotonic()
        self._book.waits(self, self._address)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._at_work():
            self._book.works(self, self._address)

    # --- what the parser tells ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_message, self._head_since = True, self._heard_at
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
            self._heard_at = self._clock.monotonic()
            self._book.waits(self, self._address)

    # --- limits ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """End what has kept us waiting for too long."""
        now = self._clock.monotonic()
        unread = self.transport.get_write_buffer_size()
        if unread != self._unread:
            self._unread, self._heard_at = unread, now
        silent, limits = now - self._heard_at, self._limits
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
        self._heard_at = self._clock.monotonic()
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
