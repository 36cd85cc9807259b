"""Who may send and who may receive: `messages:{send|receive}:{channel}`, `*` allowed in the last two parts."""

from __future__ import annotations

import re
from collections.abc import Set
from enum import StrEnum

from butlers.contracts.envelope import invalid

_PERMISSION = re.compile(r"messages:(send|receive|\*):([a-z][a-z0-9_]{0,63}|\*)")


class Direction(StrEnum):
    SEND = "send"
    RECEIVE = "receive"


def permission_name(direction: Direction, channel: str) -> str:
    return f"messages:{direction.value}:{channel}"


def check_permission_name(text: str) -> str:
    """The text itself if it is a permission that can be granted."""
    if _PERMISSION.fullmatch(text) is None:
        raise invalid("permission", "must be messages:{send|receive|*}:{channel|*}")
    return text


def is_permitted(granted: Set[str], direction: Direction, channel: str) -> bool:
    ways = (
        permission_name(direction, channel),
        permission_name(direction, "*"),
        f"messages:*:{channel}",
        "messages:*:*",
    )
    return any(way in granted for way in ways)
