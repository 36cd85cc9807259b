"""UUIDv7 identifiers (RFC 9562): sortable by the millisecond they were made in.

The 12 bits after the time count within one millisecond, so ids from one factory are strictly increasing even when
the clock stands still or steps back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from butlers.clock import Clock

_COUNTER_BITS = 12
_COUNTER_MAX = (1 << _COUNTER_BITS) - 1
_WORD = 8  # bytes that one request for random bits uses up


class Uuid7Factory:
    """Makes UUIDv7 values from a clock and a source of random bits."""

    def __init__(self, clock: Clock, random_bits: Callable[[int], int] | None = None) -> None:
        self._clock = clock
        self._random_bits = random_bits or _RandomBits()
        self._lock = threading.Lock()
        self._last_ms = -1
        self._counter = 0

    def __call__(self) -> UUID:
        with self._lock:
            milliseconds, counter = self._tick()
            tail = self._random_bits(62)
        return _assemble(milliseconds, counter, tail)

    def _tick(self) -> tuple[int, int]:
        now_ms = int(self._clock.now().timestamp() * 1000)
        if now_ms > self._last_ms:
            # Start low, so that a burst within one millisecond has room to count up.
            self._last_ms, self._counter = now_ms, self._random_bits(_COUNTER_BITS - 1)
        elif self._counter < _COUNTER_MAX:
            self._counter += 1
        else:
            self._last_ms, self._counter = self._last_ms + 1, 0
        return self._last_ms, self._counter


class _RandomBits:
    """The kernel's random bits, a page at a time: a call for eight bytes costs as much as one for thousands, and every
    delivery needs several. For one thread at a time.
    """

    def __init__(self) -> None:
        self._page = memoryview(b"")
        self._process = os.getpid()

    def __call__(self, bits: int) -> int:
        if len(self._page) < _WORD or self._process != os.getpid():  # a fork must not draw what its parent draws
            self._page, self._process = memoryview(os.urandom(512 * _WORD)), os.getpid()
        word, self._page = self._page[:_WORD], self._page[_WORD:]
        return int.from_bytes(word, "big") >> (8 * _WORD - bits)


def _assemble(milliseconds: int, counter: int, tail: int) -> UUID:
    return UUID(int=(milliseconds << 80) | (7 << 76) | (counter << 64) | (0b10 << 62) | tail)


def made_at(identifier: UUID) -> datetime:
    """The moment a UUIDv7 was made, to the millisecond."""
    return datetime.fromtimestamp((identifier.int >> 80) / 1000, tz=UTC)
