"""Everything that can keep `butlers up` from starting, looked at before it is tried. Nothing is changed or made.

machine       python, data directory, disk, database, Java           machine_checks.py
roster        loads; then what it asks for: ports, credentials, LLM programs
way out       adapters, channels and gated tools that the roster names   delivery_checks.py
data          the token file's mode and text
telemetry     the OTLP collector, when one is configured
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from butlers.butler.identity import TokenFile
from butlers.butler.modules import in_dependency_order
from butlers.butler.runtimes import DIALECTS
from butlers.butler.runtimes.cli import probe
from butlers.channels.registry import channel_of
from butlers.clock import SystemClock
from butlers.daemon import delivery_checks as delivery
from butlers.daemon import machine_checks as machine
from butlers.daemon.delivery_checks import who_may_write
from butlers.daemon.machine_checks import Check, fail, ok, refused, warn
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings, check_port_names, port_remedy, unknown_variables
from butlers.daemon.simulation import Simulated, what_to_simulate
from butlers.daemon.system import migration_sets
from butlers.errors import ConfigurationError
from butlers.roster import ButlerConfig, load_roster
from butlers.serving.server import is_loopback, listen
from butlers.simulators import simulator_ports, simulators
from butlers.storage.address import database_of

Roster = Mapping[str, ButlerConfig]
RUNNING = "running"  # the check that a system which has just started does not make of itself


def examine(settings: Settings, environment: Mapping[str, str]) -> Iterator[Check]:
    """All checks, in the order a start would need them."""
    places = Places(settings.data_dir)
    yield machine.python()
    yield machine.data_directory(places.root)
    yield machine.free_disk(places.root)
    yield from running(places)
    yield from variables(environment)
    yield tokens(places)
    try:
        roster = _load(settings)
    except ConfigurationError as error:
        yield refused("roster", error)
    else:
        yield ok("roster", f"{len(roster)} butlers: {', '.join(sorted(roster))}")
        yield from _roster_checks(settings, roster, environment, places)
    if settings.courier == "on" and settings.courier_config is not None:
        yield courier(settings, places)
    yield machine.java(environment)
    if settings.otlp_endpoint is not None:
        yield machine.otlp_endpoint(settings.otlp_endpoint)


def courier(settings: Settings, places: Places) -> Check:
    """The courier's own file."""
    from butlers.daemon.compose.courier import courier_config  # noqa: PLC0415 - heavy, and needed only here

    try:
        courier_config(settings, places)
    except ConfigurationError as error:
        return refused("courier_config", error)
    return ok("courier_config", f"{settings.courier_config} is in order")


def _load(settings: Settings) -> Roster:
    roster = load_roster(settings.roster_dir)
    check_port_names(settings, roster)
    for config in roster.values():
        in_dependency_order(config.modules.enabled(), source=config.source)
    return roster


def _roster_checks(
    settings: Settings, roster: Roster, environment: Mapping[str, str], places: Places
) -> Iterator[Check]:
    simulated = what_to_simulate(settings, roster, environment)
    yield database(settings, roster, places)
    yield from ports(settings, roster, simulated, places)
    yield from credentials(settings, roster, simulated, environment)
    yield from who_may_write(settings, simulated)
    yield from mail_in_clear(settings, simulated)
    yield from delivery.adapters(roster, environment)
    yield from delivery.channel_names(roster)
    yield from delivery.gated_tools(roster)
    yield from llm_programs(settings, roster, environment)
    if settings.llm == "on":
        yield sessions(places)


def database(settings: Settings, roster: Roster, places: Places) -> Check:
    dsn = settings.database_url
    names = sorted({config.butler.db.name for config in roster.values()})
    try:
        given = database_of(dsn) if dsn is not None else None
    except ConfigurationError as error:
        return refused("database", error)
    if given is None and len(names) > 1:
        remedy = "give all butlers the same butler.db.name and a schema each"
        return fail("database", f"butlers of one system share one database, not {', '.join(names)}", remedy)
    if dsn is None:
        return machine.embedded_database(places.root)
    schemas = {migration_set.schema for migration_set in migration_sets([*roster.values()])}
    return asyncio.run(machine.given_database(dsn, given or names[0], schemas))


def running(places: Places) -> Iterator[Check]:
    """A system that is there already: this one would be refused."""
    if (owner := places.owner()) is not None:
        remedy = "see `butlers status`; stop it first, or use another --data-dir with a --port-offset"
        yield warn(RUNNING, f"a system runs here already (process {owner}); `butlers up` would be refused", remedy)


def variables(environment: Mapping[str, str]) -> Iterator[Check]:
    """Variables that were meant for a setting and reach none."""
    for name, near in unknown_variables(environment).items():
        yield warn(f"environment.{name}", "is no setting and has no effect", f"did you mean {near}?")


def mail_in_clear(settings: Settings, simulated: Simulated) -> Iterator[Check]:
    """Passwords that would cross a network unencrypted because the settings say so."""
    for protocol, host, mode in (
        ("smtp", settings.smtp_host, settings.smtp_tls),
        ("imap", settings.imap_host, settings.imap_tls),
    ):
        if mode == "none" and host and "mail" not in simulated and not is_loopback(f"//{host}"):
            detail = f"the password and all mail travel in clear to {host}"
            yield warn(f"{protocol}_tls", detail, f"set {protocol}_tls=starttls or implicit")


def tokens(places: Places) -> Check:
    try:
        if not places.tokens.exists():
            return ok("tokens", "will be made at the first start")
        names = [token.name for token in TokenFile(places.tokens, SystemClock()).tokens()]
    except ConfigurationError as error:
        return refused("tokens", error)
    except OSError as error:
        return fail("tokens", f"{places.tokens}: {error.strerror}", "run as the user that owns the data directory")
    return ok("tokens", f"{len(names)} callers, private")


def ports(settings: Settings, roster: Roster, simulated: Simulated, places: Places) -> Iterator[Check]:
    """Each door can be opened, or is open already because the system of this data directory runs."""
    running = places.running()
    ours = _ports_of(running)
    taken: dict[int, str] = {}
    for name, number in _needed_ports(settings, roster, simulated):
        other = taken.setdefault(number, name)
        if other != name:
            remedy = f"give one of them another with --port {name}=NUMBER"
            yield fail(f"port.{name}", f"{number} is the port of {other}, too", remedy)
        elif number in ours:
            yield ok(f"port.{name}", f"{number} is used by the running system (process {running['pid']})")
        else:
            yield _port(settings.simulator_host if name in simulator_ports() else settings.host, name, number)


def _port(host: str, name: str, number: int) -> Check:
    if not 1 <= number <= 65_535:
        return fail(f"port.{name}", f"{number} is not a port number", f"use --port {name}=NUMBER")
    try:
        listen(host, number, source=name, remedy=port_remedy(name)).close()
    except ConfigurationError as error:
        return fail(f"port.{name}", f"{error.key}: {error.problem}", error.remedy)
    return ok(f"port.{name}", f"{number} is free")


def _needed_ports(settings: Settings, roster: Roster, simulated: Simulated) -> Iterator[tuple[str, int]]:
    for name, config in sorted(roster.items(), key=lambda entry: entry[1].butler.port):
        yield name, settings.port(name, config.butler.port)
    if settings.courier == "on":
        yield "courier", settings.courier_port
    for simulator in simulators().values():
        for door in simulator.doors if simulator.name in simulated else ():
            yield door.port, settings.simulator_port(door.port)


def _ports_of(running: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    addresses = [*running.get("doors", {}).values(), *running.get("simulators", {}).values()]
    found = (urlsplit(a if "//" in a else f"//{a}").port for a in addresses)
    return frozenset(port for port in found if port is not None)


def credentials(
    settings: Settings, roster: Roster, simulated: Simulated, environment: Mapping[str, str]
) -> Iterator[Check]:
    """Each enabled scope is set, or simulated; half set is a mistake."""
    for scope, variables in _scopes(roster).items():
        provider = scope.partition(".")[0]
        simulator = channel_of(provider).simulator
        if simulator is not None and simulator.name in simulated:
            yield ok(f"credentials.{scope}", f"simulated; {', '.join(variables)} not needed")
        elif simulator is not None and not simulator.on_request:
            simulate = "unset all variables of this provider to simulate it"
            either = simulate if settings.simulators == "auto" else "use --set simulators=auto"
            ways = f", or {either}, or set enabled = false for this scope"
            yield _scope(f"credentials.{scope}", variables, environment, ways)
        else:  # an adapter's secrets: nobody simulates it, and it has no scopes
            yield _scope(f"credentials.{provider}", variables, environment, f", or remove [modules.{provider}]")


def _scope(name: str, variables: list[str], environment: Mapping[str, str], other_ways: str) -> Check:
    missing = [variable for variable in variables if not environment.get(variable)]
    if not missing:
        return ok(name, f"{', '.join(variables)} set")
    found = [variable for variable in variables if variable not in missing]
    half = f"; {', '.join(found)} set: half a set of credentials is a mistake" if found else ""
    exports = f"export {' '.join(f'{variable}=...' for variable in missing)}"
    return fail(name, f"{', '.join(missing)} not set{half}", f"{exports}{other_ways}")


def _scopes(roster: Roster) -> dict[str, list[str]]:
    """`telegram.bot` -> the variables that the roster's butlers name for it."""
    found: dict[str, list[str]] = {}
    for config in roster.values():
        for key, variable in config.modules.required_variables():
            _, module, scope, _ = key.split(".")
            variables = found.setdefault(f"{module}.{scope}", [])
            variables += [variable] if variable not in variables else []
    return found


def llm_programs(settings: Settings, roster: Roster, environment: Mapping[str, str]) -> Iterator[Check]:
    for kind, dialect in DIALECTS.items():
        users = sorted(name for name, config in roster.items() if config.butler.runtime.type == kind)
        commands = {roster[name].butler.runtime.command or dialect.executable for name in users}
        yield _llm_program(settings, kind, users, commands or {dialect.executable}, environment)


def sessions(places: Places) -> Check:
    """Whether the data directory, with its tokens, can be hidden from the programs of language models."""
    problem = probe([places.root])
    if not problem:
        return ok("llm.confined", "sessions cannot see the data directory")
    detail = f"sessions have no tools, but this machine cannot hide the data directory from them ({problem})"
    return warn("llm.confined", detail, "allow user namespaces: sysctl user.max_user_namespaces and AppArmor decide")


def _llm_program(
    settings: Settings, kind: str, users: list[str], commands: set[str], environment: Mapping[str, str]
) -> Check:
    name, needed = f"llm.{kind}", settings.llm == "on"
    missing = sorted(c for c in commands if shutil.which(c, path=environment.get("PATH", "")) is None)
    who = f"llm=on runs it for {', '.join(users)}" if users else "no butler asks for it"
    if not missing:
        return ok(name, f"found; {who}")
    install = f"{DIALECTS[kind].install}, or set butler.runtime.command"
    if users and needed:
        return fail(name, f"{', '.join(missing)} not found; {who}", f"{install}, or use --set llm=off")
    return ok(name, f"{', '.join(missing)} not found and not needed now; {who}", install if users else "")
