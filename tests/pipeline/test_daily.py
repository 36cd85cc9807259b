"""Daily statistics and the fanout on Spark: those of independent oracles, written once, and the same when run again."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyspark.sql import SparkSession

from butlers.errors import ValidationError
from butlers.pipeline.job import Window
from butlers.pipeline.jobs.connector_stats import DAILY
from butlers.pipeline.tables import CONNECTOR_STATS_HOURLY, MESSAGE_INBOX
from butlers.pipeline.transforms.connector_stats import MOST, daily, fanout
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.pipeline.heartbeats import context_of, heartbeat_database, oracle, plain

DAY = datetime(2026, 3, 29, tzinfo=UTC)  # summer time begins: no day in UTC is longer for it
WINDOW = Window(start=DAY - timedelta(days=1), end=DAY + timedelta(days=1))
INBOX_COLUMNS = ("request_id", "received_at", "request_context", "dispatch_outcomes")


def hours() -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    # Shares that end in a half, and one of each sort between nothing and all.
    for box, (healthy, beats) in enumerate([(1, 800), (1, 3), (2, 3), (0, 7), (7, 7), (333, 800), (5, 32), (0, 0)]):
        for number, at in enumerate((DAY - timedelta(hours=1), DAY, DAY + timedelta(hours=23))):
            counts = (number, box, 3 * number, 1, beats, healthy, beats - healthy, 0)
            made.append(("imap", f"box-{box}", at, *counts))
    leap = datetime(2028, 2, 29, 12, tzinfo=UTC)
    made += [("http", "huge", leap + timedelta(hours=n), MOST, 0, 0, MOST - n, 10, 9, 0, 1) for n in range(3)]
    return made


def message(number: int, hour: float, outcomes: object, endpoint: str = "tests") -> tuple[Any, ...]:
    came_from = {"source_channel": "api", "source_endpoint_identity": endpoint, "sender": "ann"}
    text = None if outcomes is None else json.dumps(outcomes)
    return (str(UUID(int=number)), DAY + timedelta(hours=hour), json.dumps(came_from), text)


def to(butler: str, **more: object) -> dict[str, object]:
    return {"target_butler": butler, "success": True, **more}


MESSAGES = [
    message(1, -0.1, [to("finance"), to("finance"), to("health")]),
    message(2, 0.1, [to("finance"), to("health", skipped="a condition")]),
    message(3, 1, [to("finance", skipped=None), to("travel", skipped=True), to("general", skipped=False)]),
    message(4, 23.9, [to("finance")], endpoint="elsewhere"),
    message(5, 2, []),
    message(6, 2, None),
    message(7, 3, to("finance")),  # no list
    message(8, 3, "finance"),
]


def test_days_and_fanout_are_those_of_the_oracles(spark: SparkSession) -> None:
    rows = spark.createDataFrame(hours(), CONNECTOR_STATS_HOURLY.columns)
    days = plain(daily(rows).where("heartbeat_count > 0").collect())
    assert days == plain(oracle("daily", hours=rows.where("heartbeat_count > 0")))
    percents = {row[1]: row[-1] for row in days if row[2] == DAY.date()}
    assert percents["box-0"] == Decimal("0.13")  # 0.125, as PostgreSQL rounds it
    assert daily(rows).where("heartbeat_count = 0").select("uptime_pct").distinct().collect() == [(None,)]
    inbox = spark.createDataFrame(MESSAGES, MESSAGE_INBOX.only(INBOX_COLUMNS))
    assert plain(fanout(inbox).collect()) == plain(oracle("fanout", inbox=inbox))


async def test_the_job_writes_both_and_may_be_repeated(spark: SparkSession, postgres_server: EmbeddedPostgres) -> None:
    async with heartbeat_database(postgres_server, (date(2026, 3, 1),)) as (dsn, database):
        await _fill(database)
        first = DAILY.run(context_of(spark, dsn, WINDOW))
        stored = await _stored(database)
        assert DAILY.run(context_of(spark, dsn, WINDOW)) == first
        assert await _stored(database) == stored
        assert first.details["rows"] == 16
        assert len([row for row in stored[0] if row["endpoint_identity"] == "box-1"]) == 2
        assert [tuple(row)[2:5] for row in stored[1]] == [
            ("finance", date(2026, 3, 28), 1),
            ("health", date(2026, 3, 28), 1),
            ("finance", date(2026, 3, 29), 1),
            ("finance", date(2026, 3, 29), 2),
        ]
        await database.execute(
            "UPDATE switchboard.message_inbox SET dispatch_outcomes ="
            " jsonb_set(dispatch_outcomes, '{0,target_butler}', '\"travel\"') WHERE request_id = $1",
            UUID(int=4),
        )
        DAILY.run(context_of(spark, dsn, WINDOW))
        assert sorted(row["target_butler"] for row in (await _stored(database))[1]) == [
            "finance", "finance", "health", "travel"
        ]  # fmt: skip
        await _refused(spark, dsn)
        # A day whose messages have left the inbox: what is known of it stands.
        await database.execute(
            "INSERT INTO switchboard.connector_fanout_daily VALUES ('api', 'box', 'finance', '2026-02-20', 7)"
        )
        old = Window(start=datetime(2026, 2, 20, tzinfo=UTC), end=datetime(2026, 2, 21, tzinfo=UTC))
        assert DAILY.run(context_of(spark, dsn, old)).details["fanout_rows"] == 0
        assert await database.fetchval("SELECT count(*) FROM switchboard.connector_fanout_daily") == 5


async def _refused(spark: SparkSession, dsn: str) -> None:
    noon = Window(start=DAY + timedelta(hours=12), end=DAY + timedelta(days=1))
    try:
        DAILY.run(context_of(spark, dsn, noon))
    except ValidationError as refusal:
        assert [wrong.field for wrong in refusal.fields] == ["from"]
    else:
        raise AssertionError("half a day was rolled up")


async def _fill(database: Database) -> None:
    marks = ", ".join(f"${number}" for number in range(1, 12))
    await database.executemany(f"INSERT INTO switchboard.connector_stats_hourly VALUES ({marks})", hours())
    for number, at, came_from, outcomes in MESSAGES:
        await database.execute(
            "INSERT INTO switchboard.message_inbox (request_id, received_at, request_context, dispatch_outcomes,"
            " normalized_text, policy_tier, dedupe_key, submitted_by, schema_version, updated_at)"
            " VALUES ($1, $2, $3::text::jsonb, $4::text::jsonb, '', 'default', $5, 'tests', 'ingest.v1', $2)",
            UUID(number),
            at,
            came_from,
            outcomes,
            number,
        )


async def _stored(database: Database) -> tuple[list[Any], list[Any]]:
    days = await database.fetch("SELECT *, xmin::text FROM switchboard.connector_stats_daily ORDER BY 1, 2, 3")
    counts = await database.fetch(
        "SELECT *, xmin::text FROM switchboard.connector_fanout_daily ORDER BY day, message_count, 2, 3"
    )
    return days, counts
