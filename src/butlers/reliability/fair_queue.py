"""What runs next.

Two kinds of fairness, one inside the other:

    tiers    high_priority > interactive > default, with a guard: after `max_consecutive_same_tier` takes in a row
             from one tier, the next take is forced from the highest lower tier that has something. Then the count
             starts again and the highest tier is asked first.
    keys     within a tier, round-robin over the keys (an origin, a channel): whoever waits is served after at most
             one item of every other key, however much one of them has piled up.

Both are bounded. A tier holds `queue_capacity` items; `key_capacity`, when set, keeps one noisy key from filling
its tier so that nobody else gets in. A full queue says so at once and says which bound it was.

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


class Bound(StrEnum):
    QUEUE = "queue_capacity"
    KEY = "key_capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    tier: Tier
    fell_back: bool  # the tier asked for is unknown; worth a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    tier: Tier
    fell_back: bool
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Generic[T]):
    item: T
    tier: Tier
    key: str
    starvation_override: bool  # something of a higher tier was passed over


class FairShare(Generic[T]):
    """Round-robin over keys, first in first out within a key."""

    def __init__(self, *, capacity: int, key_capacity: int | None = None) -> None:
        if capacity < 1 or (key_capacity is not None and key_capacity < 1):
            raise ValueError("capacities must be at least 1")
        self._capacity = capacity
        self._key_capacity = capacity if key_capacity is None else key_capacity
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()  # only keys with items, next key first
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def offer(self, item: T, *, key: str = "") -> Bound | None:
        """Put an item in; the bound that stands against it, or `None` when it is in."""
        if self._size >= self._capacity:
            return Bound.QUEUE
        if len(self._lanes.get(key, ())) >= self._key_capacity:
            return Bound.KEY
        self._lanes.setdefault(key, deque()).append(item)
        self._size += 1
        return None

    def take(self) -> tuple[str, T] | None:
        """The next key's oldest item; the key then goes to the end of the round."""
        if not self._lanes:
            return None
        key, lane = next(iter(self._lanes.items()))
        item = lane.popleft()
        self._size -= 1
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

    def depth_by_key(self) -> dict[str, int]:
        return {key: len(lane) for key, lane in self._lanes.items()}


class TieredQueue(Generic[T]):
    """Three bounded tiers with a starvation guard; each tier is a fair share of its keys."""

    def __init__(
        self,
        *,
        queue_capacity: int,  # items per tier
        max_consecutive_same_tier: int = 10,
        key_capacity: int | None = None,  # items per key within a tier; None = no bound of its own
    ) -> None:
        if max_consecutive_same_tier < 1:
            raise ValueError("max_consecutive_same_tier must be at least 1")
        self._limit = max_consecutive_same_tier
        self._shares: dict[Tier, FairShare[T]] = {
            tier: FairShare(capacity=queue_capacity, key_capacity=key_capacity) for tier in TIERS
        }
        self._favoured: Tier | None = None  # the tier of the takes being counted
        self._consecutive = 0

    def __len__(self) -> int:
        return sum(len(share) for share in self._shares.values())

    def depth_by_tier(self) -> dict[Tier, int]:
        return {tier: len(share) for tier, share in self._shares.items()}

    def offer(self, item: T, tier: str, *, key: str = "") -> Accepted | Full:
        """Put an item in; an unknown tier falls back to `default`, and the answer says so."""
        fell_back = tier not in TIERS
        chosen = Tier.DEFAULT if fell_back else Tier(tier)
        bound = self._shares[chosen].offer(item, key=key)
        if bound is not None:
            return Full(tier=chosen, fell_back=fell_back, bound=bound)
        return Accepted(tier=chosen, fell_back=fell_back)

    def take(self) -> Taken[T] | None:
        """The next item, or `None` when every tier is empty."""
        filled = [tier for tier in TIERS if len(self._shares[tier])]
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
