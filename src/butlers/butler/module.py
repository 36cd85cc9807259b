"""What a module is: a part a butler loads when its butler.toml has a table for it.

Modules start in the order of their dependencies and stop in reverse; a failed start stops what had started.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from butlers.channels.registry import outbound_names
from butlers.errors import ConfigurationError
from butlers.telemetry import get_logger

log = get_logger("butlers.modules")

# What a module needs to have running before it; calendars and memories stand alone.
REQUIRES: Mapping[str, tuple[str, ...]] = {
    "memory": (),
    "calendar": (),
    **dict.fromkeys(outbound_names(), ()),
    "approvals": outbound_names(),
}


async def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str
    start: Callable[[], Awaitable[None]] = _nothing
    stop: Callable[[], Awaitable[None]] = _nothing


def in_dependency_order(
    names: Iterable[str], requires: Mapping[str, tuple[str, ...]] = REQUIRES, *, source: str = "butler.toml"
) -> list[str]:
    """The names so that each stands after what it needs; needs that are not loaded do not count."""
    wanted = sorted(set(names))
    graph = {name: [need for need in requires.get(name, ()) if need in wanted] for name in wanted}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise ConfigurationError(
            f"modules need each other: {cycle}", source=source, key="modules", remedy="remove one of them"
        ) from error


class ModuleHost:
    """Starts and stops the modules of one butler."""

    def __init__(self, modules: Mapping[str, Module], *, source: str = "butler.toml") -> None:
        self._modules = modules
        self._order = in_dependency_order(modules, source=source)
        self._stack = AsyncExitStack()

    @property
    def names(self) -> list[str]:
        return list(self._order)

    async def start(self) -> None:
        async with AsyncExitStack() as starting:
            for name in self._order:
                await self._modules[name].start()
                starting.push_async_callback(self._modules[name].stop)
                log.debug("module started", module=name)
            self._stack = starting.pop_all()

    async def stop(self) -> None:
        await self._stack.aclose()
