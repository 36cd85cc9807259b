"""The people's side of the simulated Telegram: what users do, what the bot hears of it, and the control API,
`/control/...`, by which a test or a person is a user, reads the chats and injects faults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import Field, field_validator
from starlette.requests import Request
from starlette.routing import Route

from butlers.channels.telegram.simulator.api import GET_UPDATES, MAX_CALLS, RequestLog
from butlers.channels.telegram.simulator.formatting import MAX_TEXT
from butlers.channels.telegram.simulator.methods import METHODS, as_integer, new_chat
from butlers.channels.telegram.simulator.model import (
    ANY_METHOD,
    BIGGEST_ID,
    SUPERGROUP_BASE,
    BotFault,
    Chat,
    ChatKind,
    Identifier,
    Message,
    Update,
    User,
    Wire,
    chat_with,
    unknown_user,
)
from butlers.channels.telegram.simulator.state import BotState, Change, SimulatedTelegram, opened, queued, stored
from butlers.channels.telegram.text import utf16_length
from butlers.errors import FieldError, ValidationError
from butlers.simulators.engine import Body, control_routes, invalid, parsed_body, unknown

_COMMAND = re.compile(r"/[A-Za-z0-9_]{1,32}(@\w+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
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
    changes = queued(world, bot, kind, message.to_wire(chat, replied))
    world.commit(opened(bot, chat), stored(bot, message), *changes)
    return Posted(message=message, update=bot.pending[-1] if changes else None)


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
    if problems := tuple(FieldError(field=field, error=error) for wrong, field, error in checks if wrong):
        raise ValidationError("the message cannot be posted", fields=problems)


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


class Sender(Body):
    id: Annotated[int, Field(gt=0, lt=BIGGEST_ID)]
    username: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    first_name: Annotated[str, Field(min_length=1, max_length=64)] | None = None


class PostRequest(Body):
    chat_id: Identifier
    sender: Sender = Field(alias="from")
    text: str
    edit_of: int | None = None
    reply_to: int | None = None


class MigrationRequest(Body):
    to: Identifier | None = None


class SettingsRequest(Body):
    strict_chats: bool | None = None
    enforce_limits: bool | None = None
    next_update_id: Annotated[int, Field(gt=0, lt=2**31)] | None = None


class FaultRequest(BotFault):
    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        names = {name.lower(): name for name in (*METHODS, GET_UPDATES, ANY_METHOD)}
        if method.lower() not in names:
            raise ValueError("is not a method of this simulator")
        return names[method.lower()]


def read_number(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    if name not in values and default is not None:
        return default
    number = as_integer(values.get(name))
    if number is None:
        raise invalid(name, "must be a whole number")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlApi:
    world: SimulatedTelegram
    log: RequestLog

    def routes(self) -> list[Route]:
        own = control_routes(
            ("POST", "/messages", self._post_message),
            ("GET", "/chats", self._chats),
            ("GET", "/chats/{chat_id}/transcript", self._transcript),
            ("POST", "/chats/{chat_id}/migrate", self._migrate),
            ("POST", "/users/{user_id}/block", partial(self._set_blocked, blocked=True)),
            ("POST", "/users/{user_id}/unblock", partial(self._set_blocked, blocked=False)),
            ("GET", "/settings", lambda _request: asdict(self.world.state.settings)),
            ("POST", "/settings", self._change_settings),
            ("GET", "/requests", self._requests),
            ("POST", "/reset", self._reset),
        )
        return [*own, *self.world.faults.routes(model=FaultRequest)]

    async def _post_message(self, request: Request) -> Any:
        body = await parsed_body(request, PostRequest)
        bot = self._bot(request)
        fields = body.model_dump(exclude={"sender"})
        posted = post(self.world, bot, Post(sender=_sender(bot, body), **fields))
        return {
            "message_id": posted.message.message_id,
            "update": posted.update.to_wire() if posted.update else None,
        }

    def _chats(self, request: Request) -> Any:
        held = self._bot(request).chats.values()
        return {"chats": [one.chat.to_wire() | {"messages": len(one.messages)} for one in held]}

    def _transcript(self, request: Request) -> Any:
        chat_id = read_number(request.path_params, "chat_id")
        held = self._bot(request).chats.get(chat_id)
        if held is None and self.world.state.settings.strict_chats:
            raise unknown("chat_id", "no such chat")
        return {"chat_id": chat_id, "messages": [_line(m) for m in held.messages.values()] if held else []}

    async def _migrate(self, request: Request) -> Any:
        body = await parsed_body(request, MigrationRequest)
        chat = migrate(self.world, self._bot(request), read_number(request.path_params, "chat_id"), body.to)
        return {"migrate_to_chat_id": chat.id}

    def _set_blocked(self, request: Request, *, blocked: bool) -> Any:
        user_id = read_number(request.path_params, "user_id")
        set_blocked(self.world, self._bot(request), user_id, blocked=blocked)
        return {"user_id": user_id, "blocked": blocked}

    async def _change_settings(self, request: Request) -> Any:
        body = await parsed_body(request, SettingsRequest)
        if body.next_update_id is not None:
            bot = self._bot(request)
            if bot.pending and body.next_update_id <= bot.pending[-1].update_id:
                raise invalid("next_update_id", "must be above the updates that still wait")
            self.world.commit({"change": "updates_numbered", "bot": bot.id, "next": body.next_update_id})
        switches = body.model_dump(exclude={"next_update_id"}, exclude_none=True)
        self.world.commit({"change": "settings_changed", "settings": switches})
        return asdict(self.world.state.settings)

    def _requests(self, request: Request) -> Any:
        limit = read_number(dict(request.query_params), "limit", default=MAX_CALLS)
        return self.log.report(method=request.query_params.get("method"), limit=max(1, limit))

    def _reset(self, request: Request) -> Any:
        self.world.reset()
        self.log.clear()
        return {"reset": True}

    def _bot(self, request: Request) -> BotState:
        """The bot named by `?bot=<id>`, else the first."""
        bots = self.world.state.bots
        bot_id = read_number(dict(request.query_params), "bot", default=next(iter(bots)))
        if bot_id not in bots:
            raise unknown("bot", "no such bot")
        return bots[bot_id]


def _sender(bot: BotState, body: PostRequest) -> User:
    """Who speaks; what is not said about a known user stays as it was."""
    who = body.sender
    known = bot.chats.get(who.id)
    base = unknown_user(who.id)
    if known is not None:
        base = replace(base, username=known.chat.username, first_name=known.chat.first_name or base.first_name)
    return replace(base, first_name=who.first_name or base.first_name, username=who.username or base.username)


def _line(message: Message) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "from": "bot" if message.sender.is_bot else "user",
        "sender": message.sender.to_wire(),
        "text": message.text,
        "entities": list(message.entities),
        "reply_to": message.reply_to,
        "reactions": [message.reaction] if message.reaction else [],
        "date": message.date,
        "edited": message.edit_date is not None,
    }
