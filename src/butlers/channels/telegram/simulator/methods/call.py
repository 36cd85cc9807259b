"""One call of a bot, and what nearly every method needs: the chat it is about and the message in it."""

from __future__ import annotations

from dataclasses import dataclass

from butlers.channels.telegram.simulator.model import (
    ApiError,
    Chat,
    ChatKind,
    Message,
    bad_request,
    chat_with,
    unknown_user,
)
from butlers.channels.telegram.simulator.params import Params
from butlers.channels.telegram.simulator.state import BotState, ChatState
from butlers.channels.telegram.simulator.world import World, opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    world: World
    bot: BotState
    params: Params

    def chat(self) -> ChatState:
        """The chat that is meant, whether or not the bot may speak there."""
        if "chat_id" not in self.params:
            raise bad_request("chat_id is empty")
        chat_id = self.params.integer("chat_id")
        if chat_id is None:
            return self._chat_named(self.params.text("chat_id") or "")
        if (moved_to := self.bot.migrated.get(chat_id)) is not None:
            raise bad_request("group chat was upgraded to a supergroup chat", migrate_to_chat_id=moved_to)
        return self.bot.chats.get(chat_id) or self._unseen(chat_id)

    def open_chat(self) -> ChatState:
        """The chat that is meant, where the bot may speak."""
        held = self.chat()
        if held.chat.id in self.bot.blocked:
            raise ApiError(403, "Forbidden: bot was blocked by the user")
        return held

    def message_in(self, held: ChatState, purpose: str) -> Message:
        message_id = self.params.integer("message_id")
        if message_id is None:
            raise bad_request("message identifier is not specified")
        message = held.messages.get(message_id)
        if message is None:
            raise bad_request(f"message to {purpose} not found")
        return message

    def _chat_named(self, name: str) -> ChatState:
        wanted = name.removeprefix("@").lower() if name.startswith("@") else None
        for held in self.bot.chats.values():
            # A bot can address groups by name, people only by number.
            if held.chat.kind is not ChatKind.PRIVATE and (held.chat.username or "").lower() == wanted:
                return held
        raise bad_request("chat not found")

    def _unseen(self, chat_id: int) -> ChatState:
        if self.world.state.settings.strict_chats or chat_id == 0:
            raise bad_request("chat not found")
        self.world.commit(opened(self.bot, new_chat(chat_id)))
        return self.bot.chats[chat_id]


def new_chat(chat_id: int) -> Chat:
    if ChatKind.of(chat_id) is ChatKind.PRIVATE:
        return chat_with(unknown_user(chat_id))
    return Chat(id=chat_id, title=f"Group {abs(chat_id)}")
