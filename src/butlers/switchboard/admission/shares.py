"""Who still has a place, of `places` in all.

    | share of a | share of b | share of c | share of d |          common pool           |
    |<-------------- half of the places -------------->|<-- for whoever comes first -->|

A channel fills its own share first and takes from the pool when that is full. Hence, with every channel counted:

- a channel below its share has a place, whatever the others do: a flood cannot shut anybody out
- there are never more than `places`
- a channel that is alone gets more than half of everything
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    places: int
    channels: int  # that there are, busy or not

    @property
    def guaranteed(self) -> int:
        """Places that are one channel's own."""
        return self.places // (2 * self.channels)

    def within_share(self, channel: str, waiting: Mapping[str, int]) -> bool:
        return waiting.get(channel, 0) < self.guaranteed

    def has_place(self, channel: str, waiting: Mapping[str, int]) -> bool:
        """Whether one more of this channel fits."""
        guaranteed = self.guaranteed
        if waiting.get(channel, 0) < guaranteed:
            return True
        in_pool = sum(count - guaranteed for count in waiting.values() if count > guaranteed)
        return in_pool < self.places - guaranteed * self.channels
