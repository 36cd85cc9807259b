"""Processes that keep running: the system (`up`, `run`) and the simulators (`simulate`)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TextIO

import uvloop

from butlers.clock import SystemClock
from butlers.contracts.envelope import invalid
from butlers.daemon.machine_checks import Status
from butlers.daemon.places import Places, check_role, found_ports, simulators_beside
from butlers.daemon.settings import Settings, check_port_names
from butlers.daemon.simulation import (
    LAST_WORDS_S,
    Simulated,
    SimulatorProcess,
    addresses,
    simulated_environment,
    simulated_settings,
    what_to_simulate,
)
from butlers.daemon.system import System
from butlers.ids import Uuid7Factory
from butlers.roster import ButlerConfig, load_roster
from butlers.simulators import simulators
from butlers.telemetry import configure_logging
from butlers.telemetry.redaction import secrets_in


def serve_all(settings: Settings) -> int:
    """Everything, with simulators for the providers whose credentials are not set."""
    roster = _roster(settings)
    simulated = what_to_simulate(settings, roster, os.environ)
    places = _prepare(settings)
    with places.owned():
        process = SimulatorProcess(settings, simulated, log=places.simulator_errors)
        return uvloop.run(_run(settings, roster, list(roster), simulated, places, process=process))


def serve_role(settings: Settings, role: str) -> int:
    """One butler. A lone role never starts simulators, but uses those of a running `butlers up`, and when told to those
    of `butlers simulate`.
    """
    roster = _roster(settings)
    if role not in roster:
        raise invalid("role", f"no butler is called {role!r}; there are {', '.join(sorted(roster))}")
    names, running = [role], Places(settings.data_dir).running()
    simulated = simulators_beside(settings, roster, os.environ, running)
    check_role(settings, roster, names, simulated, os.environ)
    settings = found_ports(settings, running, names)
    return uvloop.run(_run(settings, roster, names, simulated, _prepare(settings), role=role))


def serve_simulators(settings: Settings, names: list[str], *, with_parent: bool) -> int:
    known = simulators()
    chosen = Simulated(names or known)
    if unknown := chosen - {*known}:
        raise invalid(min(unknown), f"no such simulator; there are {', '.join(known)}")
    _roster(settings)
    return uvloop.run(_simulate(settings, chosen, with_parent=with_parent))


def _roster(settings: Settings) -> dict[str, ButlerConfig]:
    roster = load_roster(settings.roster_dir)
    check_port_names(settings, roster)
    return roster


async def _simulate(settings: Settings, simulated: Simulated, *, with_parent: bool) -> int:
    stop = _stop_event()
    if with_parent:
        _stop_with_parent(stop)
        places = Places(settings.data_dir)
        places.create()
        _log_to(places.simulator_log, settings)
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
    _log_to(places.log, settings, secrets_in(os.environ))
    return places


def _log_to(path: Path, settings: Settings, secrets: Sequence[str] = ()) -> None:
    configure_logging(
        path, settings.log_level, secrets=secrets, max_bytes=settings.log_max_bytes, keep=settings.log_keep
    )


async def _run(
    settings: Settings,
    roster: Mapping[str, ButlerConfig],
    names: list[str],
    simulated: Simulated,
    places: Places,
    *,
    role: str | None = None,  # None: the whole system
    process: SimulatorProcess | None = None,  # of the simulators
) -> int:
    clock = SystemClock()
    stop = _stop_event()
    given, settings = settings, simulated_settings(settings, simulated)
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
        if process is not None and simulated:
            _progress("starting the simulators")
            stack.push_async_callback(process.stop)
            await process.start()
        await system.start()
        stack.push_async_callback(system.stop)
        description = _description(settings, system, simulated)
        stack.callback(places.withdraw, role)
        places.announce(description, role)
        _welcome(description, role)
        for notice in await system.notices():
            _say(notice, to=sys.stdout)
        if role is None:
            threading.Thread(target=_warn, args=(given,), name="warnings", daemon=True).start()
        await stop.wait()
        _progress("stopping (ctrl-C again to stop at once)")
    _say("butlers: stopped")
    return 0


def _warn(settings: Settings) -> None:
    """Say what `butlers doctor` would warn of, in a thread of its own: neither start nor stop waits for a provider."""
    from butlers.daemon.checks import RUNNING, examine  # noqa: PLC0415 - heavy, and needed only here
    from butlers.daemon.delivery_checks import probe  # noqa: PLC0415

    for check in (*examine(settings, os.environ), *probe(settings, os.environ)):
        if check.status is not Status.OK and check.name != RUNNING:
            _say(f"butlers: warning: {check.name}: {check.detail} ({check.remedy})")


def _progress(step: str) -> None:
    _say(f"butlers: {step} ...")


def _say(*lines: str, to: TextIO | None = None) -> None:
    """Print, unless nobody can read it any more: a terminal that is gone must not keep us from serving or draining."""
    stream = to or sys.stderr
    try:
        print(*lines, sep="\n", file=stream, flush=True)
    except OSError:
        with Path(os.devnull).open("w") as nowhere:  # what the stream still holds is written at the end
            os.dup2(nowhere.fileno(), stream.fileno())


def _description(settings: Settings, system: System, simulated: Simulated) -> dict[str, Any]:
    doors = {butler.name: f"http://{settings.host}:{butler.port}" for butler in system.butlers} | system.other_doors
    return {"doors": doors, "simulators": addresses(settings, simulated), "data_dir": str(settings.data_dir)}


def _welcome(description: dict[str, Any], role: str | None) -> None:
    places = description["doors"] | description["simulators"] | {"data": description["data_dir"]}
    _say(
        "butlers is up" if role is None else f"{role} is up, in a process of its own",
        *(f"  {name:<14} {address}" for name, address in places.items()),
        f'try: butlers ingest --data-dir {description["data_dir"]} "I paid the electricity bill"'
        if role is None
        else "it shares this directory's database with the other processes and calls them over MCP; ctrl-C stops it",
        to=sys.stdout,
    )


def _stop_event() -> asyncio.Event:
    """Set by the first ctrl-C, TERM or HUP; a second ctrl-C or TERM ends the process at once.

    A terminal that closes sends HUP, often twice (the shell does, and so does the kernel): it only ever drains. A
    process that was started with `nohup` ignores HUP and goes on doing so.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    return stop
