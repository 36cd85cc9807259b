"""How the HTTP API answers: JSON bodies, typed errors, and what a butler's tool says passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.identity import Caller, Role
from butlers.butler.transport import Transport
from butlers.contracts.envelope import holds_nul, invalid
from butlers.errors import ClassifiedError, FieldError, TimeoutExceeded, UnknownTool, ValidationError
from butlers.serving.guard import NUL

ANSWER_TIMEOUT_S = 25.0  # shorter than the command line waits
LOCAL = Caller(name="local", role=Role.OPERATOR)  # whoever is on this machine and shows no token


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, error: ClassifiedError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


def may_decide(caller: Caller) -> bool:
    """Only a person with a token: a butler's own session runs on this machine, too, and must not decide for itself."""
    return caller.role is Role.OPERATOR and caller != LOCAL


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


async def passed_on(
    transport: Transport, butler: str, tool: str, arguments: dict[str, Any], *, status: int = 200
) -> Response:
    """What a butler's tool answers to these arguments, as an HTTP answer."""
    given = {name: _wire(value) for name, value in arguments.items() if value is not None}
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return json_answer(await transport.call(butler, tool, given), status)
    except TimeoutError:
        return error_answer(504, TimeoutExceeded(f"{butler} gave no answer within {ANSWER_TIMEOUT_S:g} s"))
    except UnknownTool:
        return error_answer(404, invalid("butler", _off(butler)))
    except ClassifiedError as error:
        return error_answer(error.http_status, error)


def bad_parameters(problems: Sequence[Mapping[str, Any]]) -> ValidationError:
    """What FastAPI found wrong with an address, in the words of the other doors."""
    fields = tuple(FieldError(field=str(problem["loc"][-1]), error=_said(problem)) for problem in problems)
    return ValidationError("; ".join(f"{f.field}: {f.error}" for f in fields) or "a parameter is wrong", fields=fields)


def _said(problem: Mapping[str, Any]) -> str:
    match problem["type"]:
        case "uuid_parsing" | "uuid_type":
            return "must be a UUID"
        case "int_parsing" | "int_type":
            return "must be a whole number"
        case "string_pattern_mismatch":
            return "cannot be a name"
    words = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return words[:1].lower() + words[1:]


def _off(butler: str) -> str:
    return f"approvals are off for {butler}: add [modules.approvals] to its butler.toml and start it again"


def _wire(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value
