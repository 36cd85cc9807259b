"""The way out and the programs behind it, for `butlers doctor` and at `butlers up`.

Of the roster's words: adapters, channels and gated tools.

A start stops at an unknown adapter. It does not stop at a limit for a channel that does not exist, nor at a gate before
a tool that does not exist; both are slips of the pen that leave somebody believing in a limit or a gate.

Providers and programs are asked whether they know us, all at once; each has a few seconds, and nothing is sent. None
keeps a system from starting: what they refuse is a warning. What is simulated is not asked. No secret stands in an
answer.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

from butlers.butler.approvals.tools import ApprovalTools
from butlers.butler.calendar import CalendarTools
from butlers.butler.core_tools import CoreTools, SpeakingTools
from butlers.butler.modules import ChannelModule, ChannelOptions
from butlers.butler.runtimes import DIALECTS
from butlers.butler.runtimes.cli import SHARED_ENVIRONMENT
from butlers.butler.runtimes.dialects import Dialect
from butlers.butler.toolbox import AnyTool
from butlers.channels.channel import load
from butlers.channels.plugins import SHIPPED, ChannelSettings, choose, installed_adapters
from butlers.channels.registry import channel_of, channels, outbound_names, registry
from butlers.channels.webhook.adapter import read_settings
from butlers.clock import Clock, SystemClock
from butlers.daemon.compose.channels import bot_mailbox, build_channels
from butlers.daemon.machine_checks import Check, fail, ok, refused, warn
from butlers.daemon.settings import Settings, WhoMayWrite
from butlers.daemon.simulation import Simulated, is_alone, simulated_environment, simulated_settings, what_to_simulate
from butlers.errors import ClassifiedError, ConfigurationError
from butlers.messenger.channel_health import ask_all, probes_of
from butlers.messenger.channel_tools import ChannelTools
from butlers.roster import ButlerConfig, load_roster

Roster = Mapping[str, ButlerConfig]
SCOPES = ("bot", "user")
DEFAULT = "default"
_NOTHING: Any = None
WHO: Mapping[WhoMayWrite, str] = {
    "owner": "the owner",
    "contacts": "the owner and the contacts",
    "pairing": "the owner, the contacts, and strangers whose code the owner approves",
    "open": "everybody",
}


def adapters(roster: Roster, environment: Mapping[str, str]) -> Iterator[Check]:
    """Each channel that is brought by an adapter has one, and its options fit."""
    for config in roster.values():
        for name in config.modules.enabled():
            module = getattr(config.modules, name)
            if isinstance(module, ChannelOptions):
                yield _adapter(config, name, module, environment)
    for problem in registry().problems:
        yield warn("channels", problem, "mend, update or remove that package")


def _adapter(config: ButlerConfig, name: str, module: ChannelOptions, environment: Mapping[str, str]) -> Check:
    # A variable that is not set is another check's complaint.
    secrets = {option: environment.get(variable) or "unset" for option, variable in module.options_env.items()}
    settings = ChannelSettings(
        channel=name, clock=SystemClock(), options=module.options, secrets=secrets, source=config.source
    )
    if not isinstance(module, ChannelModule):
        return _of_package(config, name)
    try:
        chosen = choose(module.adapter, installed_adapters(), settings)
        if chosen.factory == SHIPPED["webhook"]:
            read_settings(settings)
    except ConfigurationError as error:
        return refused(f"adapter.{name}", error)
    return ok(f"adapter.{name}", f"{chosen.name} of package {chosen.package}")


def _of_package(config: ButlerConfig, name: str) -> Check:
    """A channel of another package: the code that its value names can be imported."""
    channel = channel_of(name)
    named = [
        channel.outbound.adapter if channel.outbound else None,
        channel.inbound.connector if channel.inbound else None,
    ]
    check = f"channel.{config.name}.{name}"
    try:
        for reference in filter(None, named):
            load(reference)
    except Exception as error:  # foreign code
        detail = f"{config.source}: modules.{name}: its code cannot be imported ({type(error).__name__})"
        return fail(check, detail, "mend or update the package that brings it")
    ways = " and ".join(way for way, there in (("in", channel.has_connector), ("out", channel.outbound)) if there)
    return ok(check, f"{channel.title}, {ways}, of package {registry().packages[name]}")


def channel_names(roster: Roster) -> Iterator[Check]:
    """Tables of `[delivery]` name channels that there are."""
    for config in roster.values():
        delivery = config.delivery
        plain: dict[str, Mapping[str, Any]]
        plain = {"retry": delivery.retry, "timeout_s": delivery.timeout_s, "certainty": delivery.certainty}
        for table, given in plain.items():
            yield from _unknown(config, f"delivery.{table}", given, outbound_names())
        scoped = tuple(f"{channel}.{scope}" for channel in outbound_names() for scope in SCOPES)
        yield from _unknown(config, "delivery.limits.channel_per_minute", delivery.limits.channel_per_minute, scoped)


def _unknown(config: ButlerConfig, table: str, given: Mapping[str, Any], known: tuple[str, ...]) -> Iterator[Check]:
    for name in sorted(given.keys() - {*known, DEFAULT}):
        detail = f"{config.source}: {table}.{name}: there is no channel of that name, so this has no effect"
        yield warn(f"{table}.{name}", detail, _choose(name, (*known, DEFAULT)))


def gated_tools(roster: Roster) -> Iterator[Check]:
    """Each gate stands before a tool that somebody has."""
    known = tool_names()
    for config in roster.values():
        module = config.modules.approvals
        for name in sorted(set(module.gated_tools) - known) if module is not None else ():
            detail = f"{config.source}: modules.approvals.gated_tools: no butler has a tool {name!r}, so nothing waits"
            yield fail(f"gate.{config.name}.{name}", detail, _choose(name, tuple(sorted(known))))


def tool_names() -> frozenset[str]:
    """The names of all tools that can be gated: they are in the tools' own descriptions, and nothing is called."""
    channel_tools = ChannelTools(
        intake=_NOTHING, channels=[f"{name}.bot" for name in outbound_names()], lineage=_NOTHING
    )
    described = (CoreTools, SpeakingTools, CalendarTools, ApprovalTools)
    groups = [channel_tools.tools(), *(_described(group).tools() for group in described)]
    tools: list[AnyTool] = [tool for group in groups for tool in group]
    reactions = {f"{name}_react_to_message" for name, channel in channels().items() if channel.can_react}
    return frozenset({tool.name for tool in tools} | reactions)


def _described(group: Callable[..., Any]) -> Any:
    """Tools with nothing behind them: only what they say of themselves is asked for."""
    return group(**dict.fromkeys(signature(group).parameters, _NOTHING))


def _choose(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=3)
    return f"mend the spelling; near: {', '.join(near)}" if near else "mend the spelling, or remove it"


def who_may_write(settings: Settings, simulated: Simulated) -> Iterator[Check]:
    alone = is_alone(simulated)
    yield _telegram(settings, simulated=alone)
    yield _mail(settings, simulated=alone)
    if "mail" not in simulated and settings.imap_host is not None:
        yield _mail_authentication(settings)


def _telegram(settings: Settings, *, simulated: bool) -> Check:
    name, policy = "who_may_write.telegram", _policy(settings, "telegram", simulated=simulated)
    if simulated or policy == "open":
        return _open(name, policy, simulated=simulated)
    owner = settings.owner_telegram
    if owner is None:
        detail = f"{WHO[policy]}; no owner's chat is set: until one has paired, `butlers up` prints a code for it"
        return ok(name, detail, "send that code to the bot, or set owner_telegram to your Telegram user number")
    if not owner.isdigit():
        detail = f"{WHO[policy]}; {owner} is no user's number, so nobody is known to be the owner"
        return warn(name, detail, "send the bot the code that `butlers up` prints, or set owner_telegram to the number")
    return ok(name, f"{WHO[policy]}; the owner is {owner}")


def _mail(settings: Settings, *, simulated: bool) -> Check:
    name, policy = "who_may_write.email", _policy(settings, "email", simulated=simulated)
    if simulated or policy == "open":
        return _open(name, policy, simulated=simulated)
    if settings.owner_email is None:
        detail = f"{WHO[policy]}; no owner's address is set, so mail of the owner's is refused like a stranger's"
        return warn(name, detail, "set owner_email, or use: butlers senders allow email ADDRESS --owner")
    return ok(name, f"{WHO[policy]}; the owner is {settings.owner_email}")


def _mail_authentication(settings: Settings) -> Check:
    name = "mail_authentication"
    if settings.mail_authentication == "off":
        remedy = "set mail_authentication=required and mail_authserv_id"
        return warn(name, "off: whoever writes an owner's or a contact's address into From is served as them", remedy)
    if settings.mail_authserv_id is None:
        refused = "mail of known senders" if settings.who_may_write("email") == "open" else "every mail"
        detail = f"required, but the receiving server's name is not set: {refused} will be refused"
        remedy = "set mail_authserv_id to the first word of the Authentication-Results header of a mail that you got"
        return warn(name, detail, remedy)
    return ok(name, f"required, as {settings.mail_authserv_id} states it")


def _policy(settings: Settings, channel: str, *, simulated: bool) -> WhoMayWrite:
    given: WhoMayWrite | None = getattr(settings, f"who_may_write_{channel}")
    return given or ("open" if simulated else "owner")


def _open(name: str, policy: WhoMayWrite, *, simulated: bool) -> Check:
    if simulated:
        return ok(name, f"{WHO[policy]} (simulated)")
    return warn(name, "everybody who finds the address is served and answered", f"set {name.replace('.', '_')}=owner")


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
    needed = {
        (kind, config.butler.runtime.command or DIALECTS[kind].executable)
        for config in roster.values()
        if (kind := config.butler.runtime.type) in DIALECTS
    }
    with ThreadPoolExecutor(max_workers=4) as pool:
        for checks in pool.map(lambda one: _program(DIALECTS[one[0]], one[1], environment), sorted(needed)):
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
