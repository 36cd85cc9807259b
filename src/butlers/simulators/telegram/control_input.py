"""What the control API takes in: strict, with every wrong field named at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import Request

from butlers.errors import FieldError, ValidationError
from butlers.simulators.telegram.api import GET_UPDATES
from butlers.simulators.telegram.faults import ANY_METHOD, FaultKind
from butlers.simulators.telegram.methods import METHODS
from butlers.simulators.telegram.params import as_integer, decoded

_Wish = TypeVar("_Wish", bound=BaseModel)
_BIGGEST = 2**52  # Telegram promises that ids fit into 52 bits

Identifier = Annotated[int, Field(gt=-_BIGGEST, lt=_BIGGEST)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Sender(_Strict):
    id: Annotated[int, Field(gt=0, lt=_BIGGEST)]
    username: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    first_name: Annotated[str, Field(min_length=1, max_length=64)] | None = None


class PostWish(_Strict):
    chat_id: Identifier
    sender: Sender = Field(alias="from")
    text: str
    edit_of: int | None = None
    reply_to: int | None = None


class MigrationWish(_Strict):
    to: Identifier | None = None


class SettingsWish(_Strict):
    strict_chats: bool | None = None
    enforce_limits: bool | None = None
    next_update_id: Annotated[int, Field(gt=0, lt=2**31)] | None = None


class FaultWish(_Strict):
    method: str
    kind: Annotated[FaultKind, Field(strict=False)]
    times: Annotated[int, Field(ge=1)] | None = 1
    chat_id: Identifier | None = None
    seconds: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 1.0
    retry_after: Annotated[int, Field(ge=1, le=86_400)] = 1
    status: Annotated[int, Field(ge=500, le=599)] = 500
    description: Annotated[str, Field(min_length=1, max_length=500)] | None = None

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        names = {name.lower(): name for name in (*METHODS, GET_UPDATES, ANY_METHOD)}
        if method.lower() not in names:
            raise ValueError("is not a method of this simulator")
        return names[method.lower()]


async def read_body(request: Request, shape: type[_Wish]) -> _Wish:
    body = await request.body()
    try:
        return shape.model_validate(decoded(body) if body.strip() else {})
    except pydantic.ValidationError as error:
        raise ValidationError("the request is not valid", fields=_fields(error)) from None
    except ValueError:
        raise _wrong("", "the body is not JSON in UTF-8") from None


def read_number(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    if name not in values and default is not None:
        return default
    number = as_integer(values.get(name))
    if number is None:
        raise _wrong(name, "must be a whole number")
    return number


def _fields(error: pydantic.ValidationError) -> tuple[FieldError, ...]:
    return tuple(
        FieldError(field=".".join(str(part) for part in problem["loc"]), error=problem["msg"])
        for problem in error.errors(include_input=False, include_url=False, include_context=False)
    )


def _wrong(field: str, error: str) -> ValidationError:
    return ValidationError(error, fields=(FieldError(field=field, error=error),))
