"""What is old enough to go, and what must stay although it is old. Decisions only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.contracts.delivery_state import FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long things are kept after their end; None: for ever."""

    deliveries: timedelta | None
    dead_letters: timedelta | None
    actions: timedelta | None
    keys: timedelta  # an ended delivery answers for its key as long as this


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoffs:
    """What ended before these moments may go; None: nothing may."""

    deliveries: datetime | None
    dead_letters: datetime | None
    actions: datetime | None


def cutoffs(policy: RetentionPolicy, now: datetime) -> Cutoffs:
    """A dead letter answers for no key; deliveries and actions do, and are kept at least as long as that."""

    def before(period: timedelta | None, *, at_least: timedelta = timedelta()) -> datetime | None:
        return None if period is None else now - max(period, at_least)

    return Cutoffs(
        deliveries=before(policy.deliveries, at_least=policy.keys),
        dead_letters=before(policy.dead_letters),
        actions=before(policy.actions, at_least=policy.keys),
    )


def forgettable_deliveries(
    held: Iterable[Mapping[str, Any]], with_dead_letter: Collection[UUID], cutoff: datetime
) -> list[UUID]:
    """Of whole families, those in which nothing is recent, open or waits for a person."""
    families: dict[UUID, list[Mapping[str, Any]]] = {}
    for row in held:
        families.setdefault(row["first_id"], []).append(row)
    return [
        row["id"]
        for family in families.values()
        if all(_is_over(row, cutoff) and row["id"] not in with_dead_letter for row in family)
        for row in family
    ]


def _is_over(row: Mapping[str, Any], cutoff: datetime) -> bool:
    # duplicate_detection ends when the key is retired; until then a repeat is answered from this row.
    return row["status"] in FINISHED and row["terminal_at"] < cutoff and not row["duplicate_detection"]


def forgettable_dead_letters(
    letters: Iterable[Mapping[str, Any]], arrived: Mapping[UUID, datetime], cutoff: datetime
) -> list[UUID]:
    """Those that were given up, or whose message arrived after all, long enough ago; `arrived` is by delivery."""
    return [
        letter["id"]
        for letter in letters
        if any(
            moment is not None and moment < cutoff
            for moment in (letter["discarded_at"], arrived.get(letter["delivery_id"]))
        )
    ]
