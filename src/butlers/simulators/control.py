"""What the simulators' control APIs share: bodies checked field by field, one shape of refusal, counted faults."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.errors import FieldError, ValidationError
from butlers.serving.guard import LOOPBACK, Guard


def decoded(source: str | bytes) -> Any:
    """JSON whose every string can be written as UTF-8 again (a lone surrogate cannot)."""
    value = json.loads(source)
    json.dumps(value, ensure_ascii=False).encode()
    return value


BODY_LIMIT = 16 * 1024 * 1024

Endpoint = Callable[[Request], Awaitable[Any]]  # a Response, or what becomes a JSON one


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


BodyT = TypeVar("BodyT", bound=Body)


class Refused(Exception):
    """An answer other than success, on its way out."""

    def __init__(self, status: int, field: str, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.error = invalid(field, problem)


def control_route(method: str, path: str, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        try:
            reply = await endpoint(request)
        except ValidationError as error:
            return _refusal(422, error)
        except Refused as refused:
            return _refusal(refused.status, refused.error)
        return reply if isinstance(reply, Response) else JSONResponse(reply)

    return Route(f"/control{path}", answer, methods=[method])


def guarded(app: Any, host: str) -> Guard:
    """A simulator's application as it is served at `host`. What imitates a provider may be asked for by any name."""

    def is_ours(path: str) -> bool:
        return path.startswith(("/control", "/healthz"))

    def controls(path: str) -> bool:
        return path.startswith("/control")

    loopback_only = host in LOOPBACK
    return Guard(app, loopback_only=loopback_only, own_host=is_ours, json_bodies=is_ours, own_account=controls)


async def parsed_body(request: Request, model: type[BodyT]) -> BodyT:
    """The body as a value; nothing at all counts as an empty object."""
    content = await read_body(request, kind="application/json")
    try:
        given = decoded(content) if content.strip() else {}
    except (ValueError, RecursionError):
        raise Refused(400, "", "the body is not JSON in UTF-8") from None
    try:
        return model.model_validate(given)
    except pydantic.ValidationError as error:
        raise ValidationError("the request is not valid", fields=_fields(error)) from None


async def read_body(request: Request, *, kind: str) -> bytes:
    content, given = bytearray(), request.headers.get("content-type", kind).partition(";")[0].strip().lower()
    if given != kind:
        raise Refused(415, "content-type", f"must be {kind}")
    async for chunk in request.stream():
        content += chunk
        if len(content) > BODY_LIMIT:
            raise Refused(413, "", f"the body has more than {BODY_LIMIT} bytes")
    return bytes(content)


def invalid(field: str, problem: str) -> ValidationError:
    return ValidationError(problem, fields=(FieldError(field=field, error=problem),))


def unknown(field: str, problem: str) -> Refused:
    return Refused(404, field, problem)


def _refusal(status: int, error: ValidationError) -> Response:
    return JSONResponse({"error": error.describe()}, status_code=status)


def _fields(error: pydantic.ValidationError) -> tuple[FieldError, ...]:
    return tuple(
        FieldError(field=".".join(str(part) for part in problem["loc"]), error=problem["msg"])
        for problem in error.errors(include_input=False, include_url=False, include_context=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedFault:
    times: int | None = 1  # how often it still strikes; None: until removed


FaultT = TypeVar("FaultT", bound=CountedFault)


def strike(waiting: dict[int, FaultT], fault_id: int) -> None:
    """Count one strike."""
    fault = waiting[fault_id]
    if fault.times is None:
        return
    if fault.times <= 1:
        del waiting[fault_id]
    else:
        waiting[fault_id] = replace(fault, times=fault.times - 1)
