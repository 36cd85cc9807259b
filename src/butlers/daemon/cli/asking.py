"""Commands that ask a running system: what each one asks, apart from how asking is done.

    @app.command("show")
    @asking(lines.delivery)
    def show(client: SystemClient, delivery_id: DeliveryId) -> Document: ...

The decorator adds the options that all of them have (--data-dir, --config, --json), finds the system, prints the answer
for a person or for a machine and ends the process with the exit code. A listing also says how to go on: the same
command with everything that was given, and the place where this page ended.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any
from uuid import UUID

import typer
from pydantic_core import to_json

from butlers.daemon.cli.exits import FAILED, OK
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.client import SystemClient
from butlers.errors import FieldError, ValidationError
from butlers.operations.operation import Hint

_COMMAND = re.compile(
    r"\bbutlers (?:approvals rules [a-z-]+|(?:deliveries|dead-letters|approvals) [a-z-]+"
    r"|requests [a-z][a-z-]*|why|trace|requests)\b"
)
_WHERE_OPTIONS = {"data_dir": "--data-dir", "config": "--config"}
_WHERE = ("data_dir", "config", "as_json")  # which system and which language: no part of the question


def located(line: str, where: str) -> str:
    """The line with the whereabouts in each of its commands."""
    if not where or not isinstance(line, Hint):
        return line
    return _COMMAND.sub(lambda found: f"{found[0]} {where}", line)


def where_given(context: typer.Context) -> str:
    """The options that said where the system is, as they were given."""
    return " ".join(_given(context))


def _given(context: typer.Context) -> Iterator[str]:
    for name, option in _WHERE_OPTIONS.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield f"{option} {shlex.quote(str(context.params[name]))}"


Document = dict[str, Any]
Lines = Callable[[Document], Iterable[str]]


def asking(
    lines: Lines,
    *,
    failed: Callable[[Document], bool] | None = None,
    more: str | None = None,
    none: str = "",
) -> Callable[[Callable[..., Document]], Callable[..., None]]:
    """A command from a function of the client. `failed`: whether the answer means exit code 1; `more`: the command
    that lists the next page, up to the option that takes the cursor; `none`: what is said when there is no line.
    """

    def decorate(command: Callable[..., Document]) -> Callable[..., None]:
        def asked(
            context: typer.Context, data_dir: DataDir = None, config: Config = None, as_json: Json = False, **given: Any
        ) -> None:
            with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
                document = command(client, **given)
            nothing = [none] if none else []
            hint = _hint(more, _repeated(context), document) if more else ()
            say(document, as_json, lambda told: [*(list(lines(told)) or nothing), *hint], where_given(context))
            sys.exit(FAILED if failed is not None and failed(document) else OK)

        return _shown_as(command, asked)

    return decorate


def say(document: Document, as_json: bool, lines: Lines, where: str = "") -> None:
    """Print for machines or for people, who are told again where the system is (`where`) when they had to say it."""
    if as_json:
        print(json.dumps(document))
    else:
        for line in lines(document):
            print(plain(located(line, where)))


def plain(line: str) -> str:
    """What others wrote, so that it cannot pretend to be something else on a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def an_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        problem = "must be a UUID"  # as the other doors say it
        raise ValidationError(f"{text!r} {problem}", fields=(FieldError(field="id", error=problem),)) from None


def body(document: Mapping[str, Any]) -> bytes:
    """What is said, without what was left unsaid."""
    try:
        return to_json({name: value for name, value in document.items() if value is not None})
    except ValueError:
        raise ValidationError("what is said must be text in UTF-8") from None


def _hint(more: str, repeated: Iterable[str], document: Document) -> Iterator[str]:
    if document["next_cursor"]:
        command, _, option = more.rpartition(" ")
        yield Hint(" ".join(["more:", command, *repeated, option, shlex.quote(document["next_cursor"])]))


def _repeated(context: typer.Context) -> Iterator[str]:
    """The options that were given, as they would be given again."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in (*_WHERE, "cursor", "before") or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        yield parameter.opts[0]
        if not isinstance(value, bool):
            yield shlex.quote(str(value.value if isinstance(value, Enum) else value))


def _shown_as(command: Callable[..., Document], asked: Callable[..., None]) -> Callable[..., None]:
    """Let typer see the command's own options without the client, and then those that all commands have."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(asked, eval_str=True).parameters.values()
    kinds = inspect.Parameter
    shown = [p for p in own if p.name != "client"] + [p for p in shared if p.kind is not kinds.VAR_KEYWORD]
    named = [p.replace(kind=kinds.KEYWORD_ONLY) for p in shown]
    functools.update_wrapper(asked, command)
    asked.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    asked.__annotations__ = {p.name: p.annotation for p in named}
    return asked
