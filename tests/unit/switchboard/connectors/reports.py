"""Heartbeats as connectors might send them, and what they add up to, told again in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from uuid import UUID

from butlers.switchboard.connectors.deltas import SECOND, Lives, Reading, add, moment

Key = tuple[str, str, datetime]  # type, endpoint, hour
Stats = dict[Key, list[int]]  # ingested, failed, calls, accepted, heartbeats, healthy, degraded, error
STATES = ("healthy", "degraded", "error")
OLD_S = 12 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    id: UUID
    endpoint: str
    instance_id: UUID
    state: str
    uptime_s: float
    counters: tuple[int, int, int, int]
    sent_at: datetime
    received_at: datetime
    added: tuple[int, ...] | None = None  # None: stored before deltas were

    def row(self) -> tuple[object, ...]:
        place = (self.id, "imap", self.endpoint, self.instance_id, self.state, self.uptime_s)
        return (*place, *self.counters, self.received_at, self.sent_at, *(self.added or (None,) * 4))


INSERT = (
    "INSERT INTO switchboard.connector_heartbeat_log (id, connector_type, endpoint_identity, instance_id, state,"
    " uptime_s, messages_ingested, messages_failed, source_api_calls, dedupe_accepted, received_at, sent_at,"
    " added_messages_ingested, added_messages_failed, added_source_api_calls, added_dedupe_accepted, checkpoint_saves)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 0)"
)


def with_deltas(reports: Iterable[Report]) -> list[Report]:
    """As the intake stores them, in the order in which they came."""
    lives: dict[tuple[str, UUID], Lives] = defaultdict(tuple)
    stored: list[Report] = []
    for report in sorted(reports, key=lambda r: (r.received_at, r.id)):
        process = (report.endpoint, report.instance_id)
        reading = Reading(
            uptime=round(report.uptime_s * SECOND),
            sent=moment(report.sent_at),
            received=moment(report.received_at),
            counts=report.counters,
        )
        lives[process], added = add(lives[process], reading)
        stored.append(replace(report, added=added))
    return stored


def expected_hours(reports: Iterable[Report]) -> Stats:
    """The truth: when a process began tells its lives apart, and its age how far it had come.

    For clocks that are wrong and not set. Of a process that is old when it is first heard of, nobody knows the past.
    """
    furthest: dict[tuple[str, UUID, datetime], Report] = {}
    known: set[tuple[str, UUID]] = set()
    hours: Stats = defaultdict(lambda: [0] * 8)
    for report in sorted(reports, key=lambda r: (r.received_at, r.id)):
        hour = hours["imap", report.endpoint, report.received_at.replace(minute=0, second=0, microsecond=0)]
        hour[4] += 1
        hour[5 + STATES.index(report.state)] += 1
        began = (report.sent_at - timedelta(seconds=report.uptime_s)).replace(microsecond=0)
        best = furthest.get((report.endpoint, report.instance_id, began))
        if best is not None and report.uptime_s <= best.uptime_s:
            continue
        furthest[report.endpoint, report.instance_id, began] = report
        is_known = (report.endpoint, report.instance_id) in known
        known.add((report.endpoint, report.instance_id))
        if not is_known and report.uptime_s > OLD_S:
            continue
        for index, (then, now) in enumerate(zip(best.counters if best else [0] * 4, report.counters, strict=True)):
            hour[index] += now - then if now >= then else now
    return dict(hours)


@dataclass(slots=True)
class SimulatedConnectors:
    """Connectors that live through some days: they restart, fall silent, and their heartbeats come late or not.

    The first heartbeat of a process arrives, and at once: later ones of a process that began anew under its old name
    may look like those of one that slept with its computer.
    """

    random: Random
    start: datetime
    hours: int
    resets: bool = True  # processes that begin to count anew under the same name

    def reports(self, connectors: int) -> list[Report]:
        return [report for number in range(connectors) for report in self._life(f"box-{number}")]

    def _life(self, endpoint: str) -> list[Report]:
        random, now = self.random, self.start + timedelta(seconds=self.random.uniform(0, 3600))
        wrong_by = timedelta(hours=random.choice((0, 0, 2, -1)))  # its clock
        end = self.start + timedelta(hours=self.hours)
        made: list[Report] = []
        born, instance, counters = now, self._id(), [0, 0, 0, 0]
        while now < end:
            deed = random.random()
            if deed < 0.03:
                born, instance, counters = now, self._id(), [0, 0, 0, 0]
            elif deed < 0.05 and self.resets:
                born, counters = now, [0, 0, 0, 0]
            elif deed < 0.07:
                now += timedelta(hours=random.uniform(0.2, 5))  # silence
            counters = [count + random.choice((0, 0, 1, 2, random.randrange(50))) for count in counters]
            made.append(self._report(endpoint, instance, now, born, counters, wrong_by=wrong_by))
            now += timedelta(seconds=random.uniform(60, 600))
        return [report for report in made if random.random() > 0.05 or not report.uptime_s]  # some never arrive

    def _report(
        self,
        endpoint: str,
        instance: UUID,
        now: datetime,
        born: datetime,
        counters: Sequence[int],
        *,
        wrong_by: timedelta,
    ) -> Report:
        random = self.random
        delay = random.choice((0.01, 0.01, 0.01, 0.01, 400.0, 1500.0)) if now != born else 0.01
        ingested, failed, calls, accepted = counters
        return Report(
            id=self._id(),
            endpoint=endpoint,
            instance_id=instance,
            state=random.choices(STATES, (8, 2, 1))[0],
            uptime_s=(now - born).total_seconds(),
            counters=(ingested, failed, calls, accepted),
            sent_at=now + wrong_by,
            received_at=now + timedelta(seconds=delay * random.random()),
        )

    def _id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)
