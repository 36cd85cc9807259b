"""`butlers route`: where a message would go and why. Needs no running system, and stores nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from butlers.daemon.cli.exits import OK
from butlers.daemon.cli.options import Config, DataDir, Json, Set, settings_from
from butlers.errors import ClassifiedError, RoutingError, ValidationError

if TYPE_CHECKING:
    from butlers.roster import ButlerConfig
    from butlers.switchboard.registry import RegisteredButler
    from butlers.switchboard.routing.decision import Cascade, Decision

KEYS = frozenset({"text", "channel", "sender", "endpoint", "thread", "pinned_target"})
Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="The message.", show_default=False)]
File = Annotated[
    str | None, typer.Option("--file", metavar="F.jsonl", help="Messages, one JSON object a line; - is standard input.")
]
Channel = Annotated[str, typer.Option("--channel", help="Where TEXT comes from, as rules know it.")]


def route(
    text: Text = None,
    file: File = None,
    channel: Channel = "api",
    data_dir: DataDir = None,
    config: Config = None,
    set_: Set = None,
    as_json: Json = False,
) -> int:
    """Which butlers would get a message, which part of it each, and why."""
    if (text is None) == (file is None):
        raise ValidationError("needs either TEXT or --file")
    from butlers.roster import load_roster

    roster = load_roster(settings_from(data_dir=data_dir, config=config, set_=set_).roster_dir)
    cascade, butlers = _cascade(roster), _registered(roster)
    if text is not None:
        _must_be_whole(text, "TEXT")
        _print({"text": text, "channel": channel}, cascade, butlers, as_json=as_json)
        return OK
    with _opened(str(file)) as stream:
        for number, message in _messages(stream):
            try:
                _print(message, cascade, butlers, as_json=as_json)
            except RoutingError as error:
                raise ValidationError(f"line {number}: {error.message}") from error
    return OK


def _cascade(roster: Mapping[str, ButlerConfig]) -> Cascade:
    from butlers.switchboard.routing.classifier import LocalClassifier
    from butlers.switchboard.routing.decision import Cascade

    return Cascade(settings=roster["switchboard"].routing, local=LocalClassifier())


def _registered(roster: Mapping[str, ButlerConfig]) -> list[RegisteredButler]:
    """Everybody of the roster, as if all were up."""
    from butlers.switchboard.registry import RegisteredButler

    return [
        RegisteredButler(
            name=name,
            eligibility_state="active",
            triggers=tuple(config.butler.registry.triggers),
            capabilities=("route.execute",),
            description=config.butler.description,
        )
        for name, config in roster.items()
    ]


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
    else:
        with Path(file).open("rb") as stream:
            yield stream


def _messages(stream: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            yield number, _message(line, number)


def _message(line: bytes, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"line {number}: is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("text"), str):
        raise ValidationError(f"line {number}: must be an object with a text")
    if unknown := sorted(document.keys() - KEYS):
        raise ValidationError(f"line {number}: unknown key {', '.join(map(repr, unknown))}")
    if wrong := sorted(key for key, value in document.items() if value is not None and not isinstance(value, str)):
        raise ValidationError(f"line {number}: {', '.join(wrong)} must be text")
    for key, value in document.items():
        _must_be_whole(value or "", f"line {number}: {key}")
    return {key: value for key, value in document.items() if value is not None}


def _must_be_whole(text: str, where: str) -> None:
    """Half of a character, or what a shell passed on that is not UTF-8, could not be printed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{where}: is not Unicode text") from None


def _print(message: Mapping[str, Any], cascade: Cascade, butlers: list[RegisteredButler], *, as_json: bool) -> None:
    from butlers.switchboard.routing.decision import RoutingQuestion

    decision = asyncio.run(_decide(cascade, RoutingQuestion(**message), butlers))
    document = described(decision, message["text"])
    if as_json:
        print(json.dumps(document, ensure_ascii=False))
        return
    for target in document["targets"]:
        print(f"{target['butler']:<13} {target['confidence']:.2f}  {target['segment']['text'].strip()!r}")
    print(f"    {document['router']}: {document['why']}")


async def _decide(cascade: Cascade, question: Any, butlers: list[RegisteredButler]) -> Decision:
    try:
        return await cascade.decide(question, butlers)
    except ClassifiedError as error:
        raise RoutingError(error.message) from error


def described(decision: Decision, text: str) -> dict[str, Any]:
    return {
        "targets": [
            {
                "butler": segment.butler,
                "confidence": segment.confidence,
                "segment": {"start": segment.start, "end": segment.end, "text": text[segment.start : segment.end]},
            }
            for segment in decision.segments
        ],
        "router": decision.router,
        "why": decision.why,
    }
