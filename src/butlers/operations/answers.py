"""How the HTTP API answers: JSON bodies and typed errors; and how it reads the JSON in a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response

from butlers.contracts.envelope import holds_nul, invalid
from butlers.errors import ClassifiedError, FieldError, ValidationError
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
