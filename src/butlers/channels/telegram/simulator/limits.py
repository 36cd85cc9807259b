"""The documented message limits, as sliding windows.

Telegram does not publish its algorithm, only the rates: about one message a second to a chat with short bursts,
20 a minute to a group, 30 a second for the whole bot. A refused message does not count.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime

from butlers.channels.telegram.simulator.model import ChatKind


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
