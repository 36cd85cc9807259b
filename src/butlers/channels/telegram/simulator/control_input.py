"""What the control API takes in: strict, with every wrong field named at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from butlers.channels.telegram.simulator.api import GET_UPDATES
from butlers.channels.telegram.simulator.faults import ANY_METHOD, FaultKind
from butlers.channels.telegram.simulator.methods import METHODS
from butlers.channels.telegram.simulator.params import as_integer
from butlers.simulators.control import Body, invalid

_BIGGEST = 2**52  # Telegram promises that ids fit into 52 bits

Identifier = Annotated[int, Field(gt=-_BIGGEST, lt=_BIGGEST)]


class Sender(Body):
    id: Annotated[int, Field(gt=0, lt=_BIGGEST)]
    username: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    first_name: Annotated[str, Field(min_length=1, max_length=64)] | None = None


class PostWish(Body):
    chat_id: Identifier
    sender: Sender = Field(alias="from")
    text: str
    edit_of: int | None = None
    reply_to: int | None = None


class MigrationWish(Body):
    to: Identifier | None = None


class SettingsWish(Body):
    strict_chats: bool | None = None
    enforce_limits: bool | None = None
    next_update_id: Annotated[int, Field(gt=0, lt=2**31)] | None = None


class FaultWish(Body):
    method: str
    kind: Annotated[FaultKind, Field(strict=False)]
    times: Annotated[int, Field(ge=1)] | None = 1
    chat_id: Identifier | None = None
    seconds: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 1.0
    retry_after: Annotated[int, Field(ge=1, le=86_400)] = 1
    status: Annotated[int, Field(ge=400, le=599)] = 500
    description: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0

    @field_validator("status")
    @classmethod
    def _named(cls, status: int, info: ValidationInfo) -> int:
        if info.data.get("kind") is FaultKind.ERROR_5XX and status < 500:
            raise ValueError("must be 500 or above")
        return status

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        names = {name.lower(): name for name in (*METHODS, GET_UPDATES, ANY_METHOD)}
        if method.lower() not in names:
            raise ValueError("is not a method of this simulator")
        return names[method.lower()]


def read_number(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    if name not in values and default is not None:
        return default
    number = as_integer(values.get(name))
    if number is None:
        raise invalid(name, "must be a whole number")
    return number
