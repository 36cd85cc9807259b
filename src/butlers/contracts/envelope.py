"""What all envelopes share: the base model, the field types, the names of channels and the one way to parse."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Self
from uuid import UUID

import pydantic
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic.types import UuidVersion
from pydantic_core import PydanticKnownError, core_schema, from_json, to_json

from butlers.channels.registry import inbound_names, outbound_names, provider_names, written_names
from butlers.errors import FieldError, ValidationError

MAX_TEXT = 200_000  # characters of one message, before any channel's own limit
MAX_IDENTITY = 512
MAX_COUNT = 2**63 - 1  # what a bigint column holds
_HUGE_NUMBER = re.compile(rb"\d[eE]\+?\d{2}|\d{200}")  # might be read as infinity
_SUSPICIOUS = (b"\\u0000", b"Infinity", b"NaN")  # JSON made of data may hold what cannot be stored
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}")
# The contract names these beside the installed ones, so that records of a package that was removed can be read.
_RESERVED_SOURCES = ("slack",)


@cache
def source_names() -> tuple[str, ...]:
    people, programs = written_names(), inbound_names()
    return tuple(dict.fromkeys((*people, *_RESERVED_SOURCES, *programs)))


@dataclass(frozen=True, slots=True)
class OneOf:
    """A name among those that the function returns; JSON Schema lists them."""

    names: Callable[[], tuple[str, ...]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._known, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        return {"type": "string", "enum": list(self.names())}

    def _known(self, value: Any) -> str:
        names = self.names()
        if isinstance(value, str) and value in names:
            return value
        *before, last = (repr(name) for name in names)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(before)} or {last}"})


Channel = Annotated[str, OneOf(outbound_names)]
IngestChannel = Annotated[str, OneOf(inbound_names)]
SourceChannel = Annotated[str, OneOf(source_names)]
Provider = Annotated[str, OneOf(provider_names)]


def _readable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain NUL characters")
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _timestamp(value: Any, validate: ValidatorFunctionWrapHandler) -> datetime:
    if not isinstance(value, datetime) and not (isinstance(value, str) and _RFC3339.match(value)):
        raise ValueError("must be an RFC 3339 timestamp with an offset, written as text")
    moment: datetime = validate(value)
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie between the years 1 and 9999 in UTC") from None
    return moment


Identity = Annotated[str, StringConstraints(max_length=MAX_IDENTITY), AfterValidator(_readable)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT), AfterValidator(_readable)]
# Not strict: behind a validator of ours pydantic would take datetime objects only.
Timestamp = Annotated[AwareDatetime, Field(strict=False), WrapValidator(_timestamp)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
RequestId = Annotated[UUID, UuidVersion(7), WithJsonSchema({"type": "string", "format": "uuid"})]
TraceContext = dict[str, str]  # W3C trace context headers


class Value(BaseModel):
    """A part of an envelope."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    def to_wire(self) -> dict[str, Any]:
        """The value as JSON-ready data, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def build_models(*bases: type[BaseModel]) -> None:
    """Build every model below these whose building was put off (`defer_build`). A process that serves does it once when
    it starts: the first use of a model is not safe in several threads, and a part that was only checked inside another
    model cannot be written on its own.
    """
    for base in bases:
        for model in base.__subclasses__():
            if not model.__pydantic_complete__:
                model.model_rebuild()
            build_models(model)


class Envelope(Value):
    """A whole message between systems; its version is part of it."""

    VERSION: ClassVar[str]

    @classmethod
    def parse(cls, data: bytes | str | Mapping[str, Any]) -> Self:
        """Check everything and return the envelope, or raise `ValidationError` with every wrong field."""
        encoded, document = _read(data)
        if (version := document.get("schema_version")) != cls.VERSION:
            problem = "is required" if version is None else _describe(version, cls.VERSION)
            raise invalid("schema_version", f"{problem}; supported: {cls.VERSION}")
        try:
            return cls.model_validate_json(encoded)
        except pydantic.ValidationError as error:
            fields = tuple(field_errors(error))
            more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
            problem = f"{fields[0].field or 'input'} {fields[0].error}{more}"
            raise ValidationError(f"{cls.VERSION}: {problem}", fields=fields) from None


def invalid(field: str, error: str) -> ValidationError:
    """A refusal because of one field."""
    return ValidationError.of(field, error)


def _read(data: bytes | str | Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
    """The envelope as JSON text and as data."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if isinstance(data, bytes):
        document = _decode(data)
        # Only text can spell a number that is read as infinity; data cannot hold one that was not refused before.
        if _HUGE_NUMBER.search(data):
            try:
                json.dumps(document, allow_nan=False)
            except ValueError:
                raise invalid("", "must not contain numbers beyond the range of a double") from None
        return data, document
    try:
        encoded = to_json(data)
    except (ValueError, RecursionError):
        raise invalid("", "is not JSON data") from None
    if not isinstance(data, dict) or any(mark in encoded for mark in _SUSPICIOUS):
        return encoded, _decode(encoded)
    return encoded, data


def _decode(encoded: bytes) -> dict[str, Any]:
    try:
        encoded.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid("", "is not valid UTF-8") from None
    try:
        document = from_json(encoded, allow_inf_nan=False)
    except ValueError:
        raise invalid("", "is not valid JSON") from None
    if not isinstance(document, dict):
        raise invalid("", "must be a JSON object")
    # PostgreSQL stores neither NUL nor infinity; a raw payload is kept verbatim, so it cannot be cleaned silently.
    if b"\\u0000" in encoded and holds_nul(document):
        raise invalid("", "must not contain NUL characters")
    return document


def storable(value: Any) -> Any:
    """The same JSON data as PostgreSQL stores it: NUL and lone surrogates become U+FFFD, infinity and NaN null."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list) else value


def holds_nul(value: Any) -> bool:
    """Whether a NUL stands anywhere in JSON data; PostgreSQL stores none."""
    if isinstance(value, dict):
        return any(holds_nul(key) or holds_nul(item) for key, item in value.items())
    if isinstance(value, list):
        return any(holds_nul(item) for item in value)
    return isinstance(value, str) and "\x00" in value


def _describe(version: Any, supported: str) -> str:
    family, _, number = supported.rpartition(".v")
    if isinstance(version, str) and (match := re.fullmatch(rf"{re.escape(family)}\.v(\d{{1,6}})", version)):
        return "is newer than this system speaks" if int(match[1]) > int(number) else "is not supported any more"
    return "is unknown"


def field_errors(error: pydantic.ValidationError) -> Iterator[FieldError]:
    for problem in error.errors(include_url=False, include_input=False, include_context=True):
        yield FieldError(field=".".join(map(str, problem["loc"])), error=_plain(problem))


def _plain(problem: Any) -> str:
    """Pydantic's message in our words: short, and without the rejected value."""
    match problem["type"]:
        case "extra_forbidden":
            return "is not a known field"
        case "missing":
            return "is required"
        case "value_error":
            return str(problem["ctx"]["error"])
        case "timezone_aware":
            return "must carry a UTC offset"
        # Pydantic quotes the character it stumbled over.
        case "uuid_parsing" | "uuid_type":
            return "must be a UUID"
        case "uuid_version":
            return f"must be a UUID of version {problem['ctx']['expected_version']}"
        case "literal_error" | "enum":
            return f"must be one of {problem['ctx']['expected']}"
    message = str(problem["msg"])
    return message[:1].lower() + message[1:]


class RequestContext(Value):
    """Who asked what, where and when; the same for every subrequest of one request."""

    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")
    received_at: Timestamp = Field(description="when the door took the request in: RFC 3339 with an offset")
    source_channel: SourceChannel = Field(description="the channel that the request came in by")
    source_endpoint_identity: Identity = Field(description="the bot or mailbox that it came in by")
    source_sender_identity: Identity = Field(description="who wrote it, as the channel names people")
    source_thread_identity: Identity | None = Field(
        default=None, description="the conversation it belongs to, as the channel names it"
    )
    trace_context: TraceContext = Field(
        default_factory=dict, description="W3C trace context headers, passed on unchanged"
    )

    @property
    def speaker(self) -> str:
        """Whom the channel has authenticated, as one name: a sender at another endpoint or channel is another."""
        endpoint = self.source_endpoint_identity.replace("%", "%25").replace(":", "%3A")
        return f"{self.source_channel}:{endpoint}:{self.source_sender_identity}"
