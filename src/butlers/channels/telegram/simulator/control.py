"""The control API, `/control/...`: be a user, read the chats, inject faults.

It has nothing to do with Telegram; it is the hand that moves the simulated world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from starlette.requests import Request
from starlette.routing import Route

from butlers.channels.telegram.simulator.api import GET_UPDATES, KEPT, RequestLog
from butlers.channels.telegram.simulator.faults import ANY_METHOD, Fault, FaultKind
from butlers.channels.telegram.simulator.methods import METHODS, as_integer
from butlers.channels.telegram.simulator.model import Message, User, unknown_user
from butlers.channels.telegram.simulator.posting import Post, migrate, post, set_blocked
from butlers.channels.telegram.simulator.state import BotState, SimulatedTelegram
from butlers.simulators.control import Body, Endpoint, control_route, invalid, parsed_body, unknown

_BIGGEST = 2**52  # Telegram promises that ids fit into 52 bits

Identifier = Annotated[int, Field(gt=-_BIGGEST, lt=_BIGGEST)]


class Sender(Body):
    id: Annotated[int, Field(gt=0, lt=_BIGGEST)]
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


class FaultRequest(Body):
    method: str
    kind: Annotated[FaultKind, Field(strict=False)]
    times: Annotated[int, Field(ge=1)] | None = 1
    chat_id: Identifier | None = None
    seconds: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 1.0
    retry_after: Annotated[int, Field(ge=1, le=86_400)] = 1
    status: Annotated[int, Field(ge=400, le=599)] = 500
    description: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0

    @field_validator("status")
    @classmethod
    def _named(cls, status: int, info: ValidationInfo) -> int:
        if info.data.get("kind") is FaultKind.ERROR_5XX and status < 500:
            raise ValueError("must be 500 or above")
        return status

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
        table: tuple[tuple[str, str, Endpoint], ...] = (
            ("POST", "/messages", self._post_message),
            ("GET", "/chats", self._chats),
            ("GET", "/chats/{chat_id}/transcript", self._transcript),
            ("POST", "/chats/{chat_id}/migrate", self._migrate),
            ("POST", "/users/{user_id}/block", self._block),
            ("POST", "/users/{user_id}/unblock", self._unblock),
            ("POST", "/faults", self._add_fault),
            ("GET", "/faults", self._faults),
            ("DELETE", "/faults", self._clear_faults),
            ("GET", "/settings", self._settings),
            ("POST", "/settings", self._change_settings),
            ("GET", "/requests", self._requests),
            ("POST", "/reset", self._reset),
        )
        return [control_route(*row) for row in table]

    async def _post_message(self, request: Request) -> Any:
        body = await parsed_body(request, PostRequest)
        bot = self._bot(request)
        posted = post(self.world, bot, _as_post(bot, body))
        return {
            "message_id": posted.message.message_id,
            "update": posted.update.to_wire() if posted.update else None,
        }

    async def _chats(self, request: Request) -> Any:
        held = self._bot(request).chats.values()
        return {"chats": [one.chat.to_wire() | {"messages": len(one.messages)} for one in held]}

    async def _transcript(self, request: Request) -> Any:
        chat_id = read_number(request.path_params, "chat_id")
        held = self._bot(request).chats.get(chat_id)
        if held is None and self.world.state.settings.strict_chats:
            raise unknown("chat_id", "no such chat")
        return {"chat_id": chat_id, "messages": [_line(m) for m in held.messages.values()] if held else []}

    async def _migrate(self, request: Request) -> Any:
        body = await parsed_body(request, MigrationRequest)
        chat = migrate(self.world, self._bot(request), read_number(request.path_params, "chat_id"), body.to)
        return {"migrate_to_chat_id": chat.id}

    async def _block(self, request: Request) -> Any:
        return self._set_blocked(request, blocked=True)

    async def _unblock(self, request: Request) -> Any:
        return self._set_blocked(request, blocked=False)

    def _set_blocked(self, request: Request, *, blocked: bool) -> Any:
        user_id = read_number(request.path_params, "user_id")
        set_blocked(self.world, self._bot(request), user_id, blocked=blocked)
        return {"user_id": user_id, "blocked": blocked}

    async def _add_fault(self, request: Request) -> Any:
        body = await parsed_body(request, FaultRequest)
        fault = Fault(fault_id=self.world.state.next_fault_id, **body.model_dump())
        self.world.commit({"change": "fault_added", "fault": asdict(fault)})
        return asdict(fault)

    async def _faults(self, request: Request) -> Any:
        return {"faults": [asdict(fault) for fault in self.world.state.faults.values()]}

    async def _clear_faults(self, request: Request) -> Any:
        self.world.commit({"change": "faults_cleared"})
        return {"faults": []}

    async def _settings(self, request: Request) -> Any:
        return asdict(self.world.state.settings)

    async def _change_settings(self, request: Request) -> Any:
        body = await parsed_body(request, SettingsRequest)
        if body.next_update_id is not None:
            self._renumber(self._bot(request), body.next_update_id)
        switches = body.model_dump(exclude={"next_update_id"}, exclude_none=True)
        self.world.commit({"change": "settings_changed", "settings": switches})
        return asdict(self.world.state.settings)

    def _renumber(self, bot: BotState, next_update_id: int) -> None:
        if bot.pending and next_update_id <= bot.pending[-1].update_id:
            raise invalid("next_update_id", "must be above the updates that still wait")
        self.world.commit({"change": "updates_numbered", "bot": bot.id, "next": next_update_id})

    async def _requests(self, request: Request) -> Any:
        limit = read_number(dict(request.query_params), "limit", default=KEPT)
        return self.log.report(method=request.query_params.get("method"), limit=max(1, limit))

    async def _reset(self, request: Request) -> Any:
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


def _as_post(bot: BotState, body: PostRequest) -> Post:
    return Post(
        chat_id=body.chat_id,
        sender=_sender(bot, body),
        text=body.text,
        edit_of=body.edit_of,
        reply_to=body.reply_to,
    )


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
