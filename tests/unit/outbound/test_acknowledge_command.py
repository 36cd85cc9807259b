"""`/ack` concerns what had been sent when the person wrote it, however often its request is worked on."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

from butlers.contacts.people import People, PersonRecord
from butlers.daemon.compose.outbound import _acknowledge
from butlers.daemon.compose.preferences import PreferenceParts
from butlers.switchboard.chat_commands import ChatCall, ChatCommands

PERSON, REQUEST, RECEIVED = UUID(int=1), UUID(int=2), datetime(2026, 1, 5, 12, tzinfo=UTC)


class Tools:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def acknowledge(self, recipient_id: str, message_id: UUID | None, *, before: datetime | None = None) -> int:
        self.calls.append((recipient_id, message_id, before))
        return 2


async def test_the_command_acknowledges_what_came_before_it() -> None:
    tools, commands = Tools(), ChatCommands(cast("People", None))
    absent = dict.fromkeys(
        ("people", "listener", "entitlements", "gate", "preferences", "store", "links"), cast("Any", None)
    )
    parts = PreferenceParts(**absent, commands=commands, tools=[])
    parts.add_acknowledge(partial(_acknowledge, cast("Any", tools)))
    person = PersonRecord(
        id=PERSON, name="Anna", timezone=None, locale=None, preferred_channel=None, channels=frozenset()
    )
    call = ChatCall(
        person=person, channel="telegram", identity="7", arguments="", request_id=REQUEST, received_at=RECEIVED
    )
    assert await commands._commands["ack"].run(call) == "Acknowledged: 2 messages."
    assert tools.calls == [(str(PERSON), None, RECEIVED)]
