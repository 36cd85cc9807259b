"""The people's side of the world: what users do, and what the bot hears of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from butlers.channels.telegram.simulator.formatting import MAX_TEXT, utf16_length
from butlers.channels.telegram.simulator.methods import new_chat
from butlers.channels.telegram.simulator.model import (
    SUPERGROUP_BASE,
    Chat,
    ChatKind,
    Message,
    Update,
    User,
    Wire,
    chat_with,
    unknown_user,
)
from butlers.channels.telegram.simulator.state import BotState, Change, SimulatedTelegram, opened, queued, stored
from butlers.errors import FieldError, ValidationError
from butlers.simulators.control import invalid

_COMMAND = re.compile(r"/[A-Za-z0-9_]{1,32}(@\w+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What a user wants to say."""

    chat_id: int
    sender: User
    text: str
    edit_of: int | None = None  # message_id of the user's own earlier message
    reply_to: int | None = None  # message_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    message: Message
    update: Update | None  # None: the bot did not ask for this kind


def post(world: SimulatedTelegram, bot: BotState, body: Post) -> Posted:
    _check(bot, body)
    chat = _chat_of(bot, body)
    message = _edited(world, bot, body) if body.edit_of is not None else _written(world, bot, chat, body)
    held = bot.chats.get(chat.id)
    replied = held.messages.get(message.reply_to or 0) if held else None
    kind = "message" if body.edit_of is None else "edited_message"
    told = queued(world, bot, kind, message.to_wire(chat, replied))
    world.commit(opened(bot, chat), stored(bot, message), *told)
    return Posted(message=message, update=bot.pending[-1] if told else None)


def set_blocked(world: SimulatedTelegram, bot: BotState, user_id: int, *, blocked: bool) -> None:
    """A user shuts the bot out, or lets it in again; the bot is told, as in the real service."""
    if (user_id in bot.blocked) == blocked:
        return
    change: Change = {"change": "user_blocked", "bot": bot.id, "user_id": user_id, "blocked": blocked}
    world.commit(change, *queued(world, bot, "my_chat_member", _membership(world, bot, user_id, blocked)))


def migrate(world: SimulatedTelegram, bot: BotState, chat_id: int, to: int | None) -> Chat:
    """Turn a basic group into a supergroup: a new chat with a new id, the old one only points there."""
    target = SUPERGROUP_BASE - abs(chat_id) if to is None else to
    if ChatKind.of(chat_id) is not ChatKind.GROUP or chat_id in bot.migrated:
        raise invalid("chat_id", "only a basic group that has not moved yet can become a supergroup")
    if ChatKind.of(target) is not ChatKind.SUPERGROUP or target in bot.chats:
        raise invalid("to", "must be the id of a supergroup that does not exist yet")
    old = bot.chats[chat_id].chat if chat_id in bot.chats else new_chat(chat_id)
    chat = replace(old, id=target)
    moved: Change = {"change": "chat_migrated", "bot": bot.id, "from": chat_id, "to": target}
    world.commit(opened(bot, chat), moved)
    return chat


def _check(bot: BotState, body: Post) -> None:
    problems = [FieldError(field=field, error=error) for field, error in _problems(bot, body)]
    if problems:
        raise ValidationError("the message cannot be posted", fields=tuple(problems))


def _problems(bot: BotState, body: Post) -> list[tuple[str, str]]:
    held = bot.chats.get(body.chat_id)
    messages = held.messages if held else {}
    edited = messages.get(body.edit_of or 0)
    private = ChatKind.of(body.chat_id) is ChatKind.PRIVATE
    checks = (
        (body.chat_id == 0, "chat_id", "must not be zero"),
        (private and body.chat_id != body.sender.id, "from.id", "in a private chat it is the chat's own id"),
        (private and body.chat_id in bot.blocked, "chat_id", "this user has blocked the bot; unblock first"),
        (body.chat_id in bot.migrated, "chat_id", "this group has become a supergroup; post there"),
        (not body.text.strip(), "text", "must not be empty"),
        (utf16_length(body.text) > MAX_TEXT, "text", f"must not be longer than {MAX_TEXT} UTF-16 units"),
        (
            body.edit_of is not None and (edited is None or edited.sender.id != body.sender.id),
            "edit_of",
            "must be a message of this user in this chat",
        ),
        (body.reply_to is not None and body.reply_to not in messages, "reply_to", "no such message here"),
    )
    return [(field, error) for wrong, field, error in checks if wrong]


def _chat_of(bot: BotState, body: Post) -> Chat:
    if ChatKind.of(body.chat_id) is ChatKind.PRIVATE:
        return chat_with(body.sender)
    held = bot.chats.get(body.chat_id)
    return held.chat if held else new_chat(body.chat_id)


def _written(world: SimulatedTelegram, bot: BotState, chat: Chat, body: Post) -> Message:
    return Message(
        message_id=bot.message_id_for(chat),
        chat_id=chat.id,
        date=world.unix_time(),
        sender=body.sender,
        text=body.text,
        entities=_commands(body.text),
        reply_to=body.reply_to,
    )


def _edited(world: SimulatedTelegram, bot: BotState, body: Post) -> Message:
    before = bot.chats[body.chat_id].messages[body.edit_of or 0]
    return replace(
        before, text=body.text, entities=_commands(body.text), edit_date=world.unix_time(), sender=body.sender
    )


def _commands(text: str) -> tuple[Wire, ...]:
    found = _COMMAND.match(text)
    return ({"type": "bot_command", "offset": 0, "length": found.end()},) if found else ()


def _membership(world: SimulatedTelegram, bot: BotState, user_id: int, blocked: bool) -> Wire:
    chat = bot.chats[user_id].chat if user_id in bot.chats else new_chat(user_id)
    me = bot.bot.user.to_wire()
    member, kicked = {"user": me, "status": "member"}, {"user": me, "status": "kicked", "until_date": 0}
    return {
        "chat": chat.to_wire(),
        "from": unknown_user(user_id).to_wire() | {"first_name": chat.first_name or ""},
        "date": world.unix_time(),
        "old_chat_member": member if blocked else kicked,
        "new_chat_member": kicked if blocked else member,
    }
