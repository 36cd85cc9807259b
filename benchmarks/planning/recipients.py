"""A database with people in it, and the job and the service that plan for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from benchmarks.planning import people
from butlers.outbound.entitlements import EVERYONE
from butlers.outbound.service import OutboundStore, SendResult
from butlers.pipeline.job import JobContext, JobResult, Window
from butlers.pipeline.jobs.audience_plan import JOB
from butlers.pipeline.sources.postgres import snapshots
from butlers.storage.database import Database

HORIZON = timedelta(days=7)
Answers = dict[str, tuple[str, str, str]]  # recipient -> channel, moment, "" or "blocked", reason, detail


async def settle(database: Database, numbers: Iterable[int]) -> None:
    """Store what the people want and may, as the service's own doors would."""
    store = OutboundStore(database)
    for permission in ("messages:send:*", "messages:receive:*"):
        await store.revoke(EVERYONE, permission)  # only what is granted below holds
    await store.set_system_defaults(json.dumps(people.SYSTEM), now=people.NOW)
    await store.set_organization_defaults(people.ORGANIZATION, json.dumps(people.ORGANIZATION_DEFAULTS), now=people.NOW)
    for permission in people.SENDER_PERMISSIONS:
        await store.grant(people.SENDER, permission, now=people.NOW)
    await _copy(database, list(numbers))


async def _copy(database: Database, numbers: list[int]) -> None:
    documents = ((number, people.document(number)) for number in numbers)
    stored = [(people.person_id(n), document, people.NOW) for n, document in documents if document is not None]
    granted = [(people.person_id(n), grant, people.NOW) for n in numbers for grant in people.grants(n)]
    async with database.connection() as connection:
        await connection.copy_records_to_table("preferences", schema_name="outbound", records=stored)
        await connection.copy_records_to_table(
            "entitlements",
            schema_name="outbound",
            columns=("subject_id", "permission", "granted_at"),
            records=granted,
        )


WINDOW = Window(start=people.NOW, end=people.NOW + HORIZON)
AT_THAT_TIME = {"load": "yes", "now": people.NOW.isoformat(), "past": "yes"}  # into the queue, as if it were that night


def run_job(spark: SparkSession, dsn: str, folder: Path, **arguments: str) -> JobResult:
    return run_within(WINDOW, spark, dsn, folder, **arguments)


def run_within(window: Window, spark: SparkSession, dsn: str, folder: Path, **arguments: str) -> JobResult:
    context = JobContext(spark=spark, dsn=dsn, lake=folder / "lake", run_id=uuid4(), window=window, arguments=arguments)
    with snapshots():
        return JOB.run(context)


def read_plan(spark: SparkSession, result: JobResult) -> Answers:
    rows = spark.read.parquet(result.details["plan"]).selectExpr(
        "recipient_id",
        "coalesce(channel, 'blocked') AS how",
        "coalesce(date_format(scheduled_at, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\"), reason) AS what",
        "coalesce(detail, '') AS detail",
    )
    names, *answered = (column.to_pylist() for column in rows.toArrow().columns)
    return dict(zip(names, zip(*answered, strict=True), strict=True))


def answers(result: SendResult) -> Answers:
    queued = {q.recipient_id: (q.channel, _written(q.scheduled_at), "") for q in result.queued}
    return queued | {b.recipient_id: ("blocked", b.reason.value, b.detail) for b in result.blocked}


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")
