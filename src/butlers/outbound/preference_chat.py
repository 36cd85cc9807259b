"""What a person changes by a command in a chat: `/mute`, `/unmute`, `/quiet`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from butlers.clock import Clock
from butlers.contacts.people import PersonRecord
from butlers.contracts.envelope import invalid
from butlers.outbound.mutes import read_mute_end, read_quiet_range
from butlers.outbound.preference_tools import NO_ZONE, OFF, quiet_window
from butlers.outbound.preferences import ChangedBy, PreferenceStore
from butlers.outbound.quiet_hours import zone

MUTE_USAGE = "/mute 2h, /mute 3d, /mute until 18:00, or /mute 2h invoice for one kind of message"
UNMUTE_USAGE = "/unmute"
QUIET_USAGE = "/quiet 22:00-07:00, or /quiet off"
_UNTIL = "until"


class Call(Protocol):
    """What is needed of a chat command (`switchboard/chat_commands.py`)."""

    @property
    def person(self) -> PersonRecord: ...

    @property
    def arguments(self) -> str: ...

    @property
    def request_id(self) -> UUID: ...

    @property
    def received_at(self) -> datetime: ...

    @property
    def sender(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceChat:
    store: PreferenceStore
    clock: Clock

    async def mute(self, call: Call) -> str:
        duration, event = split_mute(call.arguments)
        timezone = _zone(call)
        # From when the person wrote it: a repeat of the request comes to the same moment.
        until = read_mute_end(duration, now=call.received_at, timezone=timezone)
        if until <= self.clock.now():
            raise invalid("duration", "it is over already")
        await self.store.mute(str(call.person.id), until, event, by=_by(call))
        about = f"messages about {event}" if event else "messages"
        moment = until.astimezone(zone(timezone))
        return f"No {about} until {moment:%Y-%m-%d %H:%M} ({timezone}), except critical ones. /unmute ends it."

    async def unmute(self, call: Call) -> str:
        await self.store.unmute(str(call.person.id), by=_by(call))
        return "Messages arrive again."

    async def quiet(self, call: Call) -> str:
        if call.arguments.casefold() == OFF:
            await self.store.set_quiet_hours(str(call.person.id), [], by=_by(call))
            return "There are no quiet hours any more."
        start, end = read_quiet_range(call.arguments)
        window = quiet_window(start, end, _zone(call), [])
        await self.store.set_quiet_hours(str(call.person.id), [window], by=_by(call))
        return f"Quiet every day from {start} to {end} ({window.timezone}); messages wait. /quiet off ends it."


def split_mute(arguments: str) -> tuple[str, str | None]:
    """The duration and the event of `2h invoice` or `until 18:00 invoice`."""
    words = arguments.split()
    length = 2 if words[:1] and words[0].casefold() == _UNTIL else 1
    return " ".join(words[:length]), " ".join(words[length:]) or None


def _zone(call: Call) -> str:
    return call.person.timezone or NO_ZONE


def _by(call: Call) -> ChangedBy:
    return ChangedBy(name=call.sender, change_id=call.request_id)
