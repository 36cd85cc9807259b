"""Deliveries, attempts and requests as the services leave them: every status, reason and boundary, by the hundred.

The same seed makes the same rows. They lie around one window, which holds the hour that Europe skips in March; others
lie around a leap day. Moments are drawn to the microsecond, and some are the very edges of the window.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from butlers.messenger.deliveries import migrations as messenger_migrations
from butlers.pipeline.job import JobContext, Window
from butlers.pipeline.tables import Table
from butlers.pipeline.tables.deliveries import (
    ACCEPT_TIMES,
    ADMISSION_OUTCOMES,
    ATTEMPTS,
    DEAD_LETTERS,
    DELIVERIES,
    RECIPIENT_RULES,
    REQUESTS,
    ROUTES,
)
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet
from tests.database import cloned_database_uri

Row = dict[str, Any]

TABLES = (
    MigrationSet(schema="switchboard", package="butlers.switchboard", component="switchboard"),
    messenger_migrations("messenger"),
    MigrationSet(schema="pipeline", package="butlers.pipeline"),
)
CONTRACTS = (
    DELIVERIES,
    ATTEMPTS,
    DEAD_LETTERS,
    RECIPIENT_RULES,
    ADMISSION_OUTCOMES,
    REQUESTS,
    ROUTES,
    ACCEPT_TIMES,
)
SUMMER_TIME = Window(start=datetime(2026, 3, 28, 12, tzinfo=UTC), end=datetime(2026, 3, 30, 6, 30, 30, tzinfo=UTC))
LEAP_DAY = Window(start=datetime(2024, 2, 28, tzinfo=UTC), end=datetime(2024, 3, 1, tzinfo=UTC))
NOTHING = Window(start=datetime(2025, 1, 1, tzinfo=UTC), end=datetime(2025, 1, 2, tzinfo=UTC))

_TICK = timedelta(microseconds=1)
_CHANNELS = (("telegram", "bot"), ("email", "bot"), ("telegram", "user"))
_OPEN = ("pending", "in_progress", "awaiting_retry", "pending_approval", "pending_missing_identifier")
_ENDED = ("delivered", "delivered", "delivered", "failed", "dead_lettered", "uncertain", "expired")
_CLASSES = ("target_unavailable", "timeout", "internal_error", "validation_error", "overload_rejected")
_RULES = ("throttle", "in_flight", "global", "channel", "recipient", "fair_share", "breaker", "suppressed")
_FOR_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_OUTCOMES = ("sent", "rejected", "failed", "lost", None)


@dataclass(slots=True, kw_only=True)
class Records:
    random: Random
    window: Window
    rows: dict[str, list[Row]] = field(default_factory=dict)  # by table

    @classmethod
    def around(cls, window: Window, *, seed: int, deliveries: int = 260) -> Records:
        records = cls(random=Random(seed), window=window)
        for number in range(deliveries):
            records._add_delivery(number)
        for number in range(deliveries // 2):
            records._add_request(number)
        records._add_rules()
        records._add_counts()
        return records

    def of(self, table: str) -> list[Row]:
        return self.rows.setdefault(table, [])

    def _moment(self) -> datetime:
        """Somewhere around the window, at times on its very edge."""
        start, end = self.window.start, self.window.end
        if self.random.random() < 0.1:
            return self.random.choice((start, start - _TICK, end, end - _TICK))
        spread = (end - start) * 2
        return start - (end - start) / 2 + timedelta(microseconds=self.random.randrange(spread // _TICK))

    def _id(self) -> str:
        return str(UUID(int=self.random.getrandbits(128)))

    def _some(self, *values: Any) -> Any:
        return self.random.choice(values)

    # --- Messenger ---------------------------------------------------------------------------------------------------

    def _add_delivery(self, number: int) -> None:
        known = self.of("messenger.delivery_requests")
        status = self._some(*_OPEN) if self.random.random() < 0.15 else self._some(*_ENDED)
        parent = self._some(*known) if known and self.random.random() < 0.3 else None
        # What descends from something is younger than it.
        created = max(self._moment(), parent["created_at"] + _TICK) if parent else self._moment()
        ended = None if status in _OPEN else self._some(created + self._span(), max(created, self._moment()))
        channel, scope = self._some(*_CHANNELS)
        failed = status in ("failed", "dead_lettered", "uncertain")
        row = {
            "id": self._id(),
            "idempotency_key": f"key-{number}-{self.window.start.year}",
            "origin_butler": self._some("finance", "health", "general"),
            "channel": channel,
            "identity_scope": scope,
            "intent": self._some("send", "reply", "react"),
            "target_identity": self._some("7", "8", "9", None),
            "ordering_key": "one",
            "message": "never read",
            "envelope": {},
            "priority": self._some("normal", "high"),
            "not_after": self._some(None, created + timedelta(seconds=40)),
            "status": status,
            "attempts": self.random.randrange(4),
            "next_attempt_at": created,
            "terminal_error_class": self._some(*_CLASSES) if failed else None,
            "terminal_retryable": self._some(True, False, None) if failed else None,
            "created_at": created,
            "updated_at": created,
            "terminal_at": ended,
            "replay_of": parent["id"] if parent else None,
            "action_id": self._id() if self.random.random() < 0.1 else None,
            "settled_at": ended if self.random.random() < 0.15 else None,
        }
        known.append(row)
        for place in range(self.random.randrange(4)):
            self._add_attempt(row, place + 1)
        if status == "dead_lettered":
            self._add_dead_letter(row)

    def _span(self) -> timedelta:
        return timedelta(microseconds=self._some(0, 1, self.random.randrange(90_000_000), 3_000_000))

    def _add_attempt(self, delivery: Row, number: int) -> None:
        outcome = self._some(*_OUTCOMES)
        started = self._some(delivery["created_at"] + self._span(), max(delivery["created_at"], self._moment()))
        certainty = {"sent": "sent", None: None}.get(outcome, self._some("not_sent", "uncertain"))
        failed = outcome not in ("sent", None)
        row = {
            "id": self._id(),
            "delivery_id": delivery["id"],
            "attempt_number": number,
            "worker": "test",
            "started_at": started,
            "completed_at": started if outcome else None,
            "latency_ms": self.random.randrange(2000) if outcome else None,
            "outcome": outcome,
            "certainty": certainty,
            "error_class": self._some(*_CLASSES) if failed else None,
            "retryable": self._some(True, False, None) if failed else None,
        }
        self.of("messenger.delivery_attempts").append(row)

    def _add_dead_letter(self, delivery: Row) -> None:
        row = {
            "id": self._id(),
            "delivery_id": delivery["id"],
            "origin_butler": delivery["origin_butler"],
            "channel": delivery["channel"],
            "intent": delivery["intent"],
            "quarantine_reason": "retries_exhausted",
            "error_class": delivery["terminal_error_class"],
            "error_summary": "away",
            "total_attempts": 3,
            "original_envelope": {},
            "all_attempt_outcomes": [],
            "replay_eligible": True,
            "replay_count": 0,
            "discarded_at": self._some(None, delivery["terminal_at"]),
            "created_at": delivery["terminal_at"],
        }
        self.of("messenger.delivery_dead_letter").append(row)

    def _add_rules(self) -> None:
        since = self.window.start
        for channel, target, rule in (
            ("telegram", "8", "suppressed"),  # the channel and a scope of it: one recipient all the same
            ("telegram.bot", "8", "suppressed"),
            ("telegram.user", "9", "suppressed"),
            ("email", "7", "moved"),
        ):
            row = {"channel": channel, "target": target, "rule": rule, "reason": "", "decided_by": "it", "since": since}
            self.of("messenger.recipient_rules").append(row)

    def _add_counts(self) -> None:
        minute = self.window.start.replace(second=0, microsecond=0)
        minutes = [minute + timedelta(minutes=step) for step in (-1, 0, 1, 500)]
        minutes.append(self.window.end.replace(second=0, microsecond=0))
        for at in minutes:
            for channel in ("telegram", "email"):
                self._add_admissions(at, channel)
                self._add_accepts(at, channel)

    def _add_admissions(self, minute: datetime, channel: str) -> None:
        fates = [(outcome, "") for outcome in ("admitted", "deduplicated", "parked")]
        for outcome, rule in [*fates, *(("rejected", rule) for rule in self.random.sample(_RULES, 3))]:
            row = {
                "minute": minute,
                "channel": channel,
                "intent": "send",
                "origin_butler": "general",
                "outcome": outcome,
                "rule": rule,
                "requests": self.random.randrange(1, 50),
            }
            self.of("messenger.admission_outcomes").append(row)

    # --- Switchboard -------------------------------------------------------------------------------------------------

    def _add_accepts(self, minute: datetime, channel: str) -> None:
        for accept_ms in self.random.sample((1, 2, 3, 5, 8, 13, 110, 2300), 4):
            row = {"minute": minute, "source_channel": channel, "accept_ms": accept_ms}
            self.of("switchboard.ingress_accept_times").append(row | {"messages": self.random.randrange(1, 30)})

    def _add_request(self, number: int) -> None:
        state = self._some("accepted", "progress", "parsed", "parsed", "parsed", "errored")
        received, has_ended = self._moment(), state in ("parsed", "errored")
        begun = received + self._span() if state == "progress" or (has_ended and self.random.random() < 0.9) else None
        row = {
            "request_id": self._id(),
            "received_at": received,
            "request_context": {},
            "normalized_text": "never read",
            "policy_tier": self._some("default", "interactive", "high_priority"),
            "dedupe_key": f"{number}",
            "submitted_by": "test",
            "lifecycle_state": state,
            "schema_version": "ingest.v1",
            "attachments": [],
            "attempts": 0,
            "calls": 0,
            "signal_pending": False,
            "updated_at": received,
            "source_channel": self._some("telegram", "email", "api"),
            "progress_at": begun,
            "final_state_at": (begun or received) + self._span() if has_ended else None,
            "override": {"action": "cancel"} if self.random.random() < 0.15 else None,
        }
        self.of("switchboard.message_inbox").append(row)
        for _ in range(self.random.randrange(3)):
            self._add_route(row)

    def _add_route(self, request: Row) -> None:
        success = self.random.random() < 0.8
        row = {
            "id": self._id(),
            "request_id": request["request_id"],
            "segment_id": "s1",
            "source_channel": request["source_channel"],
            "target_butler": self._some("finance", "health", "general"),
            "tool_name": "route.execute",
            "success": success,
            "duration_ms": 5,
            "error_class": None if success else self._some("timeout", "target_unavailable"),
            "router": "local",
            "created_at": self._moment(),
        }
        self.of("switchboard.routing_log").append(row)


@asynccontextmanager
async def database_of(server: EmbeddedPostgres, *records: Records) -> AsyncIterator[tuple[str, Database]]:
    """A database with these rows: its address, and a pool."""
    async with cloned_database_uri(server, TABLES) as dsn, await Database.connect(dsn, max_size=3) as database:
        await database.execute(
            "create table switchboard.message_inbox_any partition of switchboard.message_inbox default"
        )
        for given in records:
            for table, rows in given.rows.items():
                await insert(database, table, rows)
        yield dsn, database


async def insert(database: Database, table: str, rows: Iterable[Row]) -> None:
    listed = [_plain(row) for row in rows]
    names = ", ".join(listed[0])
    await database.execute(
        f"insert into {table} ({names}) select {names} from jsonb_populate_recordset(null::{table}, $1::jsonb)"
        " on conflict do nothing",  # two lots of records may share a rule
        listed,
    )


def _plain(row: Mapping[str, Any]) -> Row:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


def oracle(window: Window, *records: Records) -> duckdb.DuckDBPyConnection:
    """DuckDB over the same rows, under the tables' own names; the window as variables."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.execute("set variable window_start = ?::timestamptz", [window.start.isoformat()])
    connection.execute("set variable window_end = ?::timestamptz", [window.end.isoformat()])
    for table in CONTRACTS:
        connection.register(f"{table.name}_rows", _arrow(table, records))
        connection.execute(f"create table {table.name} as select distinct * from {table.name}_rows")
    return connection


def frame_of(spark: SparkSession, table: Table, *records: Records) -> DataFrame:
    """The same rows on Spark, without a database in between."""
    frame: DataFrame = spark.createDataFrame(_arrow(table, records))
    return frame.distinct().coalesce(1)


def _arrow(table: Table, records: Iterable[Records]) -> pa.Table:
    rows = [row for given in records for row in given.rows.get(str(table), [])]
    names = table.columns.fieldNames()
    listed = [{name: _text(row.get(name)) for name in names} for row in rows]
    return pa.Table.from_pylist(listed, schema=to_arrow_schema(table.columns, timezone="UTC"))


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, dict) else value


@contextmanager
def for_few_rows(spark: SparkSession) -> Iterator[SparkSession]:
    """Nothing is compiled, spread or planned anew: for a few hundred rows each costs more than it gains."""
    usual = {name: spark.conf.get(name) for name in _FOR_FEW_ROWS}
    _set(spark, _FOR_FEW_ROWS)
    try:
        yield spark
    finally:
        _set(spark, usual)


def _set(spark: SparkSession, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        spark.conf.set(name, value)


def context_of(spark: SparkSession, dsn: str, window: Window, lake: Any, **arguments: str) -> JobContext:
    return JobContext(spark=spark, dsn=dsn, lake=lake, run_id=UUID(int=7), window=window, arguments=arguments)
