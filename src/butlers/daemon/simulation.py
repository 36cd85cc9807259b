"""The simulators as a process of their own, as the real providers are: they outlive a crash of the system for as long
as it takes to answer what was under way, and then end by themselves.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from butlers.butler.modules import CalendarBotScope
from butlers.channels.channel import Simulator
from butlers.channels.registry import channel_of
from butlers.daemon.settings import Settings
from butlers.errors import ConfigurationError
from butlers.roster import ButlerConfig
from butlers.simulators import CALENDAR, simulator_ports, simulators

START_TIMEOUT_S = 15.0
LAST_WORDS_S = 1.0  # requests that a dead system had already sent are still answered and remembered

Simulated = frozenset[str]  # names of simulators


def what_to_simulate(
    settings: Settings, roster: Mapping[str, ButlerConfig], environment: Mapping[str, str]
) -> Simulated:
    """A provider is simulated when none of its variables is set; half-set credentials are a mistake, not a wish."""
    if settings.simulators == "off":
        return Simulated()
    usual = Simulated(name for name, simulator in simulators().items() if not simulator.on_request)
    if settings.simulators == "on":
        return usual
    given = (key for key, variable in _variables(roster) if environment.get(variable))
    real = {simulator.name for key in given if (simulator := _simulator_of(key)) is not None}
    simulated = usual - real
    calendar = any(environment.get(name) for scope in _calendars(roster) for name in scope.variables())
    # Nobody must have a calendar: one made up beside real messages would take real appointments.
    return simulated - {CALENDAR.name} if calendar or not is_alone(simulated) else simulated


def is_alone(simulated: Simulated) -> bool:
    """Whether no channel is real. Beside a real channel, a simulated one has the same rules."""
    of_channels = (one for one in simulators().values() if one is not CALENDAR and not one.on_request)
    return all(one.name in simulated for one in of_channels)


def simulated_environment(
    simulated: Simulated, roster: Mapping[str, ButlerConfig], environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment with the simulators' credentials in the variables that the roster names."""
    completed = dict(environment)
    for key, variable in _variables(roster):
        simulator, (scope, secret) = _simulator_of(key), key.split(".")[2:4]
        # Of the owner's own accounts nobody makes up a credential.
        if scope != "user" and simulator is not None and simulator.name in simulated:
            name = secret.removesuffix("_env")
            completed |= {variable: simulator.credentials[name]} if name in simulator.credentials else {}
    for calendar in _calendars(roster) if CALENDAR.name in simulated else ():
        completed |= zip(calendar.variables(), CALENDAR.credentials.values(), strict=True)
    return completed


def simulated_settings(settings: Settings, simulated: Simulated) -> Settings:
    """The settings with the simulators' addresses and an owner who can be reached there.

    Everybody may write in as long as nobody real does.
    """
    alone = is_alone(simulated)
    changes: dict[str, object] = {"provider_probe_s": 0.0} if alone else {}  # nobody real is there to be asked
    for simulator in _chosen(simulated):
        ports = {door.port: settings.simulator_port(door.port) for door in simulator.doors}
        changes |= simulator.settings(settings.simulator_host, ports)
        defaults = {**simulator.defaults, **(simulator.defaults_alone if alone else {})}
        changes |= {name: value for name, value in defaults.items() if not getattr(settings, name)}
    return settings.model_copy(update=changes)


def addresses(settings: Settings, simulated: Simulated) -> dict[str, str]:
    """Where the simulators are."""
    doors = [door for simulator in _chosen(simulated) for door in simulator.doors]
    return {door.name: door.at(settings.simulator_host, settings.simulator_port(door.port)) for door in doors}


def _chosen(simulated: Simulated) -> list[Simulator]:
    return [simulator for name, simulator in simulators().items() if name in simulated]


class SimulatorProcess:
    """The child process, from the parent's side."""

    def __init__(self, settings: Settings, simulated: Simulated, *, log: Path) -> None:
        self._settings = settings
        self._simulated = simulated
        self._log = log  # a file and not a pipe: nobody would read the pipe, and a full one stops the writer
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.PIPE,  # its end is our end
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # ctrl-C is for us; we stop the child in its turn
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await self._process.stdout.readline() if self._process.stdout else b""
        except TimeoutError:
            line = b""
        if "ready" not in (report := _document(line)):
            raise await self._failure(report.get("error", {}))

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _failure(self, error: Mapping[str, str]) -> ConfigurationError:
        """What the child reported, or its last lines, or that it reported nothing."""
        await self.stop()
        if "problem" in error:
            return ConfigurationError(
                error["problem"], source=error["source"], key=error["key"], remedy=error["remedy"]
            )
        lines = self._log.read_text(errors="replace").strip().splitlines()
        late = f"did not start within {START_TIMEOUT_S:g} s"
        problem = error.get("message") or (lines[-1].removeprefix("butlers: ") if lines else late)
        return ConfigurationError(problem, source="simulators", key="start", remedy=f"details in {self._log}")

    def _command(self) -> list[str]:
        settings = self._settings
        names = sorted(self._simulated)
        command = [sys.executable, "-m", "butlers.daemon.cli", "simulate", *names, "--with-parent", "--json"]
        command += ["--data-dir", str(settings.data_dir), "--port-offset", str(settings.port_offset)]
        for name in ("host", "log_level", "log_max_bytes", "log_keep"):
            command += ["--set", f"{name}={getattr(settings, name)}"]
        if settings.roster is not None:  # whose names may stand among the ports of the environment or the settings file
            command += ["--set", f"roster={settings.roster}"]
        for name in simulator_ports().keys() & settings.ports.keys():
            command += ["--port", f"{name}={settings.ports[name]}"]
        return command


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _simulator_of(key: str) -> Simulator | None:
    """Of the channel that a key such as `modules.telegram.bot.token_env` is about; only `simulate` runs the others."""
    simulator = channel_of(key.split(".")[1]).simulator
    return None if simulator is None or simulator.on_request else simulator


def _variables(roster: Mapping[str, ButlerConfig]) -> list[tuple[str, str]]:
    return [pair for config in roster.values() for pair in config.modules.required_variables()]


def _calendars(roster: Mapping[str, ButlerConfig]) -> list[CalendarBotScope]:
    return [module.bot for config in roster.values() if (module := config.modules.calendar) is not None]
