"""The methods of the Bot API that answer at once: plain functions from a call to its result."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from butlers.channels.telegram.simulator.formatting import Formatted, format_text
from butlers.channels.telegram.simulator.model import (
    ApiError,
    Chat,
    ChatKind,
    Message,
    Webhook,
    Wire,
    bad_request,
    chat_with,
    too_many_requests,
    unknown_user,
)
from butlers.channels.telegram.simulator.state import (
    BotState,
    ChatState,
    SimulatedTelegram,
    drop,
    drop_expired,
    opened,
    stored,
)
from butlers.simulators.engine import decoded

_TRUE = frozenset({"true", "yes", "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    world: SimulatedTelegram
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
        username = name.removeprefix("@").lower() if name.startswith("@") else None
        for held in self.bot.chats.values():
            # A bot can address groups by name, people only by number.
            if held.chat.kind is not ChatKind.PRIVATE and (held.chat.username or "").lower() == username:
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


_ACTIONS = frozenset(
    {
        *("typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice"),
        *("upload_document", "choose_sticker", "find_location", "record_video_note", "upload_video_note"),
    }
)
_GIFTS = ("unlimited_gifts", "limited_gifts", "unique_gifts", "premium_subscription", "gifts_from_channels")


def get_me(call: Call) -> Wire:
    return call.bot.bot.user.to_wire() | {
        "can_join_groups": True,
        "can_read_all_group_messages": True,
        "supports_inline_queries": False,
    }


def get_chat(call: Call) -> Wire:
    return call.chat().chat.to_wire() | {
        "accent_color_id": 0,
        "max_reaction_count": 11,
        "accepted_gift_types": dict.fromkeys(_GIFTS, False),
    }


def send_chat_action(call: Call) -> bool:
    call.open_chat()
    if call.params.text("action") not in _ACTIONS:
        raise bad_request("wrong parameter action in request")
    return True


def send_message(call: Call) -> Wire:
    formatted = _formatted(call.params)
    held = call.open_chat()
    target, optional = _reply_target(call.params)
    replied = held.messages.get(target or 0)
    if target is not None and replied is None and not optional:
        raise bad_request("message to be replied not found")
    _admit(call, held)
    message = Message(
        message_id=call.bot.message_id_for(held.chat),
        chat_id=held.chat.id,
        date=call.world.unix_time(),
        sender=call.bot.bot.user,
        text=formatted.text,
        entities=formatted.entities,
        reply_to=replied.message_id if replied else None,
    )
    call.world.commit(stored(call.bot, message))
    return message.to_wire(held.chat, replied)


def edit_message_text(call: Call) -> Wire:
    formatted = _formatted(call.params)
    held = call.open_chat()
    message = call.message_in(held, "edit")
    if message.sender.id != call.bot.id:
        raise bad_request("message can't be edited")
    if (message.text, message.entities) == (formatted.text, formatted.entities):
        raise bad_request(
            "message is not modified: specified new message content and reply markup are exactly the same "
            "as a current content and reply markup of the message"
        )
    _admit(call, held)
    edited = replace(message, text=formatted.text, entities=formatted.entities, edit_date=call.world.unix_time())
    call.world.commit(stored(call.bot, edited))
    return edited.to_wire(held.chat, held.messages.get(edited.reply_to or 0))


def delete_message(call: Call) -> bool:
    held = call.chat()
    message = call.message_in(held, "delete")
    call.world.commit(
        {
            "change": "message_deleted",
            "bot": call.bot.id,
            "chat_id": held.chat.id,
            "message_id": message.message_id,
        }
    )
    return True


def _formatted(params: Params) -> Formatted:
    return format_text(params.text("text"), params.text("parse_mode"), params.structure("entities"))


def _reply_target(params: Params) -> tuple[int | None, bool]:
    """The message to answer, and whether it may be missing; the new form wins over the old one."""
    if "reply_parameters" in params:
        body = params.mapping("reply_parameters")
        return as_integer(body.get("message_id")), bool(body.get("allow_sending_without_reply"))
    return params.integer("reply_to_message_id") or None, params.flag("allow_sending_without_reply")


def _admit(call: Call, held: ChatState) -> None:
    if not call.world.state.settings.enforce_limits:
        return
    retry_after = call.world.rates.admit(call.bot.id, held.chat.id, call.world.clock.now())
    if retry_after is not None:
        raise too_many_requests(retry_after)


ALLOWED_REACTIONS = frozenset(
    {
        *"👍👎❤🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍",
        *"🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋🖕😈😴😭🤓👻👀🎃🙈",
        *"😇😨🤝✍🤗🫡🎅🎄☃💅🤪🗿🆒💘🙉🦄😘💊🙊😎👾🤷😡",
        # Several code points each.
        *("❤️‍🔥", "👨‍💻", "🤷‍♂️", "🤷‍♀️"),
    }
)


def set_message_reaction(call: Call) -> bool:
    held = call.open_chat()
    message = call.message_in(held, "react")
    reaction = _reaction(call.params.structure("reaction"))
    call.world.commit(stored(call.bot, replace(message, reaction=reaction)))
    return True


def _reaction(reactions: Any) -> str | None:
    """The emoji asked for; none asked for means take the old one away."""
    if not reactions:
        return None
    if not isinstance(reactions, list) or not all(isinstance(reaction, dict) for reaction in reactions):
        raise bad_request("can't parse reaction types JSON object")
    if len(reactions) > 1:
        raise bad_request("REACTIONS_TOO_MANY")
    emoji = reactions[0].get("emoji")
    if reactions[0].get("type") != "emoji" or emoji not in ALLOWED_REACTIONS:
        raise bad_request("REACTION_INVALID")
    return str(emoji)


_SECRET = re.compile(r"[A-Za-z0-9_-]*")
_MAX_SECRET = 256


def set_webhook(call: Call) -> bool:
    url = call.params.text("url")
    if not url:
        return delete_webhook(call)
    webhook = Webhook(
        url=_checked_url(url),
        secret_token=_checked_secret(call.params.text("secret_token")),
        max_connections=call.params.within("max_connections", 40, 1, 100),
    )
    remember_allowed(call)
    _drop_when_asked(call)
    call.world.commit({"change": "webhook_set", "bot": call.bot.id, "webhook": asdict(webhook)})
    return True


def delete_webhook(call: Call) -> bool:
    _drop_when_asked(call)
    if call.bot.webhook is not None:
        call.world.commit({"change": "webhook_set", "bot": call.bot.id, "webhook": None})
    return True


def get_webhook_info(call: Call) -> Wire:
    drop_expired(call.world, call.bot)
    webhook, error = call.bot.webhook, call.bot.webhook_error
    info: Wire = {
        "url": webhook.url if webhook else "",
        "has_custom_certificate": False,
        "pending_update_count": len(call.bot.pending),
    }
    if webhook:
        info["max_connections"] = webhook.max_connections
    if error:
        info["last_error_date"], info["last_error_message"] = error
    return info | ({"allowed_updates": list(call.bot.allowed_updates)} if call.bot.allowed_updates else {})


def remember_allowed(call: Call) -> None:
    """The kinds a bot asks for hold until it asks for others; no list means as before."""
    if "allowed_updates" not in call.params:
        return
    kinds = call.params.structure("allowed_updates")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise bad_request("can't parse allowed_updates JSON object")
    allowed = tuple(dict.fromkeys(kinds))
    if allowed != call.bot.allowed_updates:
        call.world.commit({"change": "allowed_updates_set", "bot": call.bot.id, "allowed": list(allowed)})


def _drop_when_asked(call: Call) -> None:
    if call.params.flag("drop_pending_updates"):
        drop(call.world, call.bot, len(call.bot.pending))


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise bad_request("bad webhook: invalid URL") from None
    # Plain http is refused by the real service; a simulator mostly talks to its own machine.
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
    return url


def _checked_secret(secret: str | None) -> str | None:
    if not secret:
        return None
    if len(secret) > _MAX_SECRET:
        raise bad_request("secret token is too long")
    if not _SECRET.fullmatch(secret):
        raise bad_request("secret token contains unallowed characters")
    return secret


METHODS: dict[str, Callable[[Call], Any]] = {
    "getMe": get_me,
    "getChat": get_chat,
    "sendChatAction": send_chat_action,
    "sendMessage": send_message,
    "editMessageText": edit_message_text,
    "deleteMessage": delete_message,
    "setMessageReaction": set_message_reaction,
    "setWebhook": set_webhook,
    "deleteWebhook": delete_webhook,
    "getWebhookInfo": get_webhook_info,
}


class Params:
    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return value if value is None or isinstance(value, str) else json.dumps(value)

    def integer(self, name: str) -> int | None:
        return as_integer(self._values.get(name))

    def within(self, name: str, default: int, low: int, high: int) -> int:
        value = self.integer(name)
        return min(high, max(low, default if value is None else value))

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        return str(value).lower() in _TRUE

    def structure(self, name: str) -> Any:
        value = self._values.get(name)
        if not isinstance(value, str):
            return value
        try:
            return decoded(value)
        except ValueError:
            raise bad_request(f"can't parse {name} JSON object") from None

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.structure(name)
        if value is not None and not isinstance(value, dict):
            raise bad_request(f"can't parse {name} JSON object")
        return value or {}


def as_integer(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


async def read_params(request: Request) -> Params:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    given: dict[str, Any] = dict(request.query_params)
    if kind == "application/json":
        given |= _json_object(await request.body())
    elif kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        async with request.form() as form:
            given |= {name: value for name, value in form.items() if isinstance(value, str)}
    return Params(given)


def _json_object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        value = decoded(body)
    except UnicodeError:
        raise bad_request("strings must be encoded in UTF-8") from None
    except ValueError:
        raise bad_request("can't parse JSON object") from None
    if not isinstance(value, dict):
        raise bad_request("can't parse JSON object")
    return value
