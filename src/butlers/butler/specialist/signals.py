"""`relationship.record`: what Switchboard took out of a message, kept as a note beside what people said themselves.

The key is the request and the place of the signal in it, so a repeat records nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StringConstraints

from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.clock import Clock
from butlers.contracts.envelope import Identity, RequestId, Value
from butlers.operations.operation import ADDS_ONCE, Result
from butlers.storage.database import Database
from butlers.storage.queries import Queries

RELATIONSHIP = "relationship"
_SHORT = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")]


class SignalArguments(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")
    key: Annotated[str, StringConstraints(pattern=r"^extraction-[0-9]{1,4}$")] = Field(
        description="the place of the signal in its request, such as extraction-0"
    )
    signal_type: _SHORT = Field(description="the kind of signal")
    contact_hint: str | None = Field(default=None, description="the person it is about, as named in the message")
    data: dict[str, Any] = Field(description="what was learned")
    sender: Identity = Field(description="who wrote the message")
    source_channel: Identity = Field(description="the channel that the request came in by")
    source_endpoint: Identity | None = Field(
        default=None, description="the bot, mailbox or client that the request came in by; absent: it was not recorded"
    )


class SignalRecorded(Result):
    status: str = Field(description="recorded")
    key: str = Field(description="the place of the signal in its request")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRecorder:
    database: Database
    queries: Queries  # of butlers.butler.specialist
    clock: Clock
    new_id: Callable[[], UUID]

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="relationship.record",
                description="Keep what a message told about a person.",
                arguments=SignalArguments,
                returns=SignalRecorded,
                hints=ADDS_ONCE,
                handler=self._record,
                owner="switchboard",
            )
        ]

    async def _record(self, _caller: Caller, signal: SignalArguments) -> dict[str, Any]:
        await self.database.execute(
            self.queries.keep,
            self.new_id(),
            signal.request_id,
            signal.key,
            "note",
            as_note(signal.signal_type, signal.contact_hint, signal.data),
            signal.sender,
            signal.source_channel,
            signal.source_endpoint,
            self.clock.now(),
        )
        return {"status": "recorded", "key": signal.key}


def as_note(signal_type: str, contact_hint: str | None, data: Mapping[str, Any]) -> str:
    """A signal as a line that people read and a question finds."""
    told = ", ".join(f"{name} {value}" for name, value in data.items() if value not in (None, ""))
    return f"{contact_hint or 'Somebody'}: {signal_type.replace('_', ' ')} ({told})"
