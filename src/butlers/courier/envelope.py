"""The public envelope: what a producer sends and a subscriber gets.

{"id": "e-91a", "ts": "2025-10-18T19:55:00Z", "from": "architect", "to": "agents/Jen/inbox", "type": "sprint.assign",
 "tags": ["sprint"], "headers": {"priority": "normal"}, "payload": {"title": "Plan the CLI"}}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isinf
from typing import Annotated, Any

import pydantic
from pydantic import ConfigDict, Field, StringConstraints
from pydantic_core import from_json

from butlers.contracts.envelope import Timestamp, field_errors, holds_nul
from butlers.courier.errors import InvalidEnvelope
from butlers.courier.names import check_stream
from butlers.courier.plain import plain_check

MOST_TAGS = 64
DEEPEST = 190  # levels of an envelope; the parser takes 200, with what is around it
# A float that may be infinite; looking for it takes far less than visiting every value. A run of digits is read once.
_LARGE = r"[eE][+]?[0-9]{3}|(?<![0-9])[0-9]{309}"
_LARGE_TEXT, _LARGE_BYTES = re.compile(_LARGE), re.compile(_LARGE.encode())
Short = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Header = Annotated[str, StringConstraints(max_length=1_024)]


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


def check_envelope(document: Any, *, to: str | None = None, nul_free: bool = False) -> dict[str, Any]:
    """The envelope as data. `to`: the stream that the request names beside it; both must agree. `nul_free`: the caller
    has looked for NUL characters (`may_hold_nul`) and found none.
    """
    if type(document) is not dict and not isinstance(document, Mapping):
        raise InvalidEnvelope("must be an object", field="envelope")
    given = dict(document) if "to" in document or to is None else {**document, "to": to}
    if not is_plain(given):
        _check_by_model(given)
    if to is not None and given["to"] != to:
        raise InvalidEnvelope("to differs from the stream that the request names", field="to")
    check_stream(given["to"])
    if not nul_free and holds_nul(given):
        raise InvalidEnvelope("must not contain NUL characters", field="envelope")
    return given


def _check_by_model(given: dict[str, Any]) -> None:
    try:
        Envelope.model_validate(given)
    except pydantic.ValidationError as error:
        first = next(iter(field_errors(error)))
        raise InvalidEnvelope(f"{first.field or 'envelope'} {first.error}", field=first.field) from None


def may_hold_nul(text: str) -> bool:
    """Of a JSON text: a NUL in it is always an escape. Looking for that takes far less than visiting every string."""
    return "\\u0000" in text


_DATE = Annotated[
    str,
    StringConstraints(
        pattern=r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|\+00:00)$", max_length=32
    ),
]
_has_plain_fields = plain_check(Envelope, ts=_DATE)


def is_plain(given: dict[str, Any]) -> bool:
    """Whether this is an envelope of the usual form; what is not is for the model to decide."""
    if not _has_plain_fields(given):
        return False
    try:
        datetime.fromisoformat(given["ts"])  # whether there is such a day
    except ValueError:
        return False
    return True


def check_depth(envelope: Any) -> None:
    """What triggers make of a message must not nest deeper than what can be read again, by us or by a subscriber."""
    level, depth = [envelope], 0
    while level := [child for value in level for child in _children(value) if isinstance(child, dict | list)]:
        depth += 1
        if depth > DEEPEST:
            raise InvalidEnvelope(f"nests deeper than {DEEPEST} levels", field="payload")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def read_json(body: bytes) -> Any:
    try:
        return parse_json(body)
    except ValueError:
        raise InvalidEnvelope("is not valid JSON") from None


def parse_json(text: str | bytes) -> Any:
    """Raises `ValueError`, also for NaN and for numbers that become infinite: no subscriber could read them."""
    document = from_json(text, allow_inf_nan=False)
    if (_LARGE_BYTES if isinstance(text, bytes) else _LARGE_TEXT).search(text) is not None:  # type: ignore[arg-type]
        _check_finite(document)
    return document


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and isinf(value):
        raise ValueError("a number is too large")
    for child in _children(value):
        _check_finite(child)
