"""`relationship.record`: what Switchboard took out of a message, kept as a note beside what people said themselves.

The key is the request and the place of the signal in it, so a repeat records nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from pydantic import StringConstraints

from butlers.butler.identity import Caller
from butlers.butler.surface import Tool
from butlers.clock import Clock
from butlers.contracts.envelope import Identity, RequestId, Value
from butlers.storage.database import Database
from butlers.storage.queries import Queries

RELATIONSHIP = "relationship"
_SHORT = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")]


class SignalArguments(Value):
    request_id: RequestId
    key: Annotated[str, StringConstraints(pattern=r"^extraction-[0-9]{1,4}$")]
    signal_type: _SHORT
    contact_hint: str | None = None
    data: dict[str, Any]
    sender: Identity
    source_channel: Identity


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
            self.clock.now(),
        )
        return {"status": "recorded", "key": signal.key}


def as_note(signal_type: str, contact_hint: str | None, data: Mapping[str, Any]) -> str:
    """A signal as a line that people read and a question finds."""
    told = ", ".join(f"{name} {value}" for name, value in data.items() if value not in (None, ""))
    return f"{contact_hint or 'Somebody'}: {signal_type.replace('_', ' ')} ({told})"
