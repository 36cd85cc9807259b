"""Commands that a person writes in a chat, such as `/mute 2h`: carried out without a router, a butler or a model.

    claimed request ── is its text a known command, of a known contact? ── no ──> routing, as always
                              │ yes
                         the command's `run` -> its answer, or what is wrong and how it is used

The request was deduplicated and its sender was checked at the door, and it ends as every request does. A request may be
worked on again after a crash, so what a command changes must be keyed by `ChatCall.request_id`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from butlers.channels.registry import channel_of, written_names
from butlers.contacts.people import People, PersonRecord
from butlers.contracts.envelope import RequestContext
from butlers.errors import ValidationError
from butlers.switchboard.requests.inbox import ClaimedMessage

LONGEST_COMMAND = 200  # characters: whatever is longer is a message
_COMMAND = re.compile(r"/(?P<name>[a-z_]{1,32})(?:@(?P<bot>[a-z0-9_]{1,64}))?(?P<rest>\s[^\n\r]*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """One use of a command."""

    person: PersonRecord
    channel: str
    identity: str  # of the person on the channel
    arguments: str  # what stands behind the command, in one line
    request_id: UUID
    received_at: datetime

    @property
    def sender(self) -> str:
        return f"{self.channel}:{self.identity}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCommand:
    name: str  # without the slash
    usage: str  # shown when it cannot be understood
    run: Callable[[ChatCall], Awaitable[str]]  # the answer; a ValidationError is told with the usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    command: str
    text: str


class ChatCommands:
    """The commands there are. A text that is none of them is nobody's business here."""

    def __init__(self, people: People, commands: Iterable[ChatCommand] = ()) -> None:
        self._people = people
        self._commands: dict[str, ChatCommand] = {}
        self.add(*commands)

    def add(self, *commands: ChatCommand) -> None:
        for command in commands:
            if command.name in self._commands:
                raise ValueError(f"there are two chat commands /{command.name}")
            self._commands[command.name] = command

    async def answer(self, message: ClaimedMessage) -> ChatAnswer | None:
        """What the person is told; None: it is no command, or of a person who is no contact."""
        found = self.find(message)
        if found is None:
            return None
        command, arguments = found
        context, sender = message.context, sender_of(message.context)
        known = await self._people.find_people([sender])
        if sender not in known.people:
            return None
        call = ChatCall(
            person=known.people[sender],
            channel=context.source_channel,
            identity=context.source_sender_identity,
            arguments=arguments,
            request_id=context.request_id,
            received_at=message.ref.received_at,
        )
        try:
            text = await command.run(call)
        except ValidationError as error:
            text = f"That did not work: {error.message}.\nIt goes like this: {command.usage}"
        return ChatAnswer(command=command.name, text=text)

    def find(self, message: ClaimedMessage) -> tuple[ChatCommand, str] | None:
        """The command that a message is, with what stands behind it."""
        context = message.context
        inbound = channel_of(context.source_channel).inbound
        if inbound is None or context.source_channel not in written_names() or message.pinned_target is not None:
            return None
        for line in inbound.command_lines(message.text, message.raw_payload):
            read = read_command(line, bot=context.source_endpoint_identity)
            if read is not None and read[0] in self._commands:
                return self._commands[read[0]], read[1]
        return None


def sender_of(context: RequestContext) -> str:
    """The reference by which the sender is found among the contacts."""
    return f"{context.source_channel}:{context.source_sender_identity}"


def read_command(line: str, *, bot: str) -> tuple[str, str] | None:
    """The name and the arguments of `/name arguments`; None for other texts, and for another bot's `/name@bot`."""
    text = line.strip()
    if len(text) > LONGEST_COMMAND or (found := _COMMAND.fullmatch(text)) is None:
        return None
    if found["bot"] is not None and found["bot"].casefold() != bot.removeprefix("@").casefold():
        return None
    return found["name"].casefold(), " ".join((found["rest"] or "").split())
