"""Whether there is budget, in one bucket or in several at once.

A bucket holds at most `capacity` tokens and gains `refill_per_second`. Nothing ticks: the tokens gained since
`updated_at` are added when somebody looks.

Clocks step back. A bucket then keeps its `updated_at`, because adding the same seconds twice would let more through
than the limit says. But it waits no longer than it takes to fill an empty bucket: after a step of an hour that
would otherwise be an hour of silence.

A refusal says after how many seconds the same request would be let through if nobody else took anything; `None`
means never, because the cost is more than the bucket can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

# Sums of fractions such as 1/2.0 and 30/60 drift by a few ulps; a drift must not refuse anybody.
_DRIFT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    capacity: float  # tokens
    refill_per_second: float  # tokens
    tokens: float  # as of updated_at
    updated_at: datetime

    def __post_init__(self) -> None:
        if not (self.capacity > 0 and self.refill_per_second > 0):
            raise ValueError("capacity and refill must be positive")


@dataclass(frozen=True, slots=True)
class Taken:
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Refused:
    bucket: Bucket
    retry_after: float | None  # seconds; None = never


@dataclass(frozen=True, slots=True)
class Draw:
    """One layer of an admission: so many tokens from the bucket of this name."""

    name: str
    bucket: Bucket
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class AllTaken:
    buckets: Mapping[str, Bucket]


@dataclass(frozen=True, slots=True)
class RefusedBy:
    name: str  # the first layer that refused
    retry_after: float | None  # seconds until every layer would let it through; None = never


def full(*, capacity: float, refill_per_second: float, now: datetime) -> Bucket:
    return Bucket(capacity=capacity, refill_per_second=refill_per_second, tokens=capacity, updated_at=now)


def per_minute(limit: float, now: datetime) -> Bucket:
    """A full bucket that allows a burst of one minute's worth."""
    return full(capacity=limit, refill_per_second=limit / 60, now=now)


def refill(bucket: Bucket, now: datetime) -> Bucket:
    """The bucket with everything gained until now."""
    if bucket.updated_at == now:
        return bucket
    time_to_fill = bucket.capacity / bucket.refill_per_second
    lag = (bucket.updated_at - now).total_seconds()
    since = now + timedelta(seconds=time_to_fill) if lag > time_to_fill else bucket.updated_at
    gained = max(0.0, (now - since).total_seconds()) * bucket.refill_per_second
    return _holding(bucket, min(bucket.capacity, bucket.tokens + gained), max(since, now))


def full_at(bucket: Bucket, now: datetime) -> datetime:
    """When the bucket is full again if nothing is taken."""
    return now + timedelta(seconds=(bucket.capacity - refill(bucket, now).tokens) / bucket.refill_per_second)


def take(bucket: Bucket, cost: float, now: datetime) -> Taken | Refused:
    if not cost >= 0:
        raise ValueError("cost must not be negative")
    current = refill(bucket, now)
    if current.tokens + _DRIFT >= cost:
        return Taken(_holding(current, max(0.0, current.tokens - cost), current.updated_at))
    return Refused(current, _retry_after(current, cost, now))


def spend(bucket: Bucket, cost: float) -> Bucket:
    """Take what there is, up to the cost, whatever is missing; for a bucket that only keeps count."""
    return _holding(bucket, max(0.0, bucket.tokens - cost), bucket.updated_at)


def take_all(draws: Sequence[Draw], now: datetime) -> AllTaken | RefusedBy:
    """All or nothing: when one layer refuses, no layer has paid."""
    if len({draw.name for draw in draws}) != len(draws):
        raise ValueError("two draws on one bucket")
    results = {draw.name: take(draw.bucket, draw.cost, now) for draw in draws}
    refused = {name: result for name, result in results.items() if isinstance(result, Refused)}
    if refused:
        waits = [result.retry_after for result in refused.values() if result.retry_after is not None]
        return RefusedBy(next(iter(refused)), max(waits) if len(waits) == len(refused) else None)
    return AllTaken({name: result.bucket for name, result in results.items()})


def _holding(bucket: Bucket, tokens: float, updated_at: datetime) -> Bucket:
    # Not `replace`: this is done for every message, several times.
    return Bucket(
        capacity=bucket.capacity, refill_per_second=bucket.refill_per_second, tokens=tokens, updated_at=updated_at
    )


def _retry_after(bucket: Bucket, cost: float, now: datetime) -> float | None:
    if cost > bucket.capacity:
        return None
    lag = (bucket.updated_at - now).total_seconds()
    seconds = lag + (cost - bucket.tokens) / bucket.refill_per_second
    # Rounded up to what a datetime can tell apart, so that coming back on time is never too early.
    return math.ceil(seconds * 1e6) / 1e6
