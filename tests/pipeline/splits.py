"""Fleets cut into parts in many ways, and their parts folded: what tasks of a scan might come across."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from random import Random
from uuid import UUID

import pyarrow as pa

from butlers.pipeline.transforms.hourly_joining import SUMS
from butlers.pipeline.transforms.hourly_stretches import COUNTERS, MICROS, USUAL, Cuts, folded
from tests.unit.switchboard.fleet.reports import STATES, Fleet, Report

START = datetime(2026, 3, 28, 18, tzinfo=UTC)
MASK = (1 << 63) - 1
Parts = list[list[Report]]


def split_fleets(cases: int) -> tuple[list[Report], pa.Table]:
    """All heartbeats, and the stretches of all parts."""
    everything: list[Report] = []
    tables = []
    for seed in range(cases):
        random = Random(seed)
        reports = [replace(report, endpoint=f"{seed}-{report.endpoint}") for report in _fleet(random, seed)]
        everything += reports
        cuts = random.choice((USUAL, _any_cuts(random), _any_cuts(random)))
        for part in WAYS[seed % len(WAYS)](random, reports):
            tables.append(folded(as_table(random.sample(part, len(part))), cuts))
    return everything, pa.concat_tables(tables).combine_chunks()  # Spark 4.3 loses all but the first chunk


def summed_up(parts: pa.Table) -> dict[tuple[str, datetime], list[int]]:
    """Parts of hours as the plain Python has them; sums of Python have no end, those of the record have."""
    hours: dict[tuple[str, datetime], list[int]] = {}
    for row in parts.to_pylist():
        if not row["troubled"]:
            found = hours.setdefault(
                (row["endpoint_identity"], datetime.fromtimestamp(row["hour"] * 3600, UTC)), [0] * 8
            )
            found[:] = [min(then + now, MASK) for then, now in zip(found, [row[name] for name in SUMS], strict=True)]
    return hours


def _fleet(random: Random, seed: int) -> list[Report]:
    reports = Fleet(random, START, hours=random.choice((2, 9, 20))).reports(2)
    worse = (_none, _none, _twice, _late, _at_once, _wild)[seed // len(WAYS) % 6]
    return worse(random, sorted(reports, key=lambda report: report.received_at))


def _none(random: Random, reports: list[Report]) -> list[Report]:
    return reports


def _twice(random: Random, reports: list[Report]) -> list[Report]:
    return reports + random.choices(reports, k=len(reports) // 5)


def _late(random: Random, reports: list[Report]) -> list[Report]:
    def delayed(report: Report) -> Report:
        return replace(report, received_at=report.received_at + timedelta(seconds=random.expovariate(1 / 900)))

    return [delayed(report) if random.random() < 0.2 else report for report in reports]


def _at_once(random: Random, reports: list[Report]) -> list[Report]:
    """Several at one moment: only their ids tell the order, and some are there twice besides."""
    coarse = [
        replace(report, received_at=report.received_at.replace(minute=report.received_at.minute // 10 * 10, second=0))
        if random.random() < 0.1
        else report
        for report in reports
    ]
    return _twice(random, [replace(report, received_at=report.received_at.replace(microsecond=0)) for report in coarse])


def _wild(random: Random, reports: list[Report]) -> list[Report]:
    """Counters, ages and clocks without any sense, moments that are shared, and numbers that have no sum."""
    huge, shared = random.choice((9, 9, 9, (1 << 63) - 1)), random.choice((1, 1, 20))
    return [
        replace(
            report,
            instance_id=UUID(int=random.randrange(2)),
            uptime_s=random.choice((report.uptime_s, float(random.randrange(9)), 43_200.0, 43_201.0)),
            counters=tuple(random.choice((0, 1, random.randrange(huge))) for _ in COUNTERS),  # type: ignore[arg-type]
            sent_at=START + timedelta(seconds=random.randrange(9)),
            received_at=report.received_at.replace(
                minute=report.received_at.minute // shared * shared, second=0, microsecond=0
            ),
        )
        for report in reports
    ]


def _whole(random: Random, reports: list[Report]) -> Parts:
    return [reports]


def _anyhow(random: Random, reports: list[Report]) -> Parts:
    parts: Parts = [[] for _ in range(random.randrange(2, 6))]
    for report in reports:
        random.choice(parts).append(report)
    return [part for part in parts if part]


def _by_time(random: Random, reports: list[Report]) -> Parts:
    """In the order in which they came, cut anywhere; rows that are there twice may come apart."""
    ordered = sorted(reports, key=lambda report: (report.received_at, report.id))
    places = sorted(random.randrange(len(ordered)) for _ in range(random.randrange(1, 8)))
    parts = [ordered[begin:end] for begin, end in zip([0, *places], [*places, len(ordered)], strict=True)]
    return [part for part in parts if part]


def _by_sending(random: Random, reports: list[Report]) -> Parts:
    """Cut by when they were sent: what is late lies with its own time, and comes between others of the next part."""
    hours = random.choice((1, 3, 6))
    parts: dict[int, list[Report]] = {}
    for report in reports:
        parts.setdefault(int((report.sent_at - START).total_seconds() // 3600 // hours), []).append(report)
    return [*parts.values()]


def _alternating(random: Random, reports: list[Report]) -> Parts:
    """A task that reads the first and the third hour, another that reads the second and the fourth."""
    parts = _by_time(random, reports)
    return [[*chain.from_iterable(chosen)] for chosen in (parts[::2], parts[1::2]) if chosen]


WAYS: tuple[Callable[[Random, list[Report]], Parts], ...] = (_whole, _anyhow, _by_time, _by_sending, _alternating)


def _any_cuts(random: Random) -> Cuts:
    head, tail, gap = (random.choice(choices) * MICROS for choices in ((0, 60, 900), (0, 60, 900), (60, 900, 9000)))
    return Cuts(head_us=head, tail_us=tail, gap_us=gap, least_rows=random.choice((2, 6)))


def as_table(reports: list[Report]) -> pa.Table:
    moment = pa.timestamp("us", tz="UTC")
    columns = {
        "id": pa.array([str(report.id) for report in reports]),
        "connector_type": pa.array(["imap"] * len(reports)),
        "endpoint_identity": pa.array([report.endpoint for report in reports]),
        "instance_id": pa.array([str(report.instance_id) for report in reports]),
        "state": pa.array([STATES.index(report.state) for report in reports], pa.int64()),
        "uptime_s": pa.array([float(report.uptime_s) for report in reports]),
        **{name: pa.array([r.counters[place] for r in reports], pa.int64()) for place, name in enumerate(COUNTERS)},
        "received_at": pa.array([report.received_at for report in reports], moment),
        "sent_at": pa.array([report.sent_at for report in reports], moment),
    }
    return pa.table(columns)
