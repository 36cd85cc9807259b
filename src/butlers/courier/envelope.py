"""The public envelope: what a producer sends and a subscriber gets.

{"id": "e-91a", "ts": "2025-10-18T19:55:00Z", "from": "architect", "to": "agents/Jen/inbox", "type": "sprint.assign",
 "tags": ["sprint"], "headers": {"priority": "normal"}, "payload": {"title": "Plan the CLI"}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

import pydantic
from pydantic import ConfigDict, Field, StringConstraints
from pydantic_core import from_json, to_json

from butlers.contracts.envelope import Timestamp, field_errors, holds_nul
from butlers.courier.errors import InvalidEnvelope
from butlers.courier.names import check_stream

MOST_TAGS = 64
LONGEST = 256  # characters of a name
LONGEST_HEADER = 1_024
Short = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST)]
Header = Annotated[str, StringConstraints(max_length=LONGEST_HEADER)]


class Envelope(pydantic.BaseModel):
    """Checked in full before anything happens; on the way it is plain JSON data."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    id: Short = Field(description="the idempotency key: a stream takes an id once within its recent ones")
    ts: Timestamp
    to: Short = Field(description="the stream, such as agents/Jen/inbox")
    type: Short
    payload: Any
    from_: Short | None = Field(default=None, alias="from")
    schema_: Short | None = Field(default=None, alias="schema")
    version: int | None = None
    corr: Short | None = Field(default=None, description="what belongs together, such as a request's id")
    refs: Annotated[list[Short], Field(max_length=MOST_TAGS)] | None = None
    tags: Annotated[list[Short], Field(max_length=MOST_TAGS)] | None = None
    headers: Annotated[dict[Short, Header], Field(max_length=MOST_TAGS)] | None = None
    partition_key: Short | None = Field(
        default=None, alias="partitionKey", description="messages with one key are delivered one after the other"
    )


def check_envelope(document: Any, *, to: str | None = None) -> dict[str, Any]:
    """The envelope as data. `to`: the stream that the request names beside it; both must agree."""
    if not isinstance(document, Mapping):
        raise InvalidEnvelope("must be an object", field="envelope")
    given = dict(document) if "to" in document or to is None else {**document, "to": to}
    if not is_plain(given):
        _check_by_model(given)
    if to is not None and given["to"] != to:
        raise InvalidEnvelope("to differs from the stream that the request names", field="to")
    check_stream(given["to"])
    if _may_hold_nul(given) and holds_nul(given):
        raise InvalidEnvelope("must not contain NUL characters", field="envelope")
    return given


def _check_by_model(given: dict[str, Any]) -> None:
    try:
        Envelope.model_validate(given)
    except pydantic.ValidationError as error:
        first = next(iter(field_errors(error)))
        raise InvalidEnvelope(f"{first.field or 'envelope'} {first.error}", field=first.field) from None


def _may_hold_nul(given: dict[str, Any]) -> bool:
    """Written as JSON, a NUL is always an escape; that takes a quarter of the time of looking at every string."""
    try:
        return b"\\u0000" in to_json(given)
    except ValueError:
        return True


# --- the usual envelope, without the model --------------------------------------------------------------------------


def is_plain(given: Mapping[str, Any]) -> bool:
    """Whether every field is of the usual form, which `Envelope` takes. Strictly less than it takes: what is not ASCII,
    for example, is left to it. A third of the time of the model.
    """
    for name, value in given.items():
        check = _PLAIN.get(name)
        if check is None or not check(value):
            return False
    return given.keys() >= _REQUIRED


def _is_short(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= LONGEST and value.isascii()


def _is_header(value: Any) -> bool:
    return type(value) is str and len(value) <= LONGEST_HEADER and value.isascii()


def _are_short(value: Any) -> bool:
    return type(value) is list and len(value) <= MOST_TAGS and all(map(_is_short, value))


def _are_headers(value: Any) -> bool:
    if type(value) is not dict or len(value) > MOST_TAGS:
        return False
    return all(map(_is_short, value)) and all(map(_is_header, value.values()))


def _is_timestamp(value: Any) -> bool:
    if type(value) is not str or not _TIMESTAMP.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


_REQUIRED = {"id", "ts", "to", "type", "payload"}
_TIMESTAMP = re.compile(r"[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|\+00:00)")
_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("id", "to", "type", "from", "schema", "corr", "partitionKey"), _is_short),
    "ts": _is_timestamp,
    "payload": lambda _: True,
    "version": lambda value: type(value) is int,
    "refs": _are_short,
    "tags": _are_short,
    "headers": _are_headers,
}


def read_json(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        raise InvalidEnvelope("is not valid JSON") from None
