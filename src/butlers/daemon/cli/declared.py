"""Commands from the declarations of operations: each asks a running system at the operation's HTTP route."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import quote, urlencode
from uuid import UUID

import typer
from annotated_types import Ge, Le
from pydantic import AwareDatetime
from pydantic.fields import FieldInfo

from butlers.daemon.cli.asking import Document, an_id, asking, body
from butlers.daemon.cli.options import lists_by_itself, moment
from butlers.daemon.client import SystemClient
from butlers.errors import ValidationError
from butlers.operations.operation import Command, Operation, Option, Parameter, Route

_PLACE = re.compile(r"\{(\w+)\}")


def add_commands(app: typer.Typer, group: str, *operations: Operation) -> None:
    """The commands of these operations that belong to the group, in this order."""
    for operation in operations:
        for command in operation.commands:
            under, _, word = command.words.rpartition(" ")
            if under == group:
                settings = {"ignore_unknown_options": True} if command.takes_dashes else None
                function = asked(operation, command)
                app.command(word, hidden=command.hidden, context_settings=settings)(function)
                if command.alone:
                    lists_by_itself(app, function)


def asked(operation: Operation, command: Command) -> Any:
    """The command as typer takes it."""
    route = operation.routes[command.route]

    def ask(client: SystemClient, **given: Any) -> Document:
        values = {name: _checked(operation, name, value) for name, value in given.items()} | dict(command.fixed)
        values |= {name: not values[name] for name in negated}
        values |= {option.argument: option.parse(given[option.argument] or ()) for option in parsed if option.parse}
        try:
            document = _answer(client, operation, route, values)
        except ValidationError as error:
            raise (error if command.refused is None else command.refused(error)) from None
        return document if command.completed is None else command.completed(client.get, given, document)

    ask.__name__ = operation.name
    ask.__doc__ = command.help
    parsed = [option for option in command.options if option.parse is not None]
    negated = {option.argument for option in command.options if option.negates}
    own = [_parameter(option, operation, route) for option in command.options]
    client = inspect.Parameter("client", inspect.Parameter.KEYWORD_ONLY, annotation=SystemClient)
    ask.__signature__ = inspect.Signature([client, *own])  # type: ignore[attr-defined]
    paged = any(option.argument == "cursor" for option in command.options)
    more = f"butlers {command.words} --cursor" if paged else None
    return asking(command.prints, failed=command.failed, more=more, none=command.none)(ask)


def _answer(client: SystemClient, operation: Operation, route: Route, given: Mapping[str, Any]) -> Document:
    path = _PLACE.sub(lambda found: quote(str(given[found[1]]), safe=""), f"/api{route.path}")
    queried = (*operation.in_query(route), *(parameter.name for parameter in route.parameters))
    query = {name: _text(given[name]) for name in queried if name in given and f"{{{name}}}" not in route.path}
    if route.method == "GET":
        return client.get(path, **query)
    said = body({name: given[name] for name in operation.in_body(route) if name in given})
    return client.post(f"{path}?{urlencode(query)}" if query else path, said)


def _checked(operation: Operation, name: str, value: Any) -> Any:
    field = operation.arguments.model_fields.get(name)
    if value is not None and name.endswith("_id") and (field is None or _declared(field.annotation) is UUID):
        return an_id(value)
    return value.value if isinstance(value, Enum) else value


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _parameter(option: Option, operation: Operation, route: Route) -> inspect.Parameter:
    field = operation.arguments.model_fields.get(option.argument)
    own = next((parameter for parameter in route.parameters if parameter.name == option.argument), None)
    in_path = f"{{{option.argument}}}" in route.path
    default = ... if in_path else _default(option, field, own)
    kind, bounds = _kind(option, field)
    if option.choices and isinstance(default, str):
        default = kind(default)
    annotation = kind if default is not None else kind | None
    if option.positional or in_path:
        info: Any = typer.Argument(help=option.help, metavar=option.metavar, **bounds)
    else:
        info = typer.Option(*([option.flag] if option.flag else []), help=option.help, **bounds)
    empty = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(
        option.argument,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[annotation, info],
        default=empty,
    )


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
    declared = _declared(field.annotation) if field is not None else str
    if option.choices:
        return _choices(option, declared), {}
    if declared is int and field is not None:
        return int, dict(_bounds(field))
    if declared is AwareDatetime:
        return str, {"callback": moment}
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
