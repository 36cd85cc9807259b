"""What to ask of the Bot API for one message: a call per part, each with its plain twin, or a reaction of its list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from butlers.channels.adapter import Outgoing
from butlers.channels.telegram.text import ParseMode, Part, parts
from butlers.errors import FieldError, ValidationError

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    body: Body
    plain_text: str | None = None  # for the case that Telegram cannot read the markup
    movable: bool = True  # it makes sense in another chat

    def to_chat(self, chat: str) -> Call:
        """The same for the chat that took this one's place; numbers of messages mean nothing there."""
        kept = {name: value for name, value in self.body.items() if name != "reply_parameters"}
        return replace(self, body=kept | {"chat_id": chat})

    def as_plain(self) -> Call:
        kept = {name: value for name, value in self.body.items() if name != "parse_mode"}
        return replace(self, body=kept | {"text": self.plain_text}, plain_text=None)


def compose(outgoing: Outgoing, *, parse_mode: ParseMode) -> tuple[Call, ...]:
    """The calls in order; raises ValidationError for what Telegram would never take."""
    if outgoing.intent == "react":
        return (_react(outgoing),)
    written = parts(outgoing.message, parse_mode=parse_mode)
    if not written:
        raise _invalid("delivery.message", "has nothing to show")
    first, *others = (_send(outgoing, part) for part in written)
    return replace(first, body={**first.body, **_answered(outgoing)}), *others


def _react(outgoing: Outgoing) -> Call:
    emoji, message_id = reaction(outgoing.emoji), outgoing.source_event.get("message_id")
    if emoji is None:
        raise _invalid("delivery.emoji", "is not among Telegram's reactions")
    if message_id is None:
        raise _invalid("request_context", "names no message to react to")
    chosen = [{"type": "emoji", "emoji": emoji}]
    body = {"chat_id": outgoing.target, "message_id": message_id, "reaction": chosen}
    return Call(method="setMessageReaction", body=body, movable=False)


def _send(outgoing: Outgoing, part: Part) -> Call:
    body = {"chat_id": outgoing.target, "text": part.plain if part.html is None else part.html}
    if part.html is None:
        return Call(method="sendMessage", body=body)
    return Call(method="sendMessage", body=body | {"parse_mode": "HTML"}, plain_text=part.plain)


def _answered(outgoing: Outgoing) -> Body:
    message_id = outgoing.source_event.get("message_id")
    if outgoing.intent != "reply" or message_id is None:
        return {}
    # The answer matters more than the thread: a deleted question must not stop it.
    return {"reply_parameters": {"message_id": message_id, "allow_sending_without_reply": True}}


def _invalid(field: str, problem: str) -> ValidationError:
    return ValidationError(f"{field} {problem}", fields=(FieldError(field=field, error=problem),))


_PRESENTATION = "\ufe0f"  # asks for the coloured form; people write it or not, Telegram compares exactly

ALLOWED = (
    *"👍👎❤🔥🥰👏😁🤔🤯😱🤬😢🎉🤩🤮💩🙏👌🕊🤡🥱🥴😍",
    *"🐳🌚🌭💯🤣⚡🍌🏆💔🤨😐🍓🍾💋🖕😈😴😭🤓👻👀🎃🙈",
    *"😇😨🤝✍🤗🫡🎅🎄☃💅🤪🗿🆒💘🙉🦄😘💊🙊😎👾🤷😡",
    *("❤️‍🔥", "👨‍💻", "🤷‍♂️", "🤷‍♀️"),  # several characters each
)


def reaction(emoji: str | None) -> str | None:
    """The emoji as Telegram spells it, or None when it is not allowed."""
    wanted = _bare(emoji or "")
    return next((allowed for allowed in ALLOWED if _bare(allowed) == wanted), None)


def _bare(emoji: str) -> str:
    return emoji.strip().replace(_PRESENTATION, "")
