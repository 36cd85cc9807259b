"""An audience: who is to get a message. CSV with a header, JSON lines or Parquet, one file or a folder of one kind.

The column `recipient_id` is read, and no other. The CSV files of a folder must have it in the same place, because Spark
takes the columns of all of them from one header. An audience is read and checked as a whole before anything is decided:
a file that cannot be read, an empty or impossible id and a recipient named twice end the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import adbc_driver_manager
from adbc_driver_manager.dbapi import Cursor
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import EqualTo
from pyspark.sql.types import IntegralType, StringType

from butlers.contracts.envelope import MAX_IDENTITY, invalid
from butlers.errors import ValidationError
from butlers.outbound.documents import read_defaults, read_preferences
from butlers.outbound.entitlements import EVERYONE, ROLE
from butlers.outbound.planning import Circumstances
from butlers.outbound.postgres_records import start_of_day
from butlers.outbound.preferences import SYSTEM_SCOPE, organization_scope
from butlers.outbound.values import Message
from butlers.pipeline.connection import refused, transaction
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables.deliveries import (
    BLOCKED_RECIPIENTS,
    DEFAULTS,
    ENTITLEMENTS,
    MEMBERSHIPS,
    MESSAGES,
    SCHEDULED_MESSAGES,
)

ID = "recipient_id"
_FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
_IN_FILE = re.compile(r"file:/[^\s,'\"]+")
_OTHER_HEADER = "CSV header does not conform to the schema"


def read_audience(spark: SparkSession, place: str) -> DataFrame:
    """The recipients' ids, not checked yet."""
    kind = _format(place)
    with _translated(place):
        reader = spark.read.option("mode", "FAILFAST")
        if kind == "json":
            return _canonical(reader.schema(f"{ID} string").json(place))
        # enforceSchema=false: every file's own header is held against the one that the columns come from.
        headed = reader.option("header", "true").option("enforceSchema", "false")
        frame = headed.csv(place) if kind == "csv" else reader.parquet(place)
    return _only_ids(frame, place)


def count_audience(audience: DataFrame, place: str) -> int:
    """How many they are; raises when one of them cannot be written to or is there twice."""
    unusable = (
        sf.col(ID).isNull() | (sf.trim(ID) == "") | (sf.length(ID) > MAX_IDENTITY) | sf.contains(ID, sf.lit("\0"))
    )
    each = audience.groupBy(ID).agg(sf.count("*").alias("times"))
    summary = each.agg(
        sf.coalesce(sf.sum("times"), sf.lit(0)).alias("rows"),
        sf.coalesce(sf.sum(sf.when(unusable, sf.col("times"))), sf.lit(0)).alias("unusable"),
        sf.count(sf.when(sf.col("times") > 1, 1)).alias("repeated"),
        sf.min(sf.when(sf.col("times") > 1, sf.col(ID))).alias("example"),
    )
    with _translated(place):
        [found] = summary.collect()
    if found["unusable"]:
        raise invalid("audience", f"{place}: {ID} is missing, empty or too long in {found['unusable']} rows")
    if found["repeated"]:
        raise invalid(
            "audience", f"{place}: {found['repeated']} recipients are named more than once, {found['example']} for one"
        )
    if not found["rows"]:
        raise invalid("audience", f"{place}: names nobody")
    return int(found["rows"])


def _only_ids(frame: DataFrame, place: str) -> DataFrame:
    if ID not in frame.columns:
        raise invalid("audience", f"{place}: there is no column {ID}")
    kind = frame.schema[ID].dataType
    if not isinstance(kind, StringType | IntegralType):
        raise invalid("audience", f"{place}: the column {ID} is {kind.simpleString()}, not text")
    return _canonical(frame.select(sf.col(ID).cast("string").alias(ID)))


def _canonical(frame: DataFrame) -> DataFrame:
    """Ids of contacts in one spelling: two spellings of one person would be two recipients."""
    is_uuid = sf.col(ID).rlike(r"^\s*[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\s*$")
    return frame.withColumn(ID, sf.when(is_uuid, sf.lower(sf.trim(ID))).otherwise(sf.col(ID)))


def _format(place: str) -> str:
    if "://" in place:  # a store that only Spark can look into
        return _FORMATS.get(Path(place).suffix, "parquet")
    path = Path(place)
    if not path.exists():
        raise invalid("audience", f"{place}: there is no such file or folder")
    kinds = {_FORMATS.get(file.suffix, file.name) for file in _files(path)}
    if len(kinds) != 1 or not kinds <= set(_FORMATS.values()):
        raise invalid("audience", f"{place}: must be .csv, .jsonl or .parquet, or a folder of one of these")
    return kinds.pop()


def _files(path: Path) -> Iterator[Path]:
    """What Spark would read."""
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(path).parts):
            yield file


@contextmanager
def _translated(place: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _unreadable(place, str(error)) from error


def _unreadable(place: str, message: str) -> ValidationError:
    named = _IN_FILE.search(message)
    file = f" ({Path(named[0]).name.rstrip('.')})" if named else ""
    if _OTHER_HEADER in message:
        return invalid("audience", f"{place}: {ID} is not in the same place in the header of every file{file}")
    return invalid("audience", f"{place}: a file cannot be read as what its name says{file}")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DOCUMENTS = f"SELECT scope, document::text FROM {DEFAULTS.qualified} WHERE scope IN ($1, $2)"
# What `effective_permissions` in outbound/queries.sql says of the sender.
_PERMISSIONS = f"""
SELECT DISTINCT permission FROM {ENTITLEMENTS.qualified}
WHERE organization_id IN ('', $2) AND (subject_id IN ($1, '{EVERYONE}') OR subject_id IN (
    SELECT '{ROLE}' || role FROM {MEMBERSHIPS.qualified} WHERE subject_id = $1 AND organization_id IN ('', $2)))
"""
_KNOWN = f"SELECT document::text FROM {MESSAGES.qualified} WHERE id = $1::text::uuid"
_BOOKED = f"""
SELECT floor(extract(epoch FROM scheduled_at) / 60)::bigint, count(*) FROM {SCHEDULED_MESSAGES.qualified}
WHERE sender_id = $1 AND scheduled_at >= $2 GROUP BY 1
"""
_VERSION = f"SELECT max(version)::int FROM {MESSAGES.schema}.templates WHERE id = $1"
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def read_circumstances(
    dsn: str, message: Message, *, now: datetime, horizon: datetime
) -> tuple[Circumstances, Mapping[datetime, int]]:
    """What holds for all, and what the sender has scheduled before, by minute."""
    organization = message.organization_id or ""
    scope = organization_scope(organization)
    try:
        with transaction(dsn) as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            texts = dict(_rows(cursor, _DOCUMENTS, SYSTEM_SCOPE, scope))
            permissions = frozenset(name for (name,) in _rows(cursor, _PERMISSIONS, message.sender_id, organization))
            booked = _rows(cursor, _BOOKED, message.sender_id, start_of_day(now))
    except adbc_driver_manager.Error as error:
        raise refused("reading the delivery runtime's tables", error) from error
    circumstances = Circumstances(
        message=message,
        now=now,
        horizon=horizon,
        sender_permissions=permissions,
        organization=read_preferences(texts.get(scope)),
        system=read_defaults(texts.get(SYSTEM_SCOPE)),
    )
    return circumstances, {_EPOCH + timedelta(minutes=minute): count for minute, count in booked}


def known_message(dsn: str, message_id: UUID) -> Any:
    """The document stored under this id, None when there is none."""
    rows = _ask(dsn, _KNOWN, str(message_id))
    return json.loads(rows[0][0]) if rows else None


def newest_version(dsn: str, template_id: str) -> int | None:
    """Of a template; None when there is none."""
    [(version,)] = _ask(dsn, _VERSION, template_id)
    return int(version) if version is not None else None


def read_clock(dsn: str) -> datetime:
    """The moment by the server's clock, in UTC; those who take rows from its queue go by it."""
    [(micros,)] = _ask(dsn, _CLOCK)
    return _EPOCH + timedelta(microseconds=micros)


def read_decisions(spark: SparkSession, dsn: str, message_id: UUID) -> DataFrame:
    """What was decided for a message before, in the columns of a plan."""
    ours = [EqualTo(("message_id",), str(message_id))]
    whom = ("message_id", "recipient_id")
    queued = read_table(spark, dsn, SCHEDULED_MESSAGES, columns=(*whom, "channel", "scheduled_at"), where=ours)
    blocked = read_table(spark, dsn, BLOCKED_RECIPIENTS, columns=(*whom, "reason", "detail"), where=ours)
    return queued.unionByName(blocked, allowMissingColumns=True)


def _ask(dsn: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    try:
        with transaction(dsn) as cursor:
            return _rows(cursor, query, *values)
    except adbc_driver_manager.Error as error:
        raise refused("reading the delivery runtime's tables", error) from error


def _rows(cursor: Cursor, query: str, *values: Any) -> list[tuple[Any, ...]]:
    cursor.execute(query, values)
    return cursor.fetchall()
