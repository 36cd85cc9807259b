"""A database with people in it, and the job and the service that plan for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from benchmarks.planning import people
from butlers.clock import ManualClock
from butlers.contacts.people import PersonRecord
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.changes import ChangeListener
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.entitlements import EVERYONE, PermissionGate, StoredEntitlements
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.preferences import PreferenceCache, organization_scope
from butlers.outbound.service import Inputs, MessageDeliveryService, SendResult
from butlers.pipeline.job import JobContext, JobResult, Window
from butlers.pipeline.jobs.audience_plan import JOB
from butlers.pipeline.sources.postgres import snapshots
from butlers.storage.database import Database

HORIZON = timedelta(days=7)
Answers = dict[str, tuple[str, str, str]]  # recipient -> channel, moment, "" or "blocked", reason, detail


class AnyPeople:
    """Whoever is named is there, and can be reached by every channel."""

    async def resolve_people(self, references: Sequence[str], *, field: str) -> Mapping[str, PersonRecord]:
        return {one: self._person(one) for one in references}

    def _person(self, id: Any) -> PersonRecord:
        channels = frozenset(people.CHANNELS)
        return PersonRecord(id=id, name=id, timezone=None, locale=None, preferred_channel=None, channels=channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineService:
    """The service of a system without its doors, at one moment."""

    database: Database
    records: type[PostgresRecords] = PostgresRecords

    async def send(self, message: str, *, now: datetime = people.NOW, horizon: timedelta = HORIZON) -> SendResult:
        clock, database = ManualClock(now), self.database
        listener = ChangeListener(connect=_nothing_to_hear, clock=clock)
        log = ChangeLog(database=database, new_id=uuid4)
        entitlements = StoredEntitlements(database=database, clock=clock, log=log, listener=listener)
        inputs = Inputs(
            gate=PermissionGate(entitlements=entitlements, clock=clock, listener=listener),
            preferences=PreferenceCache(database=database, clock=clock, listener=listener),
        )
        service = MessageDeliveryService(
            people=AnyPeople(),
            inputs=inputs,
            records=self.records(database),
            queue=MemoryQueue(),
            clock=clock,
            horizon=horizon,
            most_recipients=10_000,
        )
        return await service.send_message(parse_document(MessageDocument, message, kind="message"))


async def _nothing_to_hear() -> Any:
    raise ConnectionError("nobody listens here")


async def settle(database: Database, numbers: Iterable[int]) -> None:
    """Store what the people want and may."""
    defaults = {"system": people.SYSTEM, organization_scope(people.ORGANIZATION): people.ORGANIZATION_DEFAULTS}
    # Only what is granted here holds.
    await database.execute("DELETE FROM outbound.entitlements WHERE subject_id = $1", EVERYONE)
    for scope, document in defaults.items():
        await database.execute("INSERT INTO outbound.defaults VALUES ($1, $2, $3)", scope, document, people.NOW)
    for permission in people.SENDER_PERMISSIONS:
        await database.execute(
            "INSERT INTO outbound.entitlements (subject_id, permission, granted_at) VALUES ($1, $2, $3)",
            people.SENDER,
            permission,
            people.NOW,
        )
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
