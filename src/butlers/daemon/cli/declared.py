"""Commands from the declarations of operations. Each asks a running system at the operation's HTTP route.

All of them have the options --data-dir, --config and --json, print the answer for a person or for a machine, and end
the process with the exit code. A listing also says how to go on: the same command with everything that was given, and
the place where this page ended.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum, StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import quote, urlencode
from uuid import UUID

import typer
from annotated_types import Ge, Le
from pydantic import AwareDatetime
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from butlers.daemon.cli.exits import FAILED, OK, Document, say
from butlers.daemon.cli.options import Config, DataDir, Json, settings_from
from butlers.daemon.client import SystemClient
from butlers.errors import ValidationError
from butlers.operations.operation import Command, Hint, Operation, Option, Parameter, Route, as_uuid, json_body
from butlers.operations.table import OPERATIONS

_PLACE = re.compile(r"\{(\w+)\}")
_WHERE = {"data_dir": "--data-dir", "config": "--config"}
_CURSORS = ("cursor", "before")  # the arguments that say where a page begins
_SHARED: dict[str, tuple[Any, Any]] = {
    "context": (typer.Context, inspect.Parameter.empty),
    "data_dir": (DataDir, None),
    "config": (Config, None),
    "as_json": (Json, False),
}


def add_commands(app: typer.Typer, group: str, *operations: Operation) -> None:
    """The commands of these operations that belong to the group, in this order."""
    for operation in operations:
        for command in operation.commands:
            under, _, word = command.words.rpartition(" ")
            if under == group:
                settings = {"ignore_unknown_options": True} if command.takes_dashes else None
                function = _function(operation, command)
                app.command(word, hidden=command.hidden, context_settings=settings)(function)
                if command.alone:
                    _lists_by_itself(app, function)


def _function(operation: Operation, command: Command) -> Callable[..., None]:
    """The command as typer takes it."""

    def asked(context: typer.Context, data_dir: Any, config: Any, as_json: bool, **given: Any) -> None:
        with SystemClient(settings_from(data_dir=data_dir, config=config)) as client:
            document = _answer(client, operation, command, given)
        where = " ".join(_given(context, _WHERE))

        def lines(document: Document) -> Iterator[str]:
            printed = list(command.prints(document)) or ([command.none] if command.none else [])
            for line in (*printed, *_more(context, command, document)):
                yield _commands().sub(rf"\g<0> {where}", line) if where and isinstance(line, Hint) else line

        say(document, as_json, lines)
        sys.exit(FAILED if command.failed is not None and command.failed(document) else OK)

    route = operation.routes[command.route]
    shared = [_keyword(name, *kind) for name, kind in _SHARED.items()]
    parameters = [*(_parameter(option, operation, route) for option in command.options), *shared]
    asked.__doc__ = command.help
    _take(asked, parameters)
    return asked


def _answer(client: SystemClient, operation: Operation, command: Command, given: Document) -> Document:
    if command.asks is not None:
        return command.asks(client, given)
    values = {name: _checked(operation, name, value) for name, value in given.items()} | dict(command.fixed)
    for option in command.options:
        if option.negates:
            values[option.argument] = not values[option.argument]
        if option.parse is not None:
            values[option.argument] = option.parse(given[option.argument] or ())
    try:
        document = _call(client, operation, operation.routes[command.route], values)
    except ValidationError as error:
        raise (error if command.refused is None else command.refused(error)) from None
    return document if command.completed is None else command.completed(client, given, document)


def _call(client: SystemClient, operation: Operation, route: Route, given: Mapping[str, Any]) -> Document:
    path = _PLACE.sub(lambda found: quote(str(given[found[1]]), safe=""), f"/api{route.path}")
    queried = (*operation.in_query(route), *(parameter.name for parameter in route.parameters))
    query = {name: _text(given[name]) for name in queried if name in given and f"{{{name}}}" not in route.path}
    if route.method == "GET":
        return client.get(path, **query)
    body = json_body({name: given[name] for name in operation.in_body(route) if name in given})
    return client.post(f"{path}?{urlencode(query)}" if query else path, body)


def _checked(operation: Operation, name: str, value: Any) -> Any:
    field = operation.arguments.model_fields.get(name)
    if value is not None and name.endswith("_id") and (field is None or _declared(field.annotation) is UUID):
        return as_uuid(value)
    return value.value if isinstance(value, Enum) else value


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


@cache
def _commands() -> re.Pattern[str]:
    """What stands before the options in a line that names a command."""
    words = {command.words for operation in OPERATIONS for command in operation.commands}
    groups = {command.words.rpartition(" ")[0] for o in OPERATIONS for command in o.commands if command.alone}
    longest_first = sorted(words | groups, key=len, reverse=True)
    return re.compile(rf"\bbutlers (?:{'|'.join(longest_first)})\b")


def _more(context: typer.Context, command: Command, document: Document) -> Iterator[str]:
    """How to go on with a listing."""
    cursor = next((option.argument for option in command.options if option.argument in _CURSORS), None)
    if cursor is not None and document["next_cursor"]:
        names = {p.name: p.opts[0] for p in context.command.params if p.name not in (*_SHARED, *_CURSORS)}
        listed_alone = isinstance(context.command, TyperGroup)
        words = command.words.rpartition(" ")[0] if listed_alone else command.words
        again = " ".join(("more: butlers", words, *_given(context, names)))
        yield Hint(f"{again} --{cursor} {shlex.quote(document['next_cursor'])}")


def _given(context: typer.Context, options: Mapping[str | None, str] | Mapping[str, str]) -> Iterator[str]:
    """Those of the options that were given, as they would be given again."""
    for name, option in options.items():
        source = context.get_parameter_source(name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name or ""]
        text = value.value if isinstance(value, Enum) else value
        yield option if isinstance(value, bool) else f"{option} {shlex.quote(str(text))}"


def _lists_by_itself(app: typer.Typer, command: Callable[..., None]) -> None:
    """Let the group take the listing's options, and nothing that belongs to one of its other commands."""

    def listing(**given: Any) -> None:
        context: typer.Context = given["context"]
        names = {parameter.name: parameter.opts[0] for parameter in context.command.params}
        if context.invoked_subcommand is None:
            command(**given)
        elif misplaced := next(_given(context, names), None):
            option = misplaced.partition(" ")[0]
            raise typer.BadParameter(f"{option} belongs behind `{context.invoked_subcommand}`")

    listing.__doc__ = command.__doc__
    _take(listing, list(inspect.signature(command).parameters.values()))
    app.callback(invoke_without_command=True)(listing)


def _take(function: Any, parameters: list[inspect.Parameter]) -> None:
    """Typer reads the parameters of a function from its signature and annotations."""
    function.__signature__ = inspect.Signature(parameters)
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameter(option: Option, operation: Operation, route: Route) -> inspect.Parameter:
    field = operation.arguments.model_fields.get(option.argument)
    own = next((parameter for parameter in route.parameters if parameter.name == option.argument), None)
    in_path = f"{{{option.argument}}}" in route.path
    default = ... if in_path else _default(option, field, own)
    kind, checks = _kind(option, field)
    if option.choices and isinstance(default, str):
        default = kind(default)
    if option.positional or in_path:
        info: Any = typer.Argument(help=option.help, metavar=option.metavar, **checks)
    else:
        info = typer.Option(*([option.flag] if option.flag else []), help=option.help, **checks)
    annotation = kind if default is not None else kind | None
    empty = inspect.Parameter.empty if default is ... else default
    return _keyword(option.argument, Annotated[annotation, info], empty)


def _default(option: Option, field: FieldInfo | None, own: Parameter | None) -> Any:
    if option.negates:
        return False
    if option.default is not ...:
        return option.default
    if own is not None:
        return own.default
    return ... if field is None or field.is_required() else field.get_default()


def _kind(option: Option, field: FieldInfo | None) -> tuple[Any, dict[str, Any]]:
    """What typer reads the text as, and how it checks it."""
    declared = _declared(field.annotation) if field is not None else type(option.default)
    if option.choices:
        return _choices(option, declared), {}
    if declared is int and field is not None:
        return int, dict(_bounds(field))
    if declared is AwareDatetime:
        return str, {"callback": _moment}
    if get_origin(declared) is list or option.parse is not None:
        return list[str], {}
    return (bool if declared is bool else str), {}


def _declared(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        rest = [choice for choice in get_args(kind) if choice is not type(None)]
        kind = rest[0] if len(rest) == 1 else Literal[tuple(word for choice in rest for word in get_args(choice))]
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _choices(option: Option, declared: Any) -> Any:
    if isinstance(declared, type) and issubclass(declared, Enum):
        return declared
    words = option.choices() if callable(option.choices) else get_args(declared)
    return StrEnum(option.argument, {word.upper(): word for word in words})


def _bounds(field: FieldInfo) -> Iterator[tuple[str, Any]]:
    inner = [bound for choice in get_args(field.annotation) for bound in getattr(choice, "__metadata__", ())]
    for bound in (*field.metadata, *(bound for info in inner for bound in getattr(info, "metadata", ()))):
        if isinstance(bound, Ge):
            yield "min", bound.ge
        elif isinstance(bound, Le):
            yield "max", bound.le


def _moment(text: str | None) -> str | None:
    try:
        whole = text is None or datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        whole = False
    if not whole:
        raise typer.BadParameter("must be a moment with an offset, like 2026-01-31T09:00:00Z")
    return text
