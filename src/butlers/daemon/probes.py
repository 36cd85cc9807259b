"""Providers and programs asked whether they know us, for `butlers doctor` and at `butlers up`. Nothing is sent.

All are asked at once, each has a few seconds, and none keeps a system from starting: what they refuse is a warning.
What is simulated is not asked. No secret stands in an answer.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butlers.butler.runtimes import DIALECTS
from butlers.butler.runtimes.cli import SHARED_ENVIRONMENT
from butlers.butler.runtimes.dialects import Dialect
from butlers.channels.registry import channel_of
from butlers.clock import Clock, SystemClock
from butlers.daemon.compose.channels import bot_mailbox, build_channels
from butlers.daemon.machine_checks import Check, ok, warn
from butlers.daemon.settings import Settings
from butlers.daemon.simulation import Simulated, simulated_environment, simulated_settings, what_to_simulate
from butlers.errors import ClassifiedError, ConfigurationError
from butlers.messenger.channel_health import ask_all, probes_of
from butlers.roster import ButlerConfig, load_roster

PATIENCE_S = 5.0  # with a provider
PROGRAM_PATIENCE_S = 15.0  # with a program that says its version, on a busy machine
# Where each program keeps its login, below the home folder, unless a variable holds a key.
_LOGIN_FILES: Mapping[str, tuple[str, ...]] = {
    "codex": (".codex/auth.json",),
    "claude": (".claude/.credentials.json", ".claude.json"),
    "opencode": (".local/share/opencode/auth.json",),
}
_KEYS = ("_KEY", "_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accounts:
    settings: Settings
    environment: Mapping[str, str]
    clock: Clock


def probe(settings: Settings, environment: Mapping[str, str]) -> tuple[Check, ...]:
    """What the providers and programs that the roster names say to our credentials."""
    try:
        roster = load_roster(settings.roster_dir)
        simulated = what_to_simulate(settings, roster, environment)
        messenger = roster.get("messenger")
        accounts = _Accounts(
            settings=simulated_settings(settings, simulated),
            environment=simulated_environment(simulated, roster, environment),
            clock=SystemClock(),
        )
        asked = _apart(_providers(accounts, messenger, simulated)) if messenger is not None else []
    except (ConfigurationError, KeyError):  # other checks name what is missing or wrong
        return ()
    return (*asked, *_programs(settings, roster, environment))


def _apart(asking: Coroutine[Any, Any, list[Check]]) -> list[Check]:
    """In an event loop of a thread of its own: the caller may be inside one."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, asking).result()


async def _providers(accounts: _Accounts, config: ButlerConfig, simulated: Simulated) -> list[Check]:
    channels = build_channels(accounts, config)
    real = {name: channel for name, channel in channels.items() if not _is_simulated(name, simulated)}
    mailbox = bot_mailbox(accounts, config) if "mail" not in simulated else None
    mailboxes = {"email.bot": mailbox} if mailbox is not None else {}
    try:
        answers = await ask_all(probes_of(real, mailboxes, timeout_s=PATIENCE_S))
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))
    return [_answered(name, error) for name, error in answers.items()]


def _is_simulated(channel: str, simulated: Simulated) -> bool:
    simulator = channel_of(channel.partition(".")[0]).simulator
    return simulator is not None and simulator.name in simulated


def _answered(name: str, error: ClassifiedError | None) -> Check:
    if error is None:
        return ok(f"provider.{name}", "answers and knows us")
    return warn(f"provider.{name}", error.message, error.remedy or "see the provider's own pages")


def _programs(
    settings: Settings, roster: Mapping[str, ButlerConfig], environment: Mapping[str, str]
) -> Iterator[Check]:
    """Each program that an LLM needs runs, and has been signed in to. One that is not there is another check's word."""
    if settings.llm != "on":
        return
    wanted = {
        (kind, config.butler.runtime.command or DIALECTS[kind].executable)
        for config in roster.values()
        if (kind := config.butler.runtime.type) in DIALECTS
    }
    with ThreadPoolExecutor(max_workers=4) as pool:
        for checks in pool.map(lambda one: _program(DIALECTS[one[0]], one[1], environment), sorted(wanted)):
            yield from checks


def _program(dialect: Dialect, command: str, environment: Mapping[str, str]) -> list[Check]:
    name, passed_on = f"program.{dialect.name}", SHARED_ENVIRONMENT | dialect.environment
    own = {key: value for key, value in environment.items() if key in passed_on}
    try:
        done = subprocess.run(  # noqa: S603 - the program that butler.toml names
            [command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=own | dict(dialect.fixed_environment),
            timeout=PROGRAM_PATIENCE_S,
            check=False,
        )
    except FileNotFoundError:
        return []
    except OSError as error:
        return [warn(name, f"{command} cannot be run: {error.strerror}", dialect.install)]
    except subprocess.TimeoutExpired:
        return [warn(name, f"{command} did not say its version within {PROGRAM_PATIENCE_S:g} s", dialect.install)]
    if done.returncode != 0:
        return [warn(name, f"{command} --version ended with {done.returncode}", f"run it by hand; {dialect.install}")]
    if not _is_signed_in(dialect, own):
        return [warn(name, f"{command} runs, and no login of it was found", dialect.login)]
    return [ok(name, f"{command} runs and has a login")]


def _is_signed_in(dialect: Dialect, environment: Mapping[str, str]) -> bool:
    keys = (name for name in dialect.environment if name.endswith(_KEYS))
    home = Path(environment.get("HOME") or Path.home())
    return any(environment.get(name) for name in keys) or any((home / f).exists() for f in _LOGIN_FILES[dialect.name])
