"""The books of a real system: messages through its doors, its tables into a lake, the lake through the job.

The lake is filled by hand, with the events' own expressions and commits: the stream has tests of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from butlers.pipeline.job import JobContext, JobResult, Window
from butlers.pipeline.jobs import reconciliation
from butlers.pipeline.lake.events import CHANGED_IN, DATE, HEARTBEATS
from butlers.pipeline.lake.log import LakeLog
from butlers.pipeline.lake.stream import append_batch
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet, migrate
from tests.pipeline.reconciliation_records import EVENTS
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.timeout(600)  # two runs of a job of many stages, beside other tests

PIPELINE = MigrationSet(schema="pipeline", package="butlers.pipeline")
FINDINGS = "SELECT rule FROM pipeline.books_findings ORDER BY rule, key"
TOTALS = "SELECT date, rule, severity, checked, broken, young FROM pipeline.books ORDER BY date, rule"

_REMEMBER = "UPDATE messenger.delivery_requests SET terminal_at = $2 WHERE id = $1"


@pytest.mark.heavy
async def test_a_fault_in_a_systems_tables_is_found_and_put_right_its_books_balance(
    tmp_path: Path, postgres_server: EmbeddedPostgres, spark: SparkSession
) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        await migrate(running.database, [PIPELINE])
        ended = await _some_traffic(running)
        await running.stop()
        # Given a delivery that has forgotten when it ended
        delivery_id, moment = await _forget_an_end(running)
        await _fill_lake(spark, running, tmp_path)
        # When the books are made, then they do not balance
        unbalanced = _run(spark, running, tmp_path)
        before = await running.database.fetch(TOTALS)
        assert not unbalanced.satisfied
        assert unbalanced.details["samples"]["delivery-end-untimed"] == [str(delivery_id)]
        assert await _found(running) == ["delivery-end-untimed", "delivery-in-doubt"]
        # And once that is put right they do, with the same lines and without the finding
        await running.database.execute(_REMEMBER, delivery_id, moment)
        await _fill_lake(spark, running, tmp_path)
        balanced = _run(spark, running, tmp_path)
        assert balanced.satisfied, balanced.details
        assert await _found(running) == ["delivery-in-doubt"]  # a notice, for a person to settle
        mended = [dict(row) | ({"broken": 0} if row["rule"] == "delivery-end-untimed" else {}) for row in before]
        assert [dict(row) for row in await running.database.fetch(TOTALS)] == mended
        _assert_all_was_looked_at(balanced, ended)


def _assert_all_was_looked_at(result: JobResult, ended: list[str]) -> None:
    counted = result.details["rules"]
    assert counted["request-left-open"]["checked"] == len(ended)
    assert counted["answer-missing"]["checked"] == ended.count("parsed")
    assert counted["delivered-unreceipted"]["checked"] > 0
    assert counted["lake-misses-rows"]["checked"] >= len(EVENTS)


async def _some_traffic(running: RunningSystem) -> list[str]:
    """Messages that are answered, one whose answer is refused, one of which nobody knows; how each ended."""
    states = [await _told(running, text) for text in ("I paid the electricity bill", "I slept badly")]
    states.append(await _told(running, "Book the train to Graz", kind="refused", status=400))
    states.append(await _told(running, "Remember that Ann likes tea", kind="drop_after"))
    assert states == ["parsed", "parsed", "errored", "parsed"]
    return states


async def _told(running: RunningSystem, text: str, **fault: Any) -> str:
    if fault:
        await running.control("POST", "/faults", {"method": "sendMessage", "times": 1} | fault)
    reply = await running.ingest(text)
    trace = await running.finished(reply["request_id"])
    state: str = trace["lifecycle_state"]
    return state


async def _forget_an_end(running: RunningSystem) -> tuple[UUID, datetime]:
    row = await running.database.fetchrow(
        "SELECT id, terminal_at FROM messenger.delivery_requests WHERE status = 'delivered' ORDER BY id LIMIT 1"
    )
    assert row is not None
    await running.database.execute(_REMEMBER, row["id"], None)
    return row["id"], row["terminal_at"]


async def _found(running: RunningSystem) -> list[str]:
    return [row["rule"] for row in await running.database.fetch(FINDINGS)]


async def _fill_lake(spark: SparkSession, running: RunningSystem, folder: Path) -> None:
    """What has changed since the last time."""
    for event in (HEARTBEATS, *EVENTS):
        place = folder / "lake" / event.name
        horizon = LakeLog(place).create(server="tests").horizon
        listed = ", ".join(f"{sql} AS {name}" for name, sql in event.expressions.items())
        query = f"SELECT {listed} FROM {event.table.qualified} WHERE {CHANGED_IN} >= $1"
        rows = [tuple(row.values()) for row in await running.database.fetch(query, horizon)]
        if rows:
            batch = spark.createDataFrame(rows, event.schema).withColumn(DATE, sf.to_date(event.born))
            append_batch(batch, place)


def _run(spark: SparkSession, running: RunningSystem, folder: Path) -> JobResult:
    today = datetime.combine(running.clock.now().astimezone(UTC).date(), time(), UTC)
    context = JobContext(
        spark=spark,
        dsn=running.settings.database_url or "",
        lake=folder / "lake",
        run_id=uuid4(),
        window=Window(start=today - timedelta(days=1), end=today + timedelta(days=1)),
        arguments={"grace": "0s"},
    )
    return reconciliation.JOB.run(context)
