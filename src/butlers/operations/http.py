"""HTTP routes from the declarations of operations.

Whoever may see the system may read. Only a person with an operator's token may change something; the butler that
carries the operation out hears the person's name as `decided_by`. It checks the arguments, so a refusal here is the
refusal there, with the HTTP status of its type.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, Union, get_args, get_origin
from uuid import UUID

from fastapi import FastAPI, Query
from pydantic.fields import FieldInfo
from starlette.requests import Request
from starlette.responses import Response

from butlers.errors import ClassifiedError, Forbidden
from butlers.operations.answers import Refused, answer_error, answer_refusal, fields, json_answer, json_object
from butlers.operations.operation import BUTLERS, Operation, Role, Route, Target


class Caller(Protocol):
    """The principal of a request."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role: ...


Served = Mapping[tuple[str, str], tuple[Operation, Route]]  # by path and method


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpDoor:
    """What the routes need of the system that serves them."""

    caller_of: Callable[[Request], Any]  # raises `Refused`
    body_of: Callable[[Request], Awaitable[bytes]]
    may_decide: Callable[[Any], bool]
    call: Callable[[Any, Target, dict[str, Any]], Awaitable[dict[str, Any]]]  # caller, target, arguments

    async def answer(self, request: Request, operation: Operation, route: Route, given: dict[str, Any]) -> Response:
        caller: Caller = self.caller_of(request)
        self._check(caller, operation, route)
        arguments = {name: _text(value) for name, value in given.items() if value is not None}
        arguments = await self._body(request, operation, route) | arguments
        target = Target(butler=operation.butler, operation=operation.name)
        if route.target is not None:
            target = route.target(arguments)
        if "decided_by" in operation.arguments.model_fields:
            arguments["decided_by"] = caller.name
        return json_answer(await self.call(caller, target, arguments), route.status)

    def _check(self, caller: Caller, operation: Operation, route: Route) -> None:
        if operation.decides(route) and not self.may_decide(caller):
            raise Forbidden.of("authorization", "only a person with an operator's token may decide this")
        if route.body_is != "" and caller.role not in BUTLERS:
            raise Forbidden.of("authorization", f"{caller.role.value}s may only hand in messages")

    async def _body(self, request: Request, operation: Operation, route: Route) -> dict[str, Any]:
        if route.body_is is not None:
            document = json_object(await self.body_of(request))
            return {route.body_is: document} if route.body_is else document
        names = operation.in_body(route)
        return fields(await self.body_of(request) or b"{}", names) if names else {}


def add_operations(app: FastAPI, operations: Iterable[Operation], door: HttpDoor) -> Served:
    """Adds all routes of the operations; a fixed name goes before the {id} that would take it."""
    app.add_exception_handler(Refused, answer_refusal)
    app.add_exception_handler(ClassifiedError, answer_error)
    pairs = [(operation, route) for operation in operations for route in operation.routes]
    for operation, route in sorted(pairs, key=lambda pair: ["{" in part for part in pair[1].path.split("/")]):
        app.add_api_route(
            route.path,
            _endpoint(door, operation, route),
            methods=[route.method],
            summary=route.summary,
            status_code=route.status,
            name=operation.name.replace(".", "_"),
        )
    return {(route.path, route.method.lower()): (operation, route) for operation, route in pairs}


def _endpoint(door: HttpDoor, operation: Operation, route: Route) -> Callable[..., Awaitable[Response]]:
    async def endpoint(request: Request, **given: Any) -> Response:
        return await door.answer(request, operation, route, given)

    signature = inspect.Signature([_parameter("request", Request), *_parameters(operation, route)])
    endpoint.__signature__ = signature  # type: ignore[attr-defined]
    return endpoint


def _parameters(operation: Operation, route: Route) -> Iterator[inspect.Parameter]:
    own = {parameter.name: parameter for parameter in route.parameters}
    for name, argument in operation.arguments.model_fields.items():
        if f"{{{name}}}" in route.path and name not in own:
            yield _parameter(name, _kind(argument))
        elif name in operation.in_query(route):
            default = ... if argument.is_required() else argument.get_default()
            yield _queried(name, argument, default)
    for parameter in own.values():
        kind = parameter.annotation
        if f"{{{parameter.name}}}" not in route.path:
            kind = Annotated[kind, Query(description=parameter.description)]
        yield _parameter(parameter.name, kind, parameter.default)


def _queried(name: str, argument: FieldInfo, default: Any) -> inspect.Parameter:
    """Numbers, booleans and ids are read here; every other text is read by whoever carries the operation out."""
    kind = _kind(argument)
    if kind is int:
        return _parameter(name, Annotated[int, Query(), *argument.metadata], default)
    if kind is bool:
        return _parameter(name, bool, default)
    return _parameter(name, kind, default) if default is ... else _parameter(name, kind | None, None)


def _parameter(name: str, annotation: Any, default: Any = ...) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=empty if default is ... else default
    )


def _kind(argument: FieldInfo) -> Any:
    kind: Any = argument.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind if kind in (int, bool, UUID) else str


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value
