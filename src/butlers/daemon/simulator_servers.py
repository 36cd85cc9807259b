"""The simulators' side of their process: served until told to stop. Loaded only there, for their weight."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from starlette.routing import BaseRoute

from butlers.channels.channel import load
from butlers.clock import Clock
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, port_remedy
from butlers.daemon.simulation import Simulated, addresses
from butlers.errors import ConfigurationError
from butlers.simulators import simulators

_PORT_PATIENCE_S = 5.0  # a predecessor may still be closing its connections


async def run_simulators(settings: Settings, simulated: Simulated, clock: Clock, stop: asyncio.Event) -> None:
    """Serve until told to stop; announces itself with one JSON line."""
    places = Places(settings.data_dir)
    places.create()
    chosen = [simulator for name, simulator in simulators().items() if name in simulated]
    control_routes: list[BaseRoute] = []
    async with AsyncExitStack() as stack:
        for simulator in sorted(chosen, key=lambda one: one.shows_others):
            options = {"clock": clock, **simulator.options}
            if simulator.remembers:
                options["journal_path"] = places.simulators / f"{simulator.name}.jsonl"
            if simulator.shows_others:
                options["extra_routes"] = control_routes
            ports = [settings.simulator_port(door.port) for door in simulator.doors]
            server = partial(load(simulator.serve), settings.simulator_host, *ports, **options)
            running = await _patiently(clock, stack, server)
            control_routes += getattr(running, "control_routes", list)()
        print(json.dumps({"ready": True} | addresses(settings, simulated)), flush=True)  # noqa: T201 - it is awaited
        await stop.wait()


async def _patiently(
    clock: Clock, stack: AsyncExitStack, server: Callable[[], AbstractAsyncContextManager[Any]]
) -> Any:
    deadline = clock.monotonic() + _PORT_PATIENCE_S
    while True:
        try:
            return await stack.enter_async_context(server())
        except ConfigurationError as error:
            if not _is_taken(error):
                raise
            if clock.monotonic() > deadline:
                raise _as_we_say(error) from None
        except OSError:
            if clock.monotonic() > deadline:
                raise
        await clock.sleep(0.1)


def _is_taken(error: ConfigurationError) -> bool:
    """Somebody else has the port: the only trouble that may pass by itself."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


def _as_we_say(error: ConfigurationError) -> ConfigurationError:
    """A simulator does not know the options of this command line."""
    return ConfigurationError(error.problem, source=error.source, key=error.key, remedy=port_remedy())
