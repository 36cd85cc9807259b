"""What is rolled up and when, against the same told in plain Python, on many made-up days of a fleet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest

from butlers.clock import ManualClock
from butlers.contracts.envelope import MAX_COUNT
from butlers.errors import ValidationError
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from butlers.switchboard.connectors.registry import Connectors, make_log_months
from butlers.switchboard.connectors.rollups import Rollups
from tests.database import cloned_database
from tests.unit.switchboard.connectors.reports import (
    INSERT,
    Report,
    SimulatedConnectors,
    Stats,
    expected_hours,
    with_deltas,
)
from tests.unit.switchboard.connectors.rolling import RollingInSql

START = datetime(2026, 1, 30, 20, tzinfo=UTC)  # a month ends within
TABLES = [MigrationSet(schema="switchboard", package="butlers.switchboard", component="switchboard")]
QUERIES = Queries.load("butlers.switchboard.connectors", schema="switchboard")
FIGURES = "messages_ingested, messages_failed, source_api_calls, dedupe_accepted"
HEALTH = "heartbeat_count, healthy_count, degraded_count, error_count"


class RollupSystem:
    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.database = database
        self.clock = clock
        rolling = RollingInSql(database=database)
        self.rollups = Rollups(database=database, queries=QUERIES, clock=clock, run_job=rolling)

    async def come(self, reports: Sequence[Report]) -> None:
        """Reports as the intake stored them; those that carry no deltas are compared with each other."""
        fresh = [report for report in reports if report.added is None]
        stored = [report for report in reports if report.added is not None]
        await self.database.executemany(INSERT, [report.row() for report in (*stored, *with_deltas(fresh))])

    async def hours(self) -> Stats:
        rows = await self.database.fetch(
            f"SELECT connector_type, endpoint_identity, hour, {FIGURES}, {HEALTH}"
            " FROM switchboard.connector_stats_hourly"
        )
        return {(row[0], row[1], row[2]): [*tuple(row)[3:]] for row in rows}

    async def days(self) -> dict[tuple[str, date], list[Any]]:
        rows = await self.database.fetch(
            f"SELECT endpoint_identity, day, {FIGURES}, {HEALTH}, uptime_pct FROM switchboard.connector_stats_daily"
        )
        return {(row[0], row[1]): [*tuple(row)[2:]] for row in rows}

    def move_to(self, moment: datetime) -> None:
        self.clock.advance((moment - self.clock.now()).total_seconds())


@asynccontextmanager
async def rollup_system(server: EmbeddedPostgres) -> AsyncIterator[RollupSystem]:
    async with cloned_database(server, TABLES, max_size=3) as database:
        system = RollupSystem(database, ManualClock(START))
        await make_log_months(system.database, "switchboard", system.clock)
        yield system


@pytest.mark.parametrize("seed", range(6))
async def test_hours_are_what_the_heartbeats_add_up_to(postgres_server: EmbeddedPostgres, seed: int) -> None:
    reports = SimulatedConnectors(Random(seed), START, hours=60).reports(3)
    async with rollup_system(postgres_server) as system:
        system.move_to(START + timedelta(hours=64))
        await system.come(reports)
        await system.rollups.hourly({})
        assert await system.hours() == expected_hours(reports)
        await system.rollups.hourly({})
        assert await system.hours() == expected_hours(reports)


@pytest.mark.parametrize("seed", range(3))
async def test_hour_by_hour_with_late_rows_and_missed_runs_gives_the_same(
    postgres_server: EmbeddedPostgres, seed: int
) -> None:
    random = Random(1000 + seed)
    reports = with_deltas(SimulatedConnectors(random, START, hours=60).reports(2))
    # When each becomes visible: some are written hours after they were received.
    seen = [(r.received_at + timedelta(hours=random.choice((0, 0, 0, 0, 5, 20))), r) for r in reports]
    async with rollup_system(postgres_server) as system:
        told: set[UUID] = set()
        for hour in range(1, 90):
            system.move_to(START + timedelta(hours=hour, minutes=5))
            fresh = [r for visible, r in seen if visible <= system.clock.now() and r.id not in told]
            await system.come(fresh)
            told |= {r.id for r in fresh}
            if random.random() > 0.3:  # some runs are missed
                await system.rollups.hourly({})
        await system.rollups.hourly({})
        assert await system.hours() == expected_hours(reports)


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_counted_twice_and_nothing_is_lost(postgres_server: EmbeddedPostgres, seed: int) -> None:
    """What every process said at its highest is what it did, however its heartbeats came."""
    reports = SimulatedConnectors(Random(2000 + seed), START, hours=40, resets=False).reports(2)
    highest: dict[UUID, list[int]] = defaultdict(lambda: [0] * 4)
    for report in reports:
        best = highest[report.instance_id]
        highest[report.instance_id] = [max(pair) for pair in zip(best, report.counters, strict=True)]
    async with rollup_system(postgres_server) as system:
        system.move_to(START + timedelta(hours=45))
        await system.come(reports)
        await system.rollups.hourly({})
        counted = [sum(figures) for figures in zip(*(await system.hours()).values(), strict=True)][:4]
    assert counted == [sum(figures) for figures in zip(*highest.values(), strict=True)]


async def test_days_are_sums_of_hours(postgres_server: EmbeddedPostgres) -> None:
    reports = SimulatedConnectors(Random(7), START, hours=60).reports(3)
    async with rollup_system(postgres_server) as system:
        system.move_to(START + timedelta(hours=64))
        await system.come(reports)
        await system.rollups.daily({})
        wanted: dict[tuple[str, date], list[Any]] = defaultdict(lambda: [0] * 8)
        today = system.clock.now().date()
        for (_, endpoint, hour), figures in expected_hours(reports).items():
            if hour.date() < today:
                old = wanted[endpoint, hour.date()]
                wanted[endpoint, hour.date()] = [a + b for a, b in zip(old, figures, strict=True)]
        for sums in wanted.values():
            share = Decimal(sums[5]) / Decimal(sums[4]) * 100
            sums.append(share.quantize(Decimal("0.01"), ROUND_HALF_UP))
        assert await system.days() == dict(wanted)
        await system.rollups.daily({})
        assert await system.days() == dict(wanted)


async def test_a_missed_week_of_days_is_made_up_for(postgres_server: EmbeddedPostgres) -> None:
    async with rollup_system(postgres_server) as system:
        await system.database.execute(
            "INSERT INTO switchboard.connector_stats_hourly SELECT 'imap', 'box', hour, 1, 0, 0, 0, 2, 1, 0, 1"
            " FROM generate_series($1::timestamptz, $1::timestamptz + interval '9 days', interval '1 hour') AS hour",
            datetime(2026, 1, 10, tzinfo=UTC),
        )
        system.move_to(datetime(2026, 1, 12, 0, 15, tzinfo=UTC))
        await system.rollups.daily({})
        assert sorted(day.day for _, day in await system.days()) == [10, 11]
        system.move_to(datetime(2026, 1, 21, 0, 15, tzinfo=UTC))
        await system.rollups.daily({})
        days = {day.day: figures for (_, day), figures in (await system.days()).items()}
        assert sorted(days) == [*range(10, 20)]
        assert days[15] == [24, 0, 0, 0, 48, 24, 0, 24, Decimal("50.00")]


# --- one by one ------------------------------------------------------------------------------------------------------


def said(number: int, minutes: float, ingested: int, **changes: Any) -> Report:
    at = START + timedelta(minutes=minutes)
    plain: dict[str, Any] = {
        "id": UUID(int=number),
        "endpoint": "box",
        "instance_id": UUID(int=1),
        "state": "healthy",
        "uptime_s": 60 * minutes,
        "sent_at": at,
        "received_at": at,
    }
    return Report(counters=(ingested, 0, 0, 0), **(plain | changes))


async def rolled(server: EmbeddedPostgres, *reports: Report) -> list[int]:
    """Messages of each hour that has a heartbeat."""
    async with rollup_system(server) as system:
        system.move_to(START + timedelta(hours=6))
        await system.come(reports)
        await system.rollups.hourly({})
        return [figures[0] for _, figures in sorted((await system.hours()).items())]


async def test_a_step_belongs_to_the_hour_of_the_later_heartbeat(postgres_server: EmbeddedPostgres) -> None:
    assert await rolled(postgres_server, said(1, 50, 10), said(2, 59.9, 25), said(3, 60, 40)) == [25, 15]


async def test_another_process_counts_from_zero(postgres_server: EmbeddedPostgres) -> None:
    successor = said(2, 70, 30, instance_id=UUID(int=2), uptime_s=5.0)
    assert await rolled(postgres_server, said(1, 50, 10), successor) == [10, 30]


async def test_a_counter_that_fell_counts_from_zero(postgres_server: EmbeddedPostgres) -> None:
    assert await rolled(postgres_server, said(1, 50, 10), said(2, 70, 4), said(3, 80, 9)) == [10, 9]


async def test_an_overtaken_heartbeat_says_nothing_new(postgres_server: EmbeddedPostgres) -> None:
    overtaken = said(2, 65, 10, sent_at=START + timedelta(minutes=40), uptime_s=2400.0)
    assert await rolled(postgres_server, said(1, 50, 20), overtaken, said(3, 70, 25)) == [20, 5]


async def test_a_process_that_begins_anew_under_its_old_name_counts_from_zero(
    postgres_server: EmbeddedPostgres,
) -> None:
    assert await rolled(postgres_server, said(1, 50, 10), said(2, 70, 15, uptime_s=1.0)) == [10, 15]


async def test_one_heartbeat_from_the_future_does_not_silence_the_others(postgres_server: EmbeddedPostgres) -> None:
    future = said(1, 50, 20, sent_at=START + timedelta(days=3650))
    assert await rolled(postgres_server, future, said(2, 70, 25)) == [20, 5]


async def test_the_first_word_of_an_old_process_is_where_counting_begins(postgres_server: EmbeddedPostgres) -> None:
    old = said(1, 50, 100_000, uptime_s=13 * 3600.0)
    assert await rolled(postgres_server, old, said(2, 70, 100_007, uptime_s=14 * 3600.0)) == [0, 7]


async def test_counters_beyond_measure_stop_nobody(postgres_server: EmbeddedPostgres) -> None:
    huge = [said(n, 10 + n, MAX_COUNT, instance_id=UUID(int=n), endpoint="broken") for n in (1, 2, 3)]
    assert await rolled(postgres_server, *huge, said(9, 20, 5)) == [5, MAX_COUNT]


async def test_the_present_hour_is_not_rolled_up_yet(postgres_server: EmbeddedPostgres) -> None:
    assert await rolled(postgres_server, said(1, 350, 10), said(2, 360.0, 11)) == [10]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"since": "2025-12-01T00:00:00+00:00"}, "since"),
        ({"since": "2026-01-31"}, "since"),
        ({"since": 7}, "since"),
        ({"until": "2026-01-31T00:00:00Z"}, "until"),
    ],
)
async def test_a_window_that_cannot_be_rolled_up_is_refused(
    postgres_server: EmbeddedPostgres, arguments: dict[str, Any], field: str
) -> None:
    async with rollup_system(postgres_server) as system:
        for job in (system.rollups.hourly, system.rollups.daily):
            with pytest.raises(ValidationError) as refusal:
                await job(arguments)
            assert [wrong.field for wrong in refusal.value.fields] == [field]


async def test_an_operator_may_have_more_looked_at_again(postgres_server: EmbeddedPostgres) -> None:
    async with rollup_system(postgres_server) as system:
        first, late, last = with_deltas([said(1, 10, 4), said(2, 20, 6), said(5, 60 * 70, 9)])
        await system.come([first])
        system.move_to(START + timedelta(days=3))
        await system.come([last])
        await system.rollups.hourly({})
        await system.come([late])  # written three days after it came
        await system.rollups.hourly({})
        assert [figures[0] for _, figures in sorted((await system.hours()).items())] == [4, 3]
        await system.rollups.hourly({"since": START.isoformat()})
        assert [figures[0] for _, figures in sorted((await system.hours()).items())] == [6, 3]


async def test_today_is_what_was_rolled_up_and_what_came_since(postgres_server: EmbeddedPostgres) -> None:
    reports = SimulatedConnectors(Random(11), START, hours=60).reports(2)
    async with rollup_system(postgres_server) as system:
        now = START + timedelta(hours=50, minutes=40)
        come = [report for report in reports if report.received_at <= now]
        system.move_to(now - timedelta(hours=3))
        await system.come(come)
        await system.rollups.hourly({})
        system.move_to(now)
        await system.database.execute(
            "INSERT INTO switchboard.connector_registry SELECT DISTINCT ON (endpoint_identity) connector_type,"
            " endpoint_identity, 'p', instance_id, NULL, state, NULL, 0, now(), now(), 'self', 0, 0, 0, 0, 0"
            " FROM switchboard.connector_heartbeat_log"
        )
        listed = await Connectors(database=system.database, queries=QUERIES, clock=system.clock).list()
        wanted: dict[str, list[int]] = defaultdict(lambda: [0] * 8)
        for (_, endpoint, hour), figures in expected_hours(come).items():
            if hour.date() == now.date():
                wanted[endpoint] = [a + b for a, b in zip(wanted[endpoint], figures, strict=True)]
        assert {row["endpoint_identity"]: [*row["today"].values()] for row in listed["connectors"]} == wanted
