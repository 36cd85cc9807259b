"""The schema contract with the services' tables: what the jobs read and write, as Spark sees it.

    PostgreSQL                          Spark
    text, uuid, jsonb                   string (uuid and jsonb are cast to text on the server)
    timestamptz                         timestamp, in UTC
    date                                date
    smallint, integer, bigint           short, int, long
    xid8                                long
    double precision                    double
    numeric(p,s)                        decimal(p,s)
    boolean                             boolean

A table may name a part of the real one's columns: those that are needed. A test compares every table here and in
`table_contracts` with what the migrations make.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from butlers.errors import InternalError
from butlers.storage.queries import quote_identifier
from butlers.switchboard.connectors.deltas import ADDED

STRING, LONG, DOUBLE, MOMENT, DAY = StringType(), LongType(), DoubleType(), TimestampType(), DateType()


def columns(**types: DataType) -> StructType:
    """Columns in the order they are written; whether one may be null is the server's business."""
    return StructType([StructField(name, kind) for name, kind in types.items()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    schema: str
    name: str
    columns: StructType
    key: tuple[str, ...]  # what a merge goes by: its primary key or a unique one
    time: str | None = None  # the column that windows are about
    kept: timedelta | None = None  # None: for ever

    @property
    def qualified(self) -> str:
        """The name as SQL text."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def within(self, schema: str) -> Self:
        """The same table in another schema."""
        return replace(self, schema=schema)

    def only(self, names: Iterable[str]) -> StructType:
        """Some of its columns, in the order asked for."""
        wanted = list(names)
        unknown = [name for name in wanted if name not in self.columns.fieldNames()]
        if unknown:
            raise InternalError(f"the contract of {self} has no column {', '.join(unknown)}")
        return StructType([self.columns[name] for name in wanted])


_COUNTED = {
    "messages_ingested": LONG,
    "messages_failed": LONG,
    "source_api_calls": LONG,
    "dedupe_accepted": LONG,
    "heartbeat_count": LONG,
    "healthy_count": LONG,
    "degraded_count": LONG,
    "error_count": LONG,
}

CONNECTOR_HEARTBEAT_LOG = Table(
    schema="switchboard",
    name="connector_heartbeat_log",
    columns=columns(
        id=STRING,
        connector_type=STRING,
        endpoint_identity=STRING,
        instance_id=STRING,
        state=STRING,
        error_message=STRING,
        uptime_s=DOUBLE,
        messages_ingested=LONG,
        messages_failed=LONG,
        source_api_calls=LONG,
        checkpoint_saves=LONG,
        dedupe_accepted=LONG,
        received_at=MOMENT,
        sent_at=MOMENT,
        **dict.fromkeys(ADDED, LONG),  # null in rows from before deltas were stored
    ),
    key=("received_at", "id"),
    time="received_at",
    kept=timedelta(days=7),
)

CONNECTOR_PROCESSES = Table(
    schema="switchboard",
    name="connector_processes",
    columns=columns(connector_type=STRING, endpoint_identity=STRING, instance_id=STRING, last_heartbeat_at=MOMENT),
    key=("connector_type", "endpoint_identity", "instance_id"),
    time="last_heartbeat_at",
    kept=timedelta(days=30),
)

CONNECTOR_STATS_HOURLY = Table(
    schema="switchboard",
    name="connector_stats_hourly",
    columns=columns(connector_type=STRING, endpoint_identity=STRING, hour=MOMENT, **_COUNTED),
    key=("connector_type", "endpoint_identity", "hour"),
    time="hour",
    kept=timedelta(days=30),
)

CONNECTOR_STATS_DAILY = Table(
    schema="switchboard",
    name="connector_stats_daily",
    columns=columns(connector_type=STRING, endpoint_identity=STRING, day=DAY, **_COUNTED, uptime_pct=DecimalType(5, 2)),
    key=("connector_type", "endpoint_identity", "day"),
    time="day",
    kept=timedelta(days=365),
)

CONNECTOR_FANOUT_DAILY = Table(
    schema="switchboard",
    name="connector_fanout_daily",
    columns=columns(
        source_channel=STRING, source_endpoint_identity=STRING, target_butler=STRING, day=DAY, message_count=LONG
    ),
    key=("source_channel", "source_endpoint_identity", "target_butler", "day"),
    time="day",
    kept=timedelta(days=365),
)

MESSAGE_INBOX = Table(  # no text, reply or payload: where a message came from and where it went
    schema="switchboard",
    name="message_inbox",
    columns=columns(
        request_id=STRING,
        received_at=MOMENT,
        request_context=STRING,
        dispatch_outcomes=STRING,
        source_channel=STRING,
    ),
    key=("received_at", "request_id"),
    time="received_at",
)
