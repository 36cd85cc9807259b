"""The values of the simulated Telegram, and how the Bot API shows them; the faults that a test asks for; the limits.

delay               wait, then answer as usual
error_5xx           refuse with a server error, nothing is accepted
too_many_requests   refuse with 429 and retry_after, nothing is accepted
refused             refuse with any code and description, nothing is accepted
unparsable          refuse to read markup: strikes only calls with a parse mode, nothing is accepted
gateway             answer like a proxy on the way, in HTML, nothing is accepted
drop_before         close the connection, nothing is accepted
drop_after          accept (stored and journaled), then close the connection without an answer
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from http.client import responses
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from butlers.errors import ButlersError
from butlers.simulators.engine import Fault

Wire = dict[str, Any]
BIGGEST_ID = 2**52  # Telegram promises that ids fit into 52 bits
Identifier = Annotated[int, Field(gt=-BIGGEST_ID, lt=BIGGEST_ID)]

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


ANY_METHOD = "*"


class FaultKind(StrEnum):
    DELAY = "delay"
    ERROR_5XX = "error_5xx"
    TOO_MANY_REQUESTS = "too_many_requests"
    REFUSED = "refused"
    UNPARSABLE = "unparsable"
    GATEWAY = "gateway"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"


class BotFault(Fault):
    method: str  # a Bot API method, or "*"
    kind: Annotated[FaultKind, Field(strict=False)]
    chat_id: Identifier | None = None  # None: any chat
    retry_after: Annotated[int, Field(ge=1, le=86_400)] = 1  # seconds, for too_many_requests
    status: Annotated[int, Field(ge=400, le=599)] = 500  # for error_5xx, refused and gateway
    description: Annotated[str, Field(min_length=1, max_length=500)] | None = None  # for error_5xx and refused

    @field_validator("status")
    @classmethod
    def _named(cls, status: int, info: ValidationInfo) -> int:
        if info.data.get("kind") is FaultKind.ERROR_5XX and status < 500:
            raise ValueError("must be 500 or above")
        return status

    def hits(self, method: str, chat_id: int | None, *, marked: bool = False) -> bool:
        if self.kind is FaultKind.UNPARSABLE and not marked:
            return False
        return self.method in (ANY_METHOD, method) and self.chat_id in (None, chat_id)

    @property
    def phrase(self) -> str:
        return responses.get(self.status, "Error")

    def as_error(self) -> ApiError | None:
        match self.kind:
            case FaultKind.ERROR_5XX | FaultKind.REFUSED:
                return ApiError(self.status, self.description or self.phrase)
            case FaultKind.TOO_MANY_REQUESTS:
                return too_many_requests(self.retry_after)
            case FaultKind.UNPARSABLE:
                return bad_request("can't parse entities: Can't find end tag corresponding to start tag \"b\"")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: str
    messages: int
    seconds: float


CHAT = Limit(name="chat", messages=5, seconds=5)
GROUP = Limit(name="group", messages=20, seconds=60)
BOT = Limit(name="bot", messages=30, seconds=1)

_Key = tuple[str, int, int]


class RateWindows:
    """What was sent lately; forgotten on restart, as it would be stale by then."""

    def __init__(self) -> None:
        self._sent: dict[_Key, deque[datetime]] = {}

    def admit(self, bot_id: int, chat_id: int, now: datetime) -> int | None:
        """Count one message, or say after how many whole seconds to come again."""
        windows = [(limit, self._window(limit, bot_id, chat_id, now)) for limit in _limits_of(chat_id)]
        waits = [_wait(limit, window, now) for limit, window in windows]
        if (longest := max(waits)) > 0:
            return max(1, math.ceil(longest))
        for _, window in windows:
            window.append(now)
        return None

    def _window(self, limit: Limit, bot_id: int, chat_id: int, now: datetime) -> deque[datetime]:
        window = self._sent.setdefault((limit.name, bot_id, 0 if limit is BOT else chat_id), deque())
        while window and (now - window[0]).total_seconds() >= limit.seconds:
            window.popleft()
        return window


def _limits_of(chat_id: int) -> tuple[Limit, ...]:
    return (CHAT, BOT) if ChatKind.of(chat_id) is ChatKind.PRIVATE else (CHAT, GROUP, BOT)


def _wait(limit: Limit, window: deque[datetime], now: datetime) -> float:
    if len(window) < limit.messages:
        return 0.0
    return limit.seconds - (now - window[0]).total_seconds()
