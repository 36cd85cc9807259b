"""Which channel a message takes to one person.

The levels are asked in their order: the person, the organization, the system. A level chooses the first enabled channel
that it wants and that no level above it refuses. When no level wants anything, any enabled channel will do that nobody
refuses. So a refusal of the person always wins, and a person's wish beats what the organization refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from butlers.outbound.values import Opinions


def resolve_channel(levels: Sequence[Opinions], enabled: Sequence[str]) -> str | None:
    """The channel, or None when every enabled one is refused; `levels` from the person to the system."""
    for depth, level in enumerate(levels):
        wanted = (channel for channel in enabled if level.get(channel) is True)
        if chosen := _first_not_refused(wanted, levels[:depth]):
            return chosen
    return _first_not_refused(enabled, levels)


def _first_not_refused(channels: Iterable[str], levels: Sequence[Opinions]) -> str | None:
    return next((c for c in channels if not any(level.get(c) is False for level in levels)), None)
