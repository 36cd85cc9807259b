"""What runs next.

Two kinds of fairness, one inside the other:

    tiers    high_priority > interactive > default, with a guard: after `max_consecutive_same_tier` takes in a row
             from one tier, the next take is forced from the highest lower tier that has something. Then the count
             starts again and the highest tier is asked first.
    keys     within a tier, round-robin over the keys (an origin, a channel): whoever waits is served after at most
             one item of every other key, however much one of them has piled up.

Both are bounded: a tier holds `queue_capacity` items, and a full one says so at once.

The guard forces one step down from the tier that was favoured. Seen from the lowest of three busy tiers that is no
promise: with the two above it never empty, the forced take always goes to the middle one.

Neither class locks or waits: both belong to one event loop.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Tier(StrEnum):
    """In the order of precedence."""

    HIGH_PRIORITY = "high_priority"
    INTERACTIVE = "interactive"
    DEFAULT = "default"


TIERS = tuple(Tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    tier: Tier
    fell_back: bool  # the tier asked for is unknown; worth a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    tier: Tier
    fell_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Generic[T]):
    item: T
    tier: Tier
    key: str
    starvation_override: bool  # something of a higher tier was passed over


class FairShare(Generic[T]):
    """Round-robin over keys, first in first out within a key."""

    def __init__(self, *, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("the capacity must be at least 1")
        self._capacity = capacity
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()  # only keys with items, next key first
        self.size = 0

    def offer(self, item: T, *, key: str = "") -> bool:
        """Put an item in; False when there is no room."""
        if self.size >= self._capacity:
            return False
        self._lanes.setdefault(key, deque()).append(item)
        self.size += 1
        return True

    def take(self) -> tuple[str, T] | None:
        """The next key's oldest item; the key then goes to the end of the round."""
        if not self._lanes:
            return None
        key, lane = next(iter(self._lanes.items()))
        item = lane.popleft()
        self.size -= 1
        if lane:
            self._lanes.move_to_end(key)
        else:
            # Forgotten when empty: keys come from outside and must not pile up.
            del self._lanes[key]
        return key, item

    def take_other_than(self, keys: Collection[str]) -> tuple[str, T] | None:
        """The oldest item of the next key that is not among these."""
        key = next((key for key in self._lanes if key not in keys), None)
        if key is None:
            return None
        self._lanes.move_to_end(key, last=False)
        return self.take()


class TieredQueue(Generic[T]):
    """Three bounded tiers with a starvation guard; each tier is a fair share of its keys."""

    def __init__(
        self,
        *,
        queue_capacity: int,  # items per tier
        max_consecutive_same_tier: int = 10,
    ) -> None:
        if max_consecutive_same_tier < 1:
            raise ValueError("max_consecutive_same_tier must be at least 1")
        self._limit = max_consecutive_same_tier
        self._shares: dict[Tier, FairShare[T]] = {tier: FairShare(capacity=queue_capacity) for tier in TIERS}
        self._favoured: Tier | None = None  # the tier of the takes being counted
        self._consecutive = 0

    def __len__(self) -> int:
        return sum(share.size for share in self._shares.values())

    def depth_by_tier(self) -> dict[Tier, int]:
        return {tier: share.size for tier, share in self._shares.items()}

    def offer(self, item: T, tier: str, *, key: str = "") -> Accepted | Full:
        """Put an item in; an unknown tier falls back to `default`, and the answer says so."""
        fell_back = tier not in TIERS
        chosen = Tier.DEFAULT if fell_back else Tier(tier)
        answer = Accepted if self._shares[chosen].offer(item, key=key) else Full
        return answer(tier=chosen, fell_back=fell_back)

    def take(self) -> Taken[T] | None:
        """The next item, or `None` when every tier is empty."""
        filled = [tier for tier in TIERS if self._shares[tier].size]
        if not filled:
            return None
        highest, forced = filled[0], None
        if self._favoured is not None and self._consecutive >= self._limit:
            lower = TIERS[TIERS.index(self._favoured) + 1 :]
            forced = next((tier for tier in filled if tier in lower), None)
        if forced is None:
            self._consecutive = self._consecutive + 1 if highest is self._favoured else 1
            self._favoured = highest
        else:
            self._favoured, self._consecutive = None, 0
        tier = forced or highest
        taken = self._shares[tier].take()
        if taken is None:
            return None
        key, item = taken
        return Taken(item=item, tier=tier, key=key, starvation_override=tier is not highest)

    def take_other_than(self, keys: Collection[str]) -> Taken[T] | None:
        """The next item of a key that is not among these, for a worker that is kept free for keys that have none."""
        for tier in TIERS:
            if (taken := self._shares[tier].take_other_than(keys)) is not None:
                key, item = taken
                return Taken(item=item, tier=tier, key=key, starvation_override=False)
        return None
