"""The frames of a WebSocket, both ways, as models: they check what clients send, and the AsyncAPI page is made of them.

    client -> {"credit": 10}  {"ack": "e-1"}  {"ack": ["e-1", {"id": "e-2", "lease": "..."}]}
              {"nack": "e-1", "as": "failed", "delayMs": 500}  {"extend": "e-1", "extendMs": 60000}
              {"enqueue": {...envelope...}}  {"enqueue": [{...envelope...}, ...]}
    server -> {"deliver": {...envelope...}, "stream": "...", "lease": "...", "attempt": 1}
              {"deliveries": [{"deliver": ...}, ...]}    (where the client asked for it with batch=1)
              {"enqueued": {"id": "e-1", "duplicate": false}}  {"enqueued": [{...}, {"error": {...}}, ...]}
              {"error": {"code": "...", "message": "..."}}

A frame may hold several of the client's words; they are carried out in the order above.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

import pydantic
from pydantic import ConfigDict, Field, StringConstraints

from butlers.contracts.envelope import field_errors
from butlers.courier.core import MOST_CREDIT
from butlers.courier.envelope import Envelope, parse_json
from butlers.courier.errors import CourierError, InvalidEnvelope, InvalidJson, UnknownOp
from butlers.courier.group import Nack
from butlers.courier.messages import Delivery
from butlers.courier.plain import plain_check

MOST_ACKS = 1_000  # in one frame
MOST_ENQUEUES = 1_000
Id = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Frame(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Ack(Frame):
    id: Id
    lease: Id | None = Field(default=None, description="refuses the ack unless this delivery is still the current one")
    stream: Id | None = Field(default=None, description="for subscribers of a pattern")


class ClientFrame(Frame):
    """What a subscriber says."""

    credit: int | None = Field(default=None, gt=0, le=MOST_CREDIT, description="take so many messages more")
    ack: Id | Annotated[list[Id | Ack], Field(max_length=MOST_ACKS)] | None = Field(
        default=None, description="dealt with; one id or several"
    )
    nack: Id | None = Field(default=None, description="given back")
    as_: Nack = Field(
        default="failed",
        alias="as",
        description="release: unused, not counted; failed: counted; poison: to the dead stream at once",
    )
    delay_ms: int = Field(default=0, ge=0, le=604_800_000, alias="delayMs")
    reason: Annotated[str, StringConstraints(max_length=512)] = ""
    extend: Id | None = Field(default=None, description="hold it longer")
    extend_ms: int | None = Field(default=None, ge=1, le=86_400_000, alias="extendMs")
    lease: Id | None = None
    stream: Id | None = None
    enqueue: dict[str, Any] | Annotated[list[Any], Field(min_length=1, max_length=MOST_ENQUEUES)] | None = Field(
        default=None, description="an envelope, or several"
    )
    ref: Id | None = Field(default=None, description="comes back with the answer and with errors")


class Deliver(Frame):
    deliver: Envelope
    stream: str
    lease: str
    attempt: int


class Deliveries(Frame):
    """Instead of `Deliver`, for a subscriber with batch=1 in its query."""

    deliveries: list[Deliver]


class EnqueuedFrame(Frame):
    enqueued: dict[str, Any] | list[dict[str, Any]] = Field(description="of several: what became of each")
    ref: str | None = None


class ErrorFrame(Frame):
    error: dict[str, Any]


_WORDS = ("credit", "ack", "nack", "extend", "enqueue")
_is_plain = plain_check(ClientFrame)


def read_frame(text: str | bytes) -> dict[str, Any]:
    """The words by their names on the wire. What JSON cannot hold, such as NaN, is refused: every subscriber must be
    able to read it.
    """
    try:
        document = parse_json(text)
    except ValueError:
        raise InvalidJson("is not valid JSON") from None
    if _is_plain(document) and not document.keys().isdisjoint(_WORDS):
        return cast("dict[str, Any]", document)
    try:
        frame = ClientFrame.model_validate(document)
    except pydantic.ValidationError as error:
        raise _refused(error) from None
    if not frame.model_fields_set.intersection(_WORDS):
        raise UnknownOp(f"says nothing: one of {', '.join(_WORDS)} is needed")
    return frame.model_dump(by_alias=True, exclude_unset=True)


def deliver_frame(delivery: Delivery) -> dict[str, Any]:
    return {
        "deliver": delivery.envelope,
        "stream": delivery.stream,
        "lease": delivery.lease,
        "attempt": delivery.attempt,
    }


def error_frame(error: CourierError, ref: str | None = None) -> dict[str, Any]:
    return {"error": error.describe() | ({"ref": ref} if ref is not None else {})}


def _refused(error: pydantic.ValidationError) -> CourierError:
    kinds = {one["type"] for one in error.errors(include_url=False, include_input=False, include_context=False)}
    first = next(iter(field_errors(error)))
    if "extra_forbidden" in kinds:
        return UnknownOp(f"{first.field} is no word of this protocol; there are: {', '.join(_WORDS)}")
    return InvalidEnvelope(f"{first.field or 'the frame'} {first.error}", field=first.field)
