"""What people wrote becomes episodes of Switchboard's memory, beside the path of the message and never in its way.

Without a model no sessions leave episodes; the messages themselves are what there is to learn from.
What a crash leaves on the list is forgotten: an episode is a help, not a record.
"""

from __future__ import annotations

import asyncio
from collections import deque

from butlers.butler.memory.episodes import Episodes, NewEpisode, importance, shortened
from butlers.butler.memory.extraction import MAX_NAME
from butlers.clock import Clock
from butlers.switchboard.requests.inbox import ClaimedMessage
from butlers.telemetry import get_logger

log = get_logger("butlers.memory")

SOURCE = "message"
MOST_OFFERED = 1_000


class MemoryCapture:
    def __init__(self, *, episodes: Episodes, clock: Clock) -> None:
        self._episodes = episodes
        self._clock = clock
        self._offered: deque[NewEpisode] = deque(maxlen=MOST_OFFERED)
        self._wake = asyncio.Event()

    def offer(self, message: ClaimedMessage, _decision: object = None) -> None:
        """A message that was dealt with; one that an operator put back was remembered the first time."""
        if message.override is not None:
            return
        speaker = message.context.speaker
        self._offered.append(
            NewEpisode(
                source=SOURCE,
                content=shortened(message.text),
                speaker=shortened(speaker, MAX_NAME),
                importance=importance(message.text, speaker),
                request_id=message.context.request_id,
            )
        )
        self._wake.set()

    async def run(self) -> None:
        """Write down what was offered until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._offered:
                try:
                    await self._episodes.store(self._offered.popleft(), now=self._clock.now())
                except Exception as error:
                    log.warning("an episode was not kept", error=error)
