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
`lake/events.py` with what the migrations make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from butlers.errors import InternalError
from butlers.storage.queries import quote_identifier
from butlers.switchboard.connectors.deltas import ADDED

TYPES: Mapping[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        *(StringType(), BooleanType(), ShortType(), IntegerType(), LongType(), DoubleType(), TimestampType()),
        DateType(),
    )
}
_DECIMAL = "decimal("


def columns(ddl: str) -> StructType:
    """Columns as Spark's DDL has them, `id string, share decimal(5,2)`; the server says which may be null."""
    pairs = (column.split() for column in " ".join(ddl.split()).split(", "))
    return StructType([StructField(name, _type(kind)) for name, kind in pairs])


def _type(kind: str) -> DataType:
    if not kind.startswith(_DECIMAL):
        return TYPES[kind]
    precision, scale = kind.removeprefix(_DECIMAL).rstrip(")").split(",")
    return DecimalType(int(precision), int(scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    schema: str
    name: str
    columns: StructType
    key: tuple[str, ...]  # what a merge goes by: its primary key or a unique one
    time: str | None = None  # the column that windows are about
    retention: timedelta | None = None  # None: for ever

    @property
    def qualified(self) -> str:
        """The name as SQL text."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def only(self, names: Iterable[str]) -> StructType:
        """Some of its columns, in the order asked for."""
        chosen = list(names)
        unknown = [name for name in chosen if name not in self.columns.fieldNames()]
        if unknown:
            raise InternalError(f"the contract of {self} has no column {', '.join(unknown)}")
        return StructType([self.columns[name] for name in chosen])


_COUNTED = """messages_ingested bigint, messages_failed bigint, source_api_calls bigint, dedupe_accepted bigint,
    heartbeat_count bigint, healthy_count bigint, degraded_count bigint, error_count bigint"""
ADDED_COLUMNS = ", ".join(f"{name} bigint" for name in ADDED)  # null in rows and files from before deltas were stored

CONNECTOR_HEARTBEAT_LOG = Table(
    schema="switchboard",
    name="connector_heartbeat_log",
    columns=columns(f"""
        id string, connector_type string, endpoint_identity string, instance_id string, state string,
        error_message string, uptime_s double, messages_ingested bigint, messages_failed bigint,
        source_api_calls bigint, checkpoint_saves bigint, dedupe_accepted bigint, received_at timestamp,
        sent_at timestamp, {ADDED_COLUMNS}
    """),
    key=("received_at", "id"),
    time="received_at",
    retention=timedelta(days=7),
)

CONNECTOR_PROCESSES = Table(
    schema="switchboard",
    name="connector_processes",
    columns=columns("""
        connector_type string, endpoint_identity string, instance_id string, last_heartbeat_at timestamp
    """),
    key=("connector_type", "endpoint_identity", "instance_id"),
    time="last_heartbeat_at",
    retention=timedelta(days=30),
)

CONNECTOR_STATS_HOURLY = Table(
    schema="switchboard",
    name="connector_stats_hourly",
    columns=columns(f"connector_type string, endpoint_identity string, hour timestamp, {_COUNTED}"),
    key=("connector_type", "endpoint_identity", "hour"),
    time="hour",
    retention=timedelta(days=30),
)

CONNECTOR_STATS_DAILY = Table(
    schema="switchboard",
    name="connector_stats_daily",
    columns=columns(f"""
        connector_type string, endpoint_identity string, day date, {_COUNTED}, uptime_pct decimal(5,2)
    """),
    key=("connector_type", "endpoint_identity", "day"),
    time="day",
    retention=timedelta(days=365),
)

CONNECTOR_FANOUT_DAILY = Table(
    schema="switchboard",
    name="connector_fanout_daily",
    columns=columns("""
        source_channel string, source_endpoint_identity string, target_butler string, day date,
        message_count bigint
    """),
    key=("source_channel", "source_endpoint_identity", "target_butler", "day"),
    time="day",
    retention=timedelta(days=365),
)

MESSAGE_INBOX = Table(  # no text, reply or payload: where a message came from and where it went
    schema="switchboard",
    name="message_inbox",
    columns=columns("""
        request_id string, received_at timestamp, request_context string, dispatch_outcomes string,
        source_channel string
    """),
    key=("received_at", "request_id"),
    time="received_at",
)
