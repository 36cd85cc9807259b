"""The connections of a process: how many there may be, and what each may take."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from butlers.clock import Clock, SystemClock

RESERVED_FILES = 512  # file descriptors for the database, files, pipes, and calls of our own
FEWEST = 64  # connections, on a machine that gives hardly any descriptors
TARGET_FILES = 16_384


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
        most = max(FEWEST, files - RESERVED_FILES)
        return replace(self, connections=min(self.connections, most), per_address=min(self.per_address, most))


def raise_file_limit(target: int = TARGET_FILES) -> int:
    """Allow this process more open files, as far as the machine lets us; returns how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = target if hard == resource.RLIM_INFINITY else min(target, hard)
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
