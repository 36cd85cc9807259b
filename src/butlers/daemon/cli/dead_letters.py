"""`butlers dead-letters`: deliveries that were set aside, and what to do with them."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic_core import to_json

from butlers.daemon.cli import delivery_lines
from butlers.daemon.cli.deliveries import Channel, Reason, Since, an_id, say
from butlers.daemon.cli.exits import FAILED, OK, exiting
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.client import SystemClient

app = typer.Typer(help="Deliveries that were set aside.", no_args_is_help=True)

DeadLetterId = Annotated[str, typer.Argument(help="A dead letter's id, as `dead-letters list` prints it.")]
_ENDED_BADLY = frozenset({"failed", "dead_lettered", "uncertain", "expired"})


@app.command("list")
@exiting
def list_(
    origin: Annotated[str | None, typer.Option(help="Only what this butler asked for.")] = None,
    channel: Channel = None,
    error_class: Annotated[str | None, typer.Option(help="Only this class of error.")] = None,
    since: Since = None,
    discarded: Annotated[bool, typer.Option("--discarded", help="Also what was given up.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 20,
    cursor: Annotated[str | None, typer.Option(help="Where an earlier page ended.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Dead letters, newest first."""
    filters = {"origin_butler": origin, "channel": channel, "error_class": error_class, "since": since}
    place = {"include_discarded": str(discarded).lower(), "limit": limit, "cursor": cursor}
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get("/api/dead-letters", **filters, **place)
    return say(document, as_json, delivery_lines.dead_letters)


@app.command("show")
@exiting
def show(dead_letter_id: DeadLetterId, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """One dead letter: what was asked, all that was tried, whether it may be sent again."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.get(f"/api/dead-letters/{an_id(dead_letter_id)}")
    return say(document, as_json, delivery_lines.dead_letter)


@app.command("replay")
@exiting
def replay(dead_letter_id: DeadLetterId, data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Send it again; exit code 1 when that ended badly, too."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post(f"/api/dead-letters/{an_id(dead_letter_id)}/replay", b"{}")
    say(document, as_json, delivery_lines.result)
    return FAILED if delivery_lines.status_of(document) in _ENDED_BADLY else OK


@app.command("discard")
@exiting
def discard(
    dead_letter_id: DeadLetterId, reason: Reason, data_dir: DataDir = None, config: Config = None, as_json: Json = False
) -> int:
    """Give it up for good; it can never be replayed."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        document = client.post(f"/api/dead-letters/{an_id(dead_letter_id)}/discard", to_json({"reason": reason}))
    return say(document, as_json, delivery_lines.discarded)
