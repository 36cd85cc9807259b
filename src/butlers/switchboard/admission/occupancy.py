"""How much waits, by channel, without counting rows for every message.

The rows are counted now and then; in between, what this process lets in is added and what it has worked off is taken
away. So the figure is right

    after a restart         because the first look comes before the doors open
    with other processes    because the next look sees what they did; until then each may let in too much
    while a look is out     because what enters meanwhile is added to its result

When it errs within one process, it errs upwards, and only until the next look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class Occupancy:
    """The open messages by channel, as far as is known."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._unsettled: Counter[str] = Counter()  # let in, and no row yet: a look may miss them
        self._during_look: Counter[str] | None = None

    @property
    def waiting(self) -> Mapping[str, int]:
        return self._waiting

    def enter(self, channel: str) -> None:
        """A place is taken; `settle` follows when it is known whether there is a row."""
        self._waiting[channel] += 1
        self._unsettled[channel] += 1
        if self._during_look is not None:
            self._during_look[channel] += 1

    def settle(self, channel: str, *, stored: bool) -> None:
        self._unsettled[channel] -= 1
        if not stored:
            self._take_away(channel)

    def leave(self, channel: str) -> None:
        """A message has come to its end."""
        self._take_away(channel)

    def begin_look(self) -> None:
        self._during_look = +self._unsettled

    def end_look(self, counted: Mapping[str, int]) -> None:
        """The rows were counted since `begin_look`."""
        self._waiting = Counter(counted)
        self._waiting.update(self._during_look or {})
        self._during_look = None

    def _take_away(self, channel: str) -> None:
        # Never below nothing: a message may end that entered by another process, after the last look.
        self._waiting[channel] = max(0, self._waiting[channel] - 1)
