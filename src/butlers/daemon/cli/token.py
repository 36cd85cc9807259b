"""`butlers token`: who may call."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from butlers.butler.config import load_roster
from butlers.butler.identity import OPERATOR, Role, TokenFile
from butlers.clock import SystemClock
from butlers.daemon.cli.exits import exiting
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.places import Places
from butlers.errors import FieldError, ValidationError

app = typer.Typer(help="Issue, list and revoke bearer tokens.", no_args_is_help=True)

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")

Name = Annotated[str, typer.Argument(help="The caller the token stands for.")]


@app.command("issue")
@exiting
def issue(
    name: Name,
    role: Annotated[Role, typer.Option(help="What the caller may do.")] = Role.CLIENT,
    force: Annotated[bool, typer.Option("--force", help="Also for the system's own members.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Make a token; an earlier one of the same name stops working at once."""
    settings = settings_from(data_dir=data_dir, config=config)
    if not force and name in {OPERATOR, *load_roster(settings.roster_dir)}:
        raise ValidationError(f"{name!r} is the system's own: a new token would take its place (--force does it)")
    if not _NAME.fullmatch(name):
        raise ValidationError(f"{name!r} cannot name a caller: use letters, digits, and . _ - between them")
    places = _places(data_dir, config)
    places.create()
    token = _tokens(places).issue(name, role)
    print(json.dumps({"name": name, "role": role.value, "token": token.secret}) if as_json else token.secret)
    return 0


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
def revoke(name: Name, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Make a token worthless; running services notice at once."""
    tokens = _tokens(_places(data_dir, config))
    if tokens.secret_of(name) is None or not tokens.revoke(name):
        raise _unknown(name)
    print(json.dumps({"revoked": name}) if as_json else f"revoked {name}")
    return 0


@app.command("list")
@exiting
def list_(data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Names and roles; the secrets stay hidden."""
    tokens = _tokens(_places(data_dir, config)).tokens()
    rows = [{"name": t.name, "role": t.role.value, "issued_at": t.issued_at} for t in tokens]
    if as_json:
        print(json.dumps({"tokens": rows}))
    else:
        for row in rows:
            print(f"{row['name']:<20} {row['role']:<10} {row['issued_at']}")
    return 0


def _unknown(name: str) -> ValidationError:
    return ValidationError(
        f"there is no token for {name!r}", fields=(FieldError(field="name", error="there is no token"),)
    )


def _places(data_dir: DataDir, config: Config) -> Places:
    return Places(settings_from(data_dir=data_dir, config=config).data_dir)


def _tokens(places: Places) -> TokenFile:
    return TokenFile(places.tokens, SystemClock())
