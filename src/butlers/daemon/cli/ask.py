"""Commands that ask a running system: `status`, `ingest`, `trace`, `requests`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from butlers.channels.channel import AnswersGo
from butlers.channels.registry import channel_of
from butlers.clock import SystemClock
from butlers.contracts.request_state import RequestState
from butlers.daemon.cli import why
from butlers.daemon.cli.asking import Document, an_id, asking, body, plain
from butlers.daemon.cli.exits import FAILED, OK
from butlers.daemon.cli.options import Config, DataDir, Json, Limit, settings_from
from butlers.daemon.client import SystemClient
from butlers.errors import TargetUnavailable, ValidationError
from butlers.ids import Uuid7Factory
from butlers.operations.operation import Hint, when


def status(data_dir: DataDir = None, config: Config = None, as_json: Json = False) -> int:
    """Every door and how its parts are; exit code 1 when something is not well."""
    with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
        health = {name: client.health(url) for name, url in client.description["doors"].items()}
        if all(state["status"] == "unreachable" for state in health.values()):
            client.get("/api/status")  # says in the words of every command that nobody answers
        document = {
            "doors": {name: {"url": client.description["doors"][name], **state} for name, state in health.items()},
            "simulators": client.description["simulators"],
            "requests": _counts(client),
        }
    if as_json:
        print(json.dumps(document))
    else:
        _print_status(document)
    return OK if all(state["status"] == "ok" for state in health.values()) else FAILED


def _counts(client: SystemClient) -> Document:
    """Nothing while the database is away: then the doors' own words are what matters."""
    try:
        counts: Document = client.get("/api/status")["requests"]
    except TargetUnavailable:
        return {}
    return counts


def _accepted(reply: Document) -> Iterator[str]:
    yield f"{'already known as' if reply['duplicate'] else 'accepted as'} {reply['request_id']}"
    yield Hint(f"follow it with: butlers trace {reply['request_id']}")


def _requests(document: Document) -> Iterator[str]:
    # Plain lines: a table would cut the ids that people copy.
    for row in document["requests"]:
        butlers = ", ".join(s["butler"] for s in (row["routing_output"] or {}).get("segments", []))
        source = f"{row['source_channel']}:{row['source_sender_identity']}"
        received = when(row["received_at"])
        yield f"{row['request_id']}  {received}  {row['lifecycle_state']:<8}  {butlers or '-':<12}  {source}"


@asking(_accepted)
def ingest(
    client: SystemClient,
    text: Annotated[str, typer.Argument(help="What is said; - reads an ingest.v1 envelope from stdin.")],
    sender: Annotated[
        str, typer.Option("--from", help="Who says it; telegram:ID speaks for that person on Telegram.")
    ] = "cli",
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key is the same message.")] = None,
    target: Annotated[str | None, typer.Option("--to", help="A butler's name, to skip routing.")] = None,
) -> Document:
    """Hand in a message through POST /api/ingest."""
    if text == "-":
        return client.post("/api/ingest", _from_stdin(key, target))
    name, _, identity = sender.partition(":")
    channel = channel_of(name)
    if channel.inbound is None or not channel.has_connector or not identity:
        source = {"channel": "api", "provider": "internal", "endpoint_identity": "cli"}
        return client.post("/api/ingest", _envelope(text, source, {"identity": sender}, key, target))
    provider = channel.inbound.providers[0]
    source = {"channel": name, "provider": provider, "endpoint_identity": _endpoint(client, name)}
    return client.post("/api/ingest", _envelope(text, source, {"identity": identity}, key, target))


@asking(why.print_trace)
def trace(client: SystemClient, request_id: Annotated[str, typer.Argument(help="As ingest printed it.")]) -> Document:
    """One request, every hop, from the door to the provider's receipt."""
    return client.get(f"/api/requests/{an_id(request_id)}")


@asking(_requests, more="butlers requests --before", none="no requests")
def requests(
    client: SystemClient,
    state: Annotated[RequestState | None, typer.Option(help="Only requests in this state.")] = None,
    limit: Limit = 20,
    before: Annotated[str | None, typer.Option(help="A request id: list what came before it.")] = None,
) -> Document:
    """Recent requests, newest first."""
    return client.get("/api/requests", state=state, limit=limit, before=before)


def _from_stdin(key: str | None, target: str | None) -> bytes:
    if key is not None or target is not None:
        raise ValidationError("an envelope from standard input says itself what --key and --to would say")
    return sys.stdin.buffer.read()


def _endpoint(client: SystemClient, channel: str) -> str:
    """The bot of the channel, as its connector reports it."""
    rows = client.get("/api/connectors")["connectors"]
    found = sorted({row["endpoint_identity"] for row in rows if row["connector_type"] == channel})
    if len(found) != 1:
        known = f"there are {', '.join(found)}" if found else "none has reported yet"
        raise ValidationError(f"it is not plain which {channel} endpoint is meant: {known}; pass an envelope with -")
    return str(found[0])


def _envelope(text: str, source: Document, sender: Document, key: str | None, target: str | None) -> bytes:
    clock = SystemClock()
    event: dict[str, Any] = {"external_event_id": str(Uuid7Factory(clock)()), "observed_at": clock.now()}
    if (
        channel_of(source["channel"]).answers_go is AnswersGo.TO_CONVERSATION
    ):  # a person's own chat with the bot has the person's number
        event["external_thread_id"] = sender["identity"]
    envelope: dict[str, Any] = {
        "schema_version": "ingest.v1",
        "source": source,
        "event": event,
        "sender": sender,
        "payload": {"raw": {"text": text}, "normalized_text": text},
        "control": {"idempotency_key": key, "pinned_target": target},
    }
    return body(envelope)


def _problems(doors: Document) -> Iterator[str]:
    """What is not well, and what to do; what several doors say is said once."""
    said: dict[str, list[str]] = {}
    for name, door in doors.items():
        for part in door.get("parts", []):
            if part["state"] != "ok":
                said.setdefault(_problem(part), []).append(name)
    for problem, names in said.items():
        yield f"{', '.join(names)}: {problem}"


def _problem(part: Document) -> str:
    what = " ".join(part[key] for key in ("part", "name") if key in part)
    return f"{what} {part['state']}: " + " ".join(part[key] for key in ("sentence", "remedy") if key in part)


def _print_status(document: dict[str, Any]) -> None:
    table = Table("door", "status", "address", "runtime")
    for name, door in document["doors"].items():
        table.add_row(name, door["status"], door["url"], str(door.get("runtime", "")))
    Console().print(table)
    for line in _problems(document["doors"]):
        print(plain(line))
    counts = ", ".join(f"{count} {state}" for state, count in document["requests"].items())
    print(f"requests (open, and ended within a day): {counts or 'none'}")
