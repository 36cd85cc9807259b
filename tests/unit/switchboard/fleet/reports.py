"""Heartbeats as connectors might send them, and what they add up to, told again in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from uuid import UUID

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

    def row(self) -> tuple[object, ...]:
        place = (self.id, "imap", self.endpoint, self.instance_id, self.state, self.uptime_s)
        return (*place, *self.counters, self.received_at, self.sent_at)


INSERT = (
    "INSERT INTO switchboard.connector_heartbeat_log (id, connector_type, endpoint_identity, instance_id, state,"
    " uptime_s, messages_ingested, messages_failed, source_api_calls, dedupe_accepted, received_at, sent_at,"
    " checkpoint_saves) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 0)"
)


def expected_hours(reports: Iterable[Report]) -> Stats:
    """Read them in the order in which they came, remembering of each process what it said last and at its oldest."""
    previous: dict[tuple[str, UUID], Report] = {}
    oldest: dict[tuple[str, UUID], Report] = {}
    hours: Stats = defaultdict(lambda: [0] * 8)
    for report in sorted(reports, key=lambda r: (r.received_at, r.id)):
        hour = hours["imap", report.endpoint, report.received_at.replace(minute=0, second=0, microsecond=0)]
        hour[4] += 1
        hour[5 + STATES.index(report.state)] += 1
        process = (report.endpoint, report.instance_id)
        last, best = previous.get(process), oldest.get(process)
        previous[process] = report
        if last is not None and report.uptime_s < last.uptime_s and report.sent_at > last.sent_at:
            grown: Sequence[int] = report.counters  # it began anew
        elif best is None:
            grown = [0] * 4 if report.uptime_s > OLD_S else report.counters
        elif report.uptime_s < best.uptime_s:
            continue  # overtaken
        else:
            grown = [_step(*pair) for pair in zip(best.counters, report.counters, strict=True)]
        oldest[process] = report
        for index, step in enumerate(grown):
            hour[index] += step
    return dict(hours)


def _step(then: int, now: int) -> int:
    return now - then if now >= then else now


@dataclass(slots=True)
class Fleet:
    """Connectors that live through some days: they restart, fall silent, and their heartbeats come late or not."""

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
        return [report for report in made if random.random() > 0.05]  # some never arrive

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
        delay = random.choice((0.01, 0.01, 0.01, 0.01, 400.0, 1500.0))
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
