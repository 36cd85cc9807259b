"""What a run proved: Messenger's rows compared with what the providers received. Pure, so it can be tested.

    lost         accepted, and: no row; or `delivered` and not received
    false        a certain "not sent" (failed, dead-lettered, expired) of something that was received, whatever its
                 attempts said
    duplicates   received more than once although no attempt was ever uncertain, or as mails that differ in their
                 Message-ID, or two rows for one key
    stuck        still open at the end
    uncertain    some attempt may or may not have arrived; surfaced when it was delivered since, when somebody settled
                 it, or when Messenger's door lists it as uncertain. Any other end has forgotten the doubt

Recovery of a delivery from a kill is the time from the kill, not from the restart, to the end of the first attempt
that began after it, or to the moment its interrupted attempt was put on record as uncertain. One whose retry was due
later is measured from when it was due. Where the next kill came before the time that the goal grants was over, and the
delivery had not moved yet, this kill says nothing about it; it is measured from the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

OPEN = frozenset({"pending", "in_progress", "awaiting_retry"})
CERTAINLY_NOT_SENT = frozenset({"failed", "dead_lettered", "expired"})
RECOVERY_GOAL_S = 5.0
GRANTED = timedelta(seconds=RECOVERY_GOAL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    started_at: datetime
    completed_at: datetime | None
    certainty: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A delivery as its row and attempts tell it at the end."""

    number: int
    delivery_id: str
    channel: str
    status: str
    attempts: Sequence[Attempt]
    settled: bool = False  # a person or the provider has said what became of it

    @property
    def was_uncertain(self) -> bool:
        return self.status == "uncertain" or any(attempt.certainty == "uncertain" for attempt in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    at: datetime
    waiting: Mapping[str, datetime]  # open deliveries at that moment -> when each was due
    healthy_after_s: float | None = None  # None: killed again before that


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long one kill kept one delivery from moving."""

    seconds: float
    kill: int  # counted from 0
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    lost: list[int] = field(default_factory=list)
    false: list[int] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    duplicates_uncertain: list[int] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=list)
    uncertain_surfaced: list[int] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)


def assess(
    *,
    accepted: Mapping[int, Iterable[str]],
    rows: Sequence[Row],
    received: Mapping[int, Sequence[str]],  # number -> one entry for each arrival: the Message-ID, or the chat
    kills: Sequence[Kill],
    surfaced: frozenset[str],  # deliveries that the door names as uncertain
) -> Assessment:
    assessment = Assessment(recoveries=recoveries_of(rows, kills))
    by_number: dict[int, list[Row]] = {}
    for row in rows:
        by_number.setdefault(row.number, []).append(row)
    assessment.lost.extend(sorted(accepted.keys() - by_number.keys()))
    for number, found in by_number.items():
        _assess_one(assessment, number, found, list(received.get(number, ())), surfaced)
    return assessment


def _assess_one(
    assessment: Assessment, number: int, rows: list[Row], received: list[str], surfaced: frozenset[str]
) -> None:
    row = rows[0]
    if row.status == "delivered" and not received:
        assessment.lost.append(number)
    if row.status in CERTAINLY_NOT_SENT and received:
        assessment.false.append(number)
    if row.status in OPEN:
        assessment.stuck.append(number)
    if row.was_uncertain:
        assessment.uncertain.append(number)
        if row.status == "delivered" or row.settled or row.delivery_id in surfaced:
            assessment.uncertain_surfaced.append(number)
    if len(rows) > 1 or (len(received) > 1 and not (row.was_uncertain and _same_mail(row, received))):
        assessment.duplicates.append(number)
    elif len(received) > 1:
        assessment.duplicates_uncertain.append(number)


def _same_mail(row: Row, received: list[str]) -> bool:
    return row.channel != "email" or len(set(received)) == 1


def recoveries_of(rows: Sequence[Row], kills: Sequence[Kill]) -> list[Recovery]:
    """One for each delivery that a kill hit and that had its chance to move."""
    by_id = {row.delivery_id: row for row in rows}
    found = []
    for number, kill in enumerate(kills):
        following = kills[number + 1] if number + 1 < len(kills) else None
        for delivery_id, due in kill.waiting.items():
            row, since = by_id.get(delivery_id), max(kill.at, due)
            moved = _moved_at(row, kill.at) if row is not None else None
            if row is None or moved is None:
                continue  # lost or stuck, and counted as such
            if following is None or moved <= following.at or following.at - since >= GRANTED:
                seconds = max(0.0, (moved - since) / timedelta(seconds=1))
                found.append(Recovery(seconds=seconds, kill=number, row=row))
    return found


def _moved_at(row: Row, kill: datetime) -> datetime | None:
    moments = [
        attempt.completed_at
        for attempt in row.attempts
        if attempt.completed_at is not None
        and attempt.completed_at > kill
        and (attempt.started_at > kill or attempt.certainty == "uncertain")
    ]
    return min(moments, default=None)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * len(ordered) * 1000) // 1000) - 1)]
