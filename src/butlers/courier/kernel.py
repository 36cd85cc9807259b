"""A Stream Kernel in this process: services register with a pipe, and pipes are connected, split and merged.

    kernel.register("courier", Capabilities(type="transform", accepts=("envelope",), produces=("view",)), pipe)
    kernel.connect("source", "courier")

A pipe has two ends and a bounded buffer each way: `write` waits while the other side does not read, so that whoever
produces is held back by whoever consumes, across every connection. `Hostess` knows who is alive, `Router` who is where;
both are told the time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from butlers.errors import Conflict, NotFound, ValidationError

HEARTBEAT_S, UNAVAILABLE_AFTER_S = 5.0, 20.0
ANNOUNCE_S, ANNOUNCED_FOR_S = 10.0, 30.0
CAPACITY = 64  # frames on their way

Frame = Mapping[str, Any]


class PipeClosed(Exception):
    """The other end is gone; nothing more is read or written."""


class PipeEnd:
    """One end of a pipe: what is written here is read at the other end."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._inbox: deque[Frame] = deque()
        self._changed = asyncio.Condition()
        self._closed = False
        self._peer: PipeEnd = self

    async def write(self, frame: Frame) -> None:
        """Waits until the other end has room. Raises `PipeClosed`."""
        peer = self._peer
        async with peer._changed:
            await peer._changed.wait_for(lambda: len(peer._inbox) < peer._capacity or peer._closed)
            if peer._closed or self._closed:
                raise PipeClosed
            peer._inbox.append(frame)
            peer._changed.notify_all()

    async def read(self) -> Frame:
        """The next frame. Raises `PipeClosed` when there is none and none will come."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._inbox or self._closed)
            if not self._inbox:
                raise PipeClosed
            frame = self._inbox.popleft()
            self._changed.notify_all()
            return frame

    async def __aiter__(self) -> AsyncIterator[Frame]:
        while True:
            try:
                yield await self.read()
            except PipeClosed:
                return

    async def close(self) -> None:
        for end in (self, self._peer):
            async with end._changed:
                end._closed = True
                end._changed.notify_all()


def make_pipe(capacity: int = CAPACITY) -> tuple[PipeEnd, PipeEnd]:
    one, other = PipeEnd(capacity), PipeEnd(capacity)
    one._peer, other._peer = other, one
    return one, other


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    type: Literal["source", "transform", "sink"]
    accepts: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    name: str
    capabilities: Capabilities
    pipe: PipeEnd  # the kernel's end


class StreamKernel:
    def __init__(self) -> None:
        self._services: dict[str, Registered] = {}
        self._pumps: set[asyncio.Task[None]] = set()

    def register(self, name: str, capabilities: Capabilities, pipe: PipeEnd) -> None:
        """`pipe` is the end that the kernel has; the service reads and writes the other one."""
        if name in self._services:
            raise Conflict.of("name", f"{name} is registered already")
        self._services[name] = Registered(name, capabilities, pipe)

    def lookup(self, name: str | None = None, *, accepts: str | None = None, produces: str | None = None) -> list[str]:
        """The services that fit everything that is asked for."""
        return [
            service.name
            for service in self._services.values()
            if name in (None, service.name)
            and (accepts is None or accepts in service.capabilities.accepts)
            and (produces is None or produces in service.capabilities.produces)
        ]

    def pipe_of(self, name: str) -> PipeEnd:
        if (service := self._services.get(name)) is None:
            raise NotFound.of("name", f"no service is registered as {name!r}")
        return service.pipe

    def capabilities_of(self, name: str) -> Capabilities:
        if (service := self._services.get(name)) is None:
            raise NotFound.of("name", f"no service is registered as {name!r}")
        return service.capabilities

    def connect(self, source: str, target: str) -> None:
        """What the source produces, the target gets."""
        self.split(source, [target])

    def split(self, source: str, targets: Sequence[str]) -> None:
        """Every target gets every frame; the slowest one sets the pace."""
        origin, ends = self.pipe_of(source), [self.pipe_of(target) for target in targets]
        produced = set(self._services[source].capabilities.produces)
        for target in targets:
            if not produced.intersection(self._services[target].capabilities.accepts):
                raise ValidationError.of("target", f"{target} accepts nothing that {source} produces")
        self._start(_copy(origin, ends))

    def merge(self, sources: Sequence[str], target: str) -> None:
        """The target gets what any of the sources produces, each in its own order."""
        for source in sources:
            self.connect(source, target)

    async def close(self) -> None:
        for service in self._services.values():
            await service.pipe.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def _start(self, pump: Any) -> None:
        task = asyncio.create_task(pump, name="kernel connection")
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)


async def _copy(origin: PipeEnd, ends: Iterable[PipeEnd]) -> None:
    open_ends = list(ends)
    async for frame in origin:
        for end in list(open_ends):
            try:
                await end.write(frame)
            except PipeClosed:
                open_ends.remove(end)
        if not open_ends:
            return


@dataclass(slots=True)
class Hostess:
    """Who is alive: a service that was not heard of for 20 s is unavailable."""

    _seen: dict[str, float] = field(default_factory=dict)
    _details: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def heartbeat(self, name: str, now: float, **details: Any) -> None:
        self._seen[name], self._details[name] = now, details

    def available(self, now: float) -> dict[str, Mapping[str, Any]]:
        return {name: self._details[name] for name, at in self._seen.items() if now - at < UNAVAILABLE_AFTER_S}


@dataclass(slots=True)
class Router:
    """Who is where: an announcement holds for 30 s, and is repeated every 10."""

    _places: dict[str, tuple[str, float]] = field(default_factory=dict)

    def announce(self, name: str, url: str, now: float) -> None:
        self._places[name] = (url, now + ANNOUNCED_FOR_S)

    def locate(self, name: str, now: float) -> str | None:
        url, until = self._places.get(name, ("", 0.0))
        return url if now < until else None
