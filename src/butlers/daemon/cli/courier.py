"""`butlers courier`: the streams that agents attach to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from butlers.clock import SystemClock
from butlers.daemon.cli.exits import OK, Document, exiting, plain, say
from butlers.daemon.cli.options import DataDir, Json, settings_from
from butlers.errors import ValidationError

if TYPE_CHECKING:
    from butlers.courier.client import CourierClient

TOKEN_VARIABLE = "BUTLERS_COURIER_TOKEN"  # noqa: S105 - its name

app = typer.Typer(name="courier", help="Streams that agents attach to by HTTP and WebSocket.", no_args_is_help=True)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="BUTLERS_COURIER_URL",
        help="The gateway, with its token in BUTLERS_COURIER_TOKEN; default: the running system's, or port 8787.",
    ),
]
Stream = Annotated[str, typer.Argument(help="A stream, such as agents/jen/inbox.")]
DEFAULT_URL = "http://127.0.0.1:8787"


def _client(url: str | None, data_dir: Path | None) -> CourierClient:
    """Of a gateway that is named, of the system that runs in the data directory, or of one at the usual address."""
    from butlers.butler.identity import OPERATOR, TokenFile
    from butlers.courier.client import CourierClient
    from butlers.daemon.places import Places

    token = os.environ.get(TOKEN_VARIABLE)
    if url is None:
        places = Places(settings_from(data_dir=data_dir).data_dir)
        url = places.running().get("doors", {}).get("courier")
        if url is not None:
            token = token or TokenFile(places.tokens, SystemClock()).secret_of(OPERATOR)
    return CourierClient(url or DEFAULT_URL, token=token)


def serve(
    config: Annotated[Path | None, typer.Option("--config", help="A YAML file; see docs/systems/courier.md.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Instead of gateway.port; 0 takes a free one.")] = None,
) -> int:
    """Serve the gateway until ctrl-C."""
    import uvloop

    from butlers.courier.config import CourierConfig, load_config

    chosen = load_config(config) if config is not None else CourierConfig()
    if port is not None:
        chosen = chosen.model_copy(update={"gateway": chosen.gateway.model_copy(update={"port": port})})
    uvloop.run(_serve(chosen))
    return OK


async def _serve(config: Any) -> None:
    from butlers.courier.server import serving
    from butlers.daemon.collector import spared_collector

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with serving(config, clock=SystemClock()) as server:
        with spared_collector():
            print(f"the courier is up: http://{config.gateway.host}:{server.port}", flush=True)
            await ended.wait()


def pub(
    stream: Stream,
    payload: Annotated[str, typer.Argument(help="JSON or text; - reads a message a line from standard input.")] = "-",
    type_: Annotated[str, typer.Option("--type", help="The type of the message.")] = "note",
    id_: Annotated[str | None, typer.Option("--id", help="An id; a repeat of it is taken once.")] = None,
    url: Url = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Send messages to a stream; prints each one's id, with --json a document a line."""
    if id_ is not None and payload == "-":
        raise ValidationError.of("--id", "goes with one message")
    lines = (line.rstrip("\n") for line in sys.stdin) if payload == "-" else iter([payload])
    asyncio.run(_pub(_client(url, data_dir), stream, lines, type_, id_, as_json=as_json))
    return OK


async def _pub(
    client: CourierClient, stream: str, lines: Iterator[str], type_: str, id_: str | None, *, as_json: bool
) -> None:
    """Each message as soon as it is there; its id is printed when it is accepted."""
    async with client:
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            envelope = {
                "id": id_ or str(uuid4()),
                "ts": SystemClock().now().isoformat(),
                "from": "operator",
                "to": stream,
                "type": type_,
                "payload": _value(line),
            }
            accepted = await client.post("/v1/enqueue", {"envelope": envelope})
            shown = f"{accepted['id']}{' (known already)' if accepted['duplicate'] else ''}"
            print(json.dumps(accepted) if as_json else shown, flush=True)


def sub(
    stream: Annotated[str, typer.Argument(help="A stream, or a pattern such as agents/*/inbox.")],
    count: Annotated[int, typer.Option("--count", min=0, help="End after so many messages; 0 goes on.")] = 0,
    credit: Annotated[int, typer.Option("--credit", min=1, help="Messages under way at once.")] = 16,
    group: Annotated[str | None, typer.Option("--group", help="Share the messages with this group.")] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Settle each message, or leave it to its lease.")] = True,
    url: Url = None,
    data_dir: DataDir = None,
) -> int:
    """Print the messages of a stream, one JSON document a line."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_sub(_client(url, data_dir), stream, count=count, credit=credit, group=group, ack=ack))
    return OK


async def _sub(client: CourierClient, stream: str, *, count: int, credit: int, group: str | None, ack: bool) -> None:
    async with client, client.subscribe(stream, group=group) as subscription:
        await subscription.grant(min(credit, count) if count else credit)
        seen = 0
        async for frame in subscription.frames():
            print(json.dumps(frame.get("deliver", frame)), flush=True)
            if "deliver" not in frame:
                continue
            seen += 1
            if ack:
                more = {"credit": 1} if not count or seen + credit <= count else {}
                await subscription.ack(frame, **more)
            if seen == count:
                return


def stats(
    stream: Annotated[str | None, typer.Argument(help="One stream; without it, all.")] = None,
    url: Url = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Show depth, rates and latencies."""

    async def ask() -> Document:
        async with _client(url, data_dir) as client:
            return await client.get("/v1/stats", **({"stream": stream} if stream else {}))

    say(asyncio.run(ask()), as_json, _stats_lines)
    return OK


def _stats_lines(document: Document) -> Iterator[str]:
    for one in document.get("streams", [document]):
        held = f"{one['depth']} queued, {one['inflight']} held, {one['dead']} dead"
        speed = f"in {one['rateIn']}/s, out {one['rateOut']}/s, p95 {one['latP95']} ms"
        yield f"{one['stream']}: {held}, {speed}, {one['subscribers']} subscribers ({one['busy']} busy)"


def dead(
    stream: Stream,
    replay: Annotated[bool, typer.Option("--replay", help="Queue them again.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Forget them.")] = False,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Only this one; may be repeated.")] = None,
    url: Url = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """List the dead messages of a stream, replay or discard them."""
    if replay and discard:
        raise ValidationError.of("--replay", "does not go with --discard")

    async def ask() -> Document:
        async with _client(url, data_dir) as client:
            if not (replay or discard):
                return await client.get("/v1/dead", stream=stream)
            verb = "replay" if replay else "discard"
            return await client.post(f"/v1/dead/{verb}", {"stream": stream} | ({"ids": ids} if ids else {}))

    say(asyncio.run(ask()), as_json, _dead_lines)
    return OK


def _dead_lines(document: Document) -> Iterator[str]:
    for name in ("replayed", "discarded"):
        if name in document:
            yield f"{name}: {document[name]}"
    for one in document.get("messages", ()):
        yield f"{one['id']}  {one['failures']} failures  {plain(one['reason'])}"


def groups(
    stream: Stream,
    remove: Annotated[
        str | None, typer.Option("--remove", help="Forget this group, and what it has not settled.")
    ] = None,
    url: Url = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """List the groups that share a stream's messages, or remove one that has no subscribers."""

    async def ask() -> Document:
        async with _client(url, data_dir) as client:
            if remove is not None:
                return await client.post("/v1/groups/remove", {"stream": stream, "group": remove})
            return await client.get("/v1/audit", stream=stream)

    say(asyncio.run(ask()), as_json, _group_lines)
    return OK


def _group_lines(document: Document) -> Iterator[str]:
    if "removed" in document:
        yield f"removed, with {document['removed']} messages"
    for name, one in document.get("groups", {}).items():
        yield f"{name}: {one['queued']} queued, {one['delayed']} delayed, {one['leased']} held, {one['dead']} dead"


def bench(
    count: Annotated[int, typer.Option("--count", min=1, help="Messages sent as quickly as they are taken.")] = 400,
    rate: Annotated[float, typer.Option("--rate", min=1.0, help="Then as many again, so many a second.")] = 200.0,
    url: Url = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Measure a running gateway: throughput and latency, on a stream of its own. Unless gateway.messagesPerMinute says
    otherwise, a gateway takes 1,000 messages a minute from one socket.
    """
    from butlers.courier.measurement import measure

    async def ask() -> Document:
        async with _client(url, data_dir) as client:
            return await measure(client, count=count, rate=rate, clock=SystemClock())

    say(_run(ask()), as_json, _bench_lines)
    return OK


def _bench_lines(document: Document) -> Iterator[str]:
    yield f"{document['messages_per_s']} messages a second, each confirmed, delivered and acked ({document['count']})"
    latencies = ", ".join(f"{name} {document[f'{name}_ms']} ms" for name in ("p50", "p95", "p99"))
    yield f"at {document['rate']} a second: {latencies}"
    yield f"{document['stream']} stays listed until the gateway restarts; unacked messages: {document['unacked']}"


def _run(work: Coroutine[Any, Any, Document]) -> Document:
    """On the event loop of the gateway itself, so that the measuring costs little."""
    import uvloop

    return uvloop.run(work)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


_COMMANDS: tuple[tuple[str, Callable[..., int]], ...] = (
    ("serve", serve),
    ("pub", pub),
    ("sub", sub),
    ("stats", stats),
    ("dead", dead),
    ("groups", groups),
    ("bench", bench),
)
for _name, _command in _COMMANDS:
    app.command(_name)(exiting(_command))
