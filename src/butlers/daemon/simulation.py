"""The simulators as a process of their own, as the real providers are: they outlive a crash of the system for as long
as it takes to answer what was under way, and then end by themselves.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from butlers.butler.modules import CalendarBotScope
from butlers.daemon.settings import EVERY_SIMULATOR, Settings
from butlers.errors import ConfigurationError
from butlers.roster import ButlerConfig
from butlers.simulators.credentials import (
    CALENDAR_CLIENT_ID,
    CALENDAR_CLIENT_SECRET,
    CALENDAR_REFRESH_TOKEN,
    TELEGRAM_TOKEN,
)

ADDRESS = "butler@butlers.example"
PASSWORD = "simulated"  # noqa: S105 - opens nothing but a simulator
OWNER_CHAT = "1000"
OWNER_ADDRESS = "owner@butlers.example"
START_TIMEOUT_S = 15.0
LAST_WORDS_S = 1.0  # requests that a dead system had already sent are still answered and remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Which providers are simulated."""

    telegram: bool
    mail: bool
    calendar: bool = False
    webhook: bool = False  # only when asked for: which channel it is a gateway for is the roster's business

    @property
    def any(self) -> bool:
        return self.telegram or self.mail or self.calendar or self.webhook


def what_to_simulate(
    settings: Settings, roster: Mapping[str, ButlerConfig], environment: Mapping[str, str]
) -> Simulated:
    """A provider is simulated when none of its variables is set; half-set credentials are a mistake, not a wish."""
    if settings.simulators == "off":
        return Simulated(telegram=False, mail=False)
    if settings.simulators == "on":
        return Simulated(telegram=True, mail=True, calendar=True)
    telegram = not _any_set(roster, environment, ".telegram.")
    mail = not _any_set(roster, environment, ".email.")
    calendar = not any(environment.get(name) for scope in _calendars(roster) for name in scope.variables())
    # Nobody must have a calendar: one made up beside real messages would take real appointments.
    return Simulated(telegram=telegram, mail=mail, calendar=calendar and telegram and mail)


def simulated_environment(
    simulated: Simulated, roster: Mapping[str, ButlerConfig], environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment with the simulators' credentials in the variables that the roster names."""
    completed = dict(environment)
    for key, variable in _variables(roster):
        if ".user." in key:  # the owner's own accounts: nobody makes up a credential for them
            continue
        if ".telegram." in key and simulated.telegram:
            completed[variable] = TELEGRAM_TOKEN
        elif ".email." in key and simulated.mail:
            completed[variable] = PASSWORD if key.endswith("password_env") else ADDRESS
    for scope in _calendars(roster) if simulated.calendar else ():
        completed |= zip(
            scope.variables(), (CALENDAR_CLIENT_ID, CALENDAR_CLIENT_SECRET, CALENDAR_REFRESH_TOKEN), strict=True
        )
    return completed


def simulated_settings(settings: Settings, simulated: Simulated) -> Settings:
    """The settings with the simulators' addresses and an owner who can be reached there.

    Everybody may write in as long as nobody real does: beside a real channel, a simulated one has the same rules.
    """
    changes: dict[str, object] = {}
    alone = simulated.telegram and simulated.mail
    if simulated.telegram:
        port = settings.simulator_port("telegram_simulator")
        changes["telegram_api_url"] = f"http://{settings.simulator_host}:{port}"
        changes["owner_telegram"] = settings.owner_telegram or OWNER_CHAT
        changes["who_may_write_telegram"] = settings.who_may_write_telegram or ("open" if alone else None)
    if simulated.mail:
        changes |= {"smtp_host": settings.simulator_host, "smtp_port": settings.simulator_port("smtp_simulator")}
        changes |= {"imap_host": settings.simulator_host, "imap_port": settings.simulator_port("imap_simulator")}
        changes |= {"smtp_tls": "none", "imap_tls": "none", "mail_login": None, "smtp_login": None}
        changes["owner_email"] = settings.owner_email or OWNER_ADDRESS
        changes["who_may_write_email"] = settings.who_may_write_email or ("open" if alone else None)
        changes["mail_authentication"] = settings.mail_authentication or ("off" if alone else None)
    if alone:
        changes["provider_probe_s"] = 0.0  # nobody real is there to be asked
    if simulated.calendar:
        origin = f"http://{settings.simulator_host}:{settings.simulator_port('calendar_simulator')}"
        changes |= {"calendar_api_url": f"{origin}/calendar/v3", "calendar_token_url": f"{origin}/token"}
    return settings.model_copy(update=changes)


def addresses(settings: Settings, simulated: Simulated) -> dict[str, str]:
    """Where the simulators are."""

    def at(name: str) -> str:
        return f"{settings.simulator_host}:{settings.simulator_port(name)}"

    found: dict[str, str] = {}
    if simulated.telegram:
        found["telegram"] = f"http://{at('telegram_simulator')}"
    if simulated.mail:
        found["mail_control"] = f"http://{at('mail_control')}"
        found |= {"smtp": at("smtp_simulator"), "imap": at("imap_simulator")}
    if simulated.calendar:
        found["calendar"] = f"http://{at('calendar_simulator')}"
    if simulated.webhook:
        found["webhook"] = f"http://{at('webhook_simulator')}"
    return found


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
        if "ready" not in (said := _document(line)):
            raise await self._failure(said.get("error", {}))

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
        names = [name for name, on in asdict(self._simulated).items() if on]
        command = [sys.executable, "-m", "butlers.daemon.cli", "simulate", *names, "--with-parent", "--json"]
        command += ["--data-dir", str(settings.data_dir), "--port-offset", str(settings.port_offset)]
        for name in ("host", "log_level", "log_max_bytes", "log_keep"):
            command += ["--set", f"{name}={getattr(settings, name)}"]
        if settings.roster is not None:  # whose names may stand among the ports of the environment or the settings file
            command += ["--set", f"roster={settings.roster}"]
        for name in EVERY_SIMULATOR.keys() & settings.ports.keys():
            command += ["--port", f"{name}={settings.ports[name]}"]
        return command


def _document(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _any_set(roster: Mapping[str, ButlerConfig], environment: Mapping[str, str], part: str) -> bool:
    return any(environment.get(variable) for key, variable in _variables(roster) if part in key)


def _variables(roster: Mapping[str, ButlerConfig]) -> list[tuple[str, str]]:
    return [pair for config in roster.values() for pair in config.modules.required_variables()]


def _calendars(roster: Mapping[str, ButlerConfig]) -> list[CalendarBotScope]:
    return [module.bot for config in roster.values() if (module := config.modules.calendar) is not None]
