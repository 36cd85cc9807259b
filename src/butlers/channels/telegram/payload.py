"""Telegram's addresses and updates, as far as others ask about them. Pure; nothing in an update is trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_CHAT = re.compile(r"-?[0-9]{1,20}|@[A-Za-z][A-Za-z0-9_]{3,31}")
_CHAT_NUMBER = re.compile(r"(-?)0*(0|[1-9][0-9]*)")
_OF_OTHERS = ("forward_origin", "forward_date", "forward_from", "via_bot")


def canonical(address: str) -> str:
    """`@name` lower-cased, a chat's number without leading zeros."""
    text = address.strip()
    number = _CHAT_NUMBER.fullmatch(text)
    return f"{number[1]}{number[2]}" if number else text.lower()


def problem(address: str) -> str | None:
    return None if _CHAT.fullmatch(address) else "is not a Telegram chat: digits (a group's begin with -) or @name"


def person(identity: str) -> str:
    """A person's messages carry the person's number; a name or a group is only where to write to."""
    number = identity.strip()
    if not (number.isascii() and number.isdigit()):
        raise ValueError("must be the number of a Telegram user, as `butlers senders refused` shows it")
    return number


def source_event(raw: Any) -> dict[str, Any] | None:
    """The number of the message in an update: `{"message": {"message_id": 7, ...}, ...}`."""
    match raw:
        case {"message": {"message_id": int(message_id)}} if not isinstance(message_id, bool):
            return {"message_id": message_id}
    return None


def replied_to(raw: Any, endpoint: str) -> str | None:
    """The text of our own bot's message that an update replies to; another bot may write what it likes."""
    match raw:
        case {"message": {"reply_to_message": {"from": {"is_bot": True} as sender, "text": str(text)}}}:
            return text if str(sender.get("username", "")).casefold() == endpoint.casefold() else None
    return None


def command_lines(text: str, raw: Any) -> tuple[str, ...]:
    """All of the message, unless somebody else wrote its words: forwarded, or put there by a bot."""
    match raw:
        case {"message": Mapping() as message} if any(mark in message for mark in _OF_OTHERS):
            return ()
    return (text,)
