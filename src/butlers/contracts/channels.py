"""Names of channels and providers in envelopes: those that the registry of channels knows when a document is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticKnownError, core_schema

from butlers.channels.registry import inbound_names, outbound_names, provider_names, written_names

# The contract names it beside the installed ones, so that records of a package that was removed can be read.
_RESERVED_SOURCES = ("slack",)


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
