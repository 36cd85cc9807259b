"""HTTP routes from the declarations of operations.

Whoever may see the system may read. Only a person with an operator's token may change something; the butler that
carries the operation out hears the person's name as `decided_by`. It checks the arguments, so a refusal here is the
refusal there, with the HTTP status of its type.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, Union, get_args, get_origin
from uuid import UUID

from fastapi import FastAPI, Query
from pydantic.fields import FieldInfo
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response

from butlers.contracts.envelope import holds_nul, invalid
from butlers.errors import ClassifiedError, FieldError, Forbidden, ValidationError
from butlers.operations.operation import BUTLERS, Operation, Role, Route, Target
from butlers.serving.guard import NUL


class Refused(Exception):
    """An answer other than success, with a status that the type of the error does not say."""

    def __init__(self, status: int, error: ClassifiedError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


def json_answer(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status_code=status, media_type="application/json")


def error_answer(status: int, error: ClassifiedError) -> Response:
    response = json_answer({"error": {"fields": []} | error.describe()}, status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def answer_refusal(_request: Request, refused: Exception) -> Response:
    if not isinstance(refused, Refused):
        raise refused
    return error_answer(refused.status, refused.error)


async def answer_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ClassifiedError):
        raise error
    return error_answer(error.http_status, error)


def json_object(body: bytes) -> dict[str, Any]:
    try:
        document = from_json(body)
    except ValueError:
        raise invalid("", "is not valid JSON") from None
    if not isinstance(document, dict):
        raise invalid("", "must be a JSON object")
    return document


def fields(body: bytes, allowed: tuple[str, ...]) -> dict[str, Any]:
    """The object in a body; a field that does not belong there is refused and not passed on."""
    document = json_object(body)
    if unknown := sorted(document.keys() - set(allowed)):
        raise invalid(unknown[0], f"is not a known field; there are {', '.join(allowed)}")
    if nul := next((name for name, value in document.items() if holds_nul(value)), None):
        raise invalid(nul, NUL)
    return document


def bad_parameters(problems: Sequence[Mapping[str, Any]]) -> ValidationError:
    """What FastAPI found wrong with an address, in the words of the other doors."""
    fields = tuple(FieldError(field=str(problem["loc"][-1]), error=_message(problem)) for problem in problems)
    return ValidationError("; ".join(f"{f.field}: {f.error}" for f in fields) or "a parameter is wrong", fields=fields)


def _message(problem: Mapping[str, Any]) -> str:
    match problem["type"]:
        case "uuid_parsing" | "uuid_type":
            return "must be a UUID"
        case "int_parsing" | "int_type":
            return "must be a whole number"
        case "string_pattern_mismatch":
            return "cannot be a name"
    words = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return words[:1].lower() + words[1:]


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
    # By operation: what the door carries out itself, because it reads the body as it comes.
    own: Mapping[str, Callable[[Any, Request], Awaitable[dict[str, Any]]]] = field(default_factory=dict)

    async def answer(self, request: Request, operation: Operation, route: Route, given: dict[str, Any]) -> Response:
        caller: Caller = self.caller_of(request)
        self._check(caller, operation, route)
        if operation.name in self.own:
            return json_answer(await self.own[operation.name](caller, request), route.status)
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
