"""`butlers token`: who may call."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Annotated, Any

import typer

from butlers.butler.identity import OPERATOR, Grant, TokenFile
from butlers.channels.registry import channels
from butlers.clock import SystemClock
from butlers.contracts.envelope import invalid
from butlers.daemon.cli.exits import exiting, say
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.places import Places
from butlers.daemon.settings import Settings
from butlers.errors import FieldError, ValidationError
from butlers.operations.operation import Role
from butlers.roster import load_roster

app = typer.Typer(name="token", help="Issue, list and revoke bearer tokens.", no_args_is_help=True)

_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,30}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")

Name = Annotated[str, typer.Argument(help="The caller the token stands for.")]
Force = Annotated[bool, typer.Option("--force", help="Also for the system's own members.")]


@app.command("issue")
@exiting
def issue(
    name: Name,
    role: Annotated[Role, typer.Option(help="What the caller may do.")] = Role.CLIENT,
    channel: Annotated[
        str | None, typer.Option(help="A channel it may speak for, like telegram; without it only for itself.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="Where on that channel: the bot's name or the mailbox.")] = None,
    sender: Annotated[
        list[str] | None, typer.Option(help="Whom it may speak for there; repeat it. Without: everybody there.")
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Make a token; an earlier one of the same name stops working at once."""
    settings = settings_from(data_dir=data_dir, config=config)
    if not force and name in _own_members(settings):
        raise ValidationError(f"{name!r} is the system's own: a new token would take its place (--force does it)")
    if not _NAME.fullmatch(name):
        raise ValidationError(f"{name!r} cannot name a caller: use letters, digits, and . _ - between them")
    grants = _grants(role, channel, endpoint, sender or [])
    places = _places(data_dir, config)
    places.create()
    token = _tokens(places).issue(name, role, grants)
    document = {"name": name, "role": role.value, "token": token.secret, "grants": [asdict(grant) for grant in grants]}
    print(json.dumps(document) if as_json else token.secret)
    return 0


def _grants(role: Role, channel: str | None, endpoint: str | None, senders: list[str]) -> tuple[Grant, ...]:
    """What the token may speak for. A connector needs a channel and an endpoint: without them it could say nothing."""
    given = channel is not None or endpoint is not None or bool(senders)
    if not given and role is not Role.CONNECTOR:
        return ()
    if role not in (Role.CONNECTOR, Role.CLIENT):
        raise invalid("--channel", f"is for connectors and clients; the role {role.value} has its own rules")
    if channel is None or not _CHANNEL.fullmatch(channel):
        raise invalid("--channel", "is required: the channel's name, like telegram or email")
    if endpoint is None or not endpoint.strip():
        raise invalid("--endpoint", "is required: the bot's name or the mailbox")
    if any(not sender.strip() for sender in senders):
        raise invalid("--sender", "must not be empty")
    return (Grant(channel=channel, endpoint=endpoint.strip(), senders=tuple(sender.strip() for sender in senders)),)


def _line(row: dict[str, Any]) -> str:
    spoken = [_spoken(grant) for grant in row["grants"]]
    return f"{row['name']:<20} {row['role']:<10} {row['issued_at']}  {', '.join(spoken)}".rstrip()


def _spoken(grant: dict[str, Any]) -> str:
    who = f"senders {' '.join(grant['senders'])}" if grant["senders"] else "any sender"
    return f"speaks for {who} at {grant['channel']}:{grant['endpoint'] or '*'}"


@app.command("show")
@exiting
def show(name: Name, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Print a token that exists."""
    secret = _tokens(_places(data_dir, config)).secret_of(name)
    if secret is None:
        raise _unknown(name)
    print(json.dumps({"name": name, "token": secret}) if as_json else secret)
    return 0


@app.command("revoke")
@exiting
def revoke(
    name: Name, force: Force = False, data_dir: DataDir = None, config: Config = None, as_json: Json = False
) -> int:
    """Make a token worthless; running services notice at once."""
    if not force and name in _own_members(settings_from(data_dir=data_dir, config=config)):
        raise ValidationError(
            f"{name!r} is the system's own: without its token it cannot call the others"
            f" (--force revokes it all the same; `butlers token issue {name} --force` makes a new one)"
        )
    tokens = _tokens(_places(data_dir, config))
    if tokens.secret_of(name) is None or not tokens.revoke(name):
        raise _unknown(name)
    print(json.dumps({"revoked": name}) if as_json else f"revoked {name}")
    return 0


@app.command("list")
@exiting
def list_(data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Names, roles, and for whom each may speak beside itself; the secrets stay hidden."""
    tokens = _tokens(_places(data_dir, config)).tokens()
    rows = [asdict(token) for token in tokens]
    for row in rows:
        del row["secret"]
    say({"tokens": rows}, as_json, lambda document: map(_line, document["tokens"]))
    return 0


def _own_members(settings: Settings) -> set[str]:
    without_token = {"local", *(f"connector.{name}" for name, channel in channels().items() if channel.has_connector)}
    return {OPERATOR, *without_token, *load_roster(settings.roster_dir)}


def _unknown(name: str) -> ValidationError:
    return ValidationError(
        f"there is no token for {name!r}", fields=(FieldError(field="name", error="there is no token"),)
    )


def _places(data_dir: DataDir, config: Config) -> Places:
    return Places(settings_from(data_dir=data_dir, config=config).data_dir)


def _tokens(places: Places) -> TokenFile:
    return TokenFile(places.tokens, SystemClock())
