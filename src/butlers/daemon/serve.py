"""Processes that keep running: the system (`up`, `run`) and the simulators (`simulate`)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from butlers.butler.config import ButlerConfig, load_roster
from butlers.clock import SystemClock
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings
from butlers.daemon.simulation import (
    LAST_WORDS_S,
    Simulated,
    SimulatorProcess,
    addresses,
    simulated_environment,
    simulated_settings,
    what_to_simulate,
)
from butlers.daemon.system import System, select
from butlers.errors import ConfigurationError
from butlers.ids import Uuid7Factory
from butlers.telemetry import configure_logging

SECRETS = ("TOKEN", "PASSWORD", "SECRET", "KEY")


def serve_all(settings: Settings) -> int:
    """Everything, with simulators for the providers whose credentials are not set."""
    roster = load_roster(settings.roster_dir)
    simulated = what_to_simulate(settings, roster, os.environ)
    places = _prepare(settings)
    with places.owned():
        simulators = SimulatorProcess(settings, simulated, log=places.simulator_log)
        return _loop(_run(settings, roster, list(roster), simulated, places, simulators=simulators))


def serve_role(settings: Settings, role: str) -> int:
    """One butler. A lone role never starts simulators, but uses those of `butlers simulate` when told to."""
    roster = load_roster(settings.roster_dir)
    on = settings.simulators == "on"
    names, simulated = select(roster, role), Simulated(telegram=on, mail=on, calendar=on)
    return _loop(_run(settings, roster, names, simulated, _prepare(settings), role=role))


def serve_simulators(settings: Settings, names: list[str], *, with_parent: bool) -> int:
    known = ("telegram", "mail", "calendar", "webhook")
    chosen = set(names or known)
    if unknown := chosen - {*known}:
        raise ConfigurationError(
            "no such simulator", source="command line", key=min(unknown), remedy=f"choose among {', '.join(known)}"
        )
    simulated = Simulated(**{name: name in chosen for name in known})
    return _loop(_simulate(settings, simulated, with_parent=with_parent))


async def _simulate(settings: Settings, simulated: Simulated, *, with_parent: bool) -> int:
    stop = _stop_event()
    if with_parent:
        _stop_with_parent(stop)
    from butlers.daemon.simulator_servers import run_simulators  # noqa: PLC0415 - heavy, and needed nowhere else

    await run_simulators(settings, simulated, SystemClock(), stop)
    return 0


def _stop_with_parent(stop: asyncio.Event) -> None:
    """Stop soon after standard input ends. A thread waits for it: any kind of file can be read that way."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        loop.call_soon_threadsafe(loop.call_later, LAST_WORDS_S, stop.set)

    threading.Thread(target=wait, daemon=True).start()


def _prepare(settings: Settings) -> Places:
    places = Places(settings.data_dir)
    places.create()
    secrets = [value for key, value in os.environ.items() if any(word in key for word in SECRETS) and len(value) > 7]
    configure_logging(places.log, settings.log_level, secrets=secrets)
    return places


async def _run(
    settings: Settings,
    roster: Mapping[str, ButlerConfig],
    names: list[str],
    simulated: Simulated,
    places: Places,
    *,
    role: str | None = None,  # None: the whole system
    simulators: SimulatorProcess | None = None,
) -> int:
    clock = SystemClock()
    stop = _stop_event()
    settings = simulated_settings(settings, simulated)
    system = System(
        settings=settings,
        roster=roster,
        names=names,
        environment=simulated_environment(simulated, roster, os.environ),
        clock=clock,
        new_id=Uuid7Factory(clock),
        progress=_progress,
    )
    async with AsyncExitStack() as stack:
        if simulators is not None and simulated.any:
            _progress("starting the simulators")
            stack.push_async_callback(simulators.stop)
            await simulators.start()
        await system.start()
        stack.push_async_callback(system.stop)
        description = _description(settings, system, simulated)
        stack.callback(places.withdraw, role)
        places.announce(description, role)
        _welcome(description)
        await stop.wait()
        _progress("stopping (ctrl-C again to stop at once)")
    print("butlers: stopped", file=sys.stderr, flush=True)
    return 0


def _progress(step: str) -> None:
    print(f"butlers: {step} ...", file=sys.stderr, flush=True)


def _description(settings: Settings, system: System, simulated: Simulated) -> dict[str, Any]:
    doors = {butler.name: f"http://{settings.host}:{butler.port}" for butler in system.butlers}
    simulators = addresses(settings, simulated)
    return {"doors": doors, "simulators": simulators, "data_dir": str(settings.data_dir)}


def _welcome(description: dict[str, Any]) -> None:
    print("butlers is up")
    for name, address in (description["doors"] | description["simulators"]).items():
        print(f"  {name:<14} {address}")
    print(f"  {'data':<14} {description['data_dir']}")
    print('try: butlers ingest "I paid the electricity bill"', flush=True)


def _stop_event() -> asyncio.Event:
    """Set by the first ctrl-C or TERM; the second one ends the process at once."""
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    return stop


def _loop(main: Coroutine[Any, Any, int]) -> int:
    return uvloop.run(main)
