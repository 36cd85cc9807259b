"""The shared state between rows and values: what an admission reads, and what one batch of them writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.messenger import admission, circuits
from butlers.messenger.admission import Admitted, Budgets, Throttled, Wish
from butlers.messenger.delivery import NewDelivery
from butlers.messenger.judgement import Snapshot
from butlers.messenger.recipients import RecipientRule
from butlers.reliability.error_budget import Stance
from butlers.reliability.token_bucket import Bucket, refill
from butlers.storage.database import Record


class Page:
    """What one batch writes."""

    def __init__(self) -> None:
        self.taken: list[NewDelivery] = []
        self.buckets: dict[str, tuple[str | None, str | None, Bucket, datetime]] = {}
        self.counts: Counter[tuple[str, str, str, str, str]] = Counter()

    def take(self, new: NewDelivery, wish: Wish, verdict: Admitted, now: datetime) -> None:
        self.taken.append(new)
        self.draw(wish, verdict, now)

    def draw(self, wish: Wish, verdict: Admitted, now: datetime) -> None:
        for name, bucket in verdict.buckets.items():
            self.buckets[name] = (None, None, bucket, _full_at(bucket, now))
        self.keep(wish, verdict.shares, now)

    def keep(self, wish: Wish, shares: Mapping[str, Bucket], now: datetime) -> None:
        for layer, share in shares.items():
            until = max(_full_at(share, now), now + admission.WANTED_FOR)
            self.buckets[f"share:{layer}/{wish.origin}"] = (layer, wish.origin, share, until)

    def count(self, new: NewDelivery, outcome: str, rule: str = "") -> None:
        delivery = new.notify.delivery
        self.counts[delivery.channel, delivery.intent, new.notify.origin_butler, outcome, rule] += 1

    def bucket_columns(self) -> list[list[Any]]:
        rows = [
            (name, layer, origin, bucket.capacity, bucket.refill_per_second, bucket.tokens, bucket.updated_at, full_at)
            for name, (layer, origin, bucket, full_at) in self.buckets.items()
        ]
        return [list(column) for column in zip(*rows, strict=True)]

    def count_columns(self) -> list[list[Any]]:
        rows = [(*labels, number) for labels, number in self.counts.items()]
        return [list(column) for column in zip(*rows, strict=True)]


def snapshot_of(row: Record) -> Snapshot:
    known = dict(entry.rsplit(" ", 1) for entry in row["known"])
    channels = row["channels"]
    shares: dict[str, dict[str, Bucket]] = {}
    for stored in row["buckets"]:
        if stored["layer"] is not None:
            shares.setdefault(stored["layer"], {})[stored["origin_butler"]] = _bucket(stored)
    return Snapshot(
        known={key: UUID(identity) for key, identity in known.items()},
        recipients={(rule["channel"], rule["target"]): _recipient_rule(rule) for rule in row["recipients"]},
        busy=frozenset(row["busy"]),
        budgets=Budgets(
            in_flight=row["in_flight"],
            buckets={stored["name"]: _bucket(stored) for stored in row["buckets"] if stored["layer"] is None},
            shares=shares,
            throttles={t["scope"]: Throttled(until=t["until"], reason=t["reason"]) for t in row["throttles"]},
            breakers={state["name"]: circuits.from_row(state) for state in channels},
            stances={state["name"]: Stance(state["stance"]) for state in channels},
        ),
    )


def _bucket(stored: Record) -> Bucket:
    return Bucket(
        capacity=stored["capacity"],
        refill_per_second=stored["refill_per_second"],
        tokens=stored["tokens"],
        updated_at=stored["updated_at"],
    )


def _recipient_rule(stored: Record) -> RecipientRule:
    return RecipientRule(
        rule=stored["rule"], moved_to=stored["moved_to"], reason=stored["reason"], since=stored["since"]
    )


def _full_at(bucket: Bucket, now: datetime) -> datetime:
    current = refill(bucket, now)
    return now + timedelta(seconds=(bucket.capacity - current.tokens) / bucket.refill_per_second)
