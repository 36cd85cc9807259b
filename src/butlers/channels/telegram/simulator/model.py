"""The values of the simulated Telegram, and how the Bot API shows them.

A value knows how to become its wire form; nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from butlers.errors import ButlersError

Wire = dict[str, Any]

SUPERGROUP_BASE = -1_000_000_000_000  # ids at or below are supergroups, other negative ids are basic groups


class ApiError(ButlersError):
    """A refusal in the Bot API's own words."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters

    def to_wire(self) -> Wire:
        body: Wire = {"ok": False, "error_code": self.code, "description": self.description}
        return body | ({"parameters": self.parameters} if self.parameters else {})


def bad_request(what: str, **parameters: int) -> ApiError:
    return ApiError(400, f"Bad Request: {what}", **parameters)


def too_many_requests(retry_after: int) -> ApiError:
    return ApiError(429, f"Too Many Requests: retry after {retry_after}", retry_after=retry_after)


class ChatKind(StrEnum):
    PRIVATE = "private"
    GROUP = "group"
    SUPERGROUP = "supergroup"

    @classmethod
    def of(cls, chat_id: int) -> ChatKind:
        """Telegram's own numbering says what a chat is."""
        if chat_id > 0:
            return cls.PRIVATE
        return cls.SUPERGROUP if chat_id <= SUPERGROUP_BASE else cls.GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    id: int
    first_name: str
    username: str | None = None
    is_bot: bool = False

    def to_wire(self) -> Wire:
        body: Wire = {"id": self.id, "is_bot": self.is_bot, "first_name": self.first_name}
        return body | ({"username": self.username} if self.username else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    token: str
    user: User


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    id: int
    title: str | None = None  # groups and supergroups
    first_name: str | None = None  # private chats
    username: str | None = None

    @property
    def kind(self) -> ChatKind:
        return ChatKind.of(self.id)

    def to_wire(self) -> Wire:
        body: Wire = {"id": self.id, "type": self.kind.value}
        named = {"title": self.title, "first_name": self.first_name, "username": self.username}
        return body | {name: value for name, value in named.items() if value is not None}


def chat_with(user: User) -> Chat:
    """The private chat of a user: its id is the user's own."""
    return Chat(id=user.id, first_name=user.first_name, username=user.username)


def unknown_user(user_id: int) -> User:
    return User(id=user_id, first_name=f"User {user_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    message_id: int
    chat_id: int
    date: int  # Unix seconds
    sender: User
    text: str
    entities: tuple[Wire, ...] = ()
    reply_to: int | None = None
    edit_date: int | None = None  # Unix seconds
    reaction: str | None = None  # the one emoji our bot has put on it

    def to_wire(self, chat: Chat, replied: Message | None = None) -> Wire:
        body: Wire = {
            "message_id": self.message_id,
            "from": self.sender.to_wire(),
            "chat": chat.to_wire(),
            "date": self.date,
            "text": self.text,
        }
        optional = {
            "edit_date": self.edit_date,
            "entities": list(self.entities) or None,
            # The Bot API never nests a reply within a reply.
            "reply_to_message": replied.to_wire(chat) if replied else None,
        }
        return body | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    update_id: int
    date: int  # Unix seconds; updates are kept for a day
    kind: str  # message | edited_message | my_chat_member
    body: Wire  # as it was when it happened

    def to_wire(self) -> Wire:
        return {"update_id": self.update_id, self.kind: self.body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    url: str
    secret_token: str | None = None
    max_connections: int = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    strict_chats: bool = False  # True: a chat id never seen is refused
    enforce_limits: bool = False  # True: the documented message limits apply

    def changed(self, wanted: Wire) -> Settings:
        return replace(self, **wanted)
