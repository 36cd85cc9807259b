"""What the delivery runtime knows: the few rows that every verdict depends on, read by the driver in one snapshot, and
what was decided for a message before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import adbc_driver_manager
from adbc_driver_manager.dbapi import Cursor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo

from butlers.outbound.documents import read_defaults, read_preferences
from butlers.outbound.planning import Circumstances
from butlers.outbound.service import SYSTEM_SCOPE, organization_scope, start_of_day
from butlers.outbound.values import Message
from butlers.pipeline.connection import refused, transaction
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.table_contracts.audience import (
    BLOCKED_RECIPIENTS,
    DEFAULTS,
    ENTITLEMENTS,
    MESSAGES,
    SCHEDULED_MESSAGES,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DOCUMENTS = f"SELECT scope, document::text FROM {DEFAULTS.qualified} WHERE scope IN ($1, $2)"
_PERMISSIONS = f"SELECT permission FROM {ENTITLEMENTS.qualified} WHERE subject_id = $1"
_KNOWN = f"SELECT document::text FROM {MESSAGES.qualified} WHERE id = $1::text::uuid"
_BOOKED = f"""
SELECT floor(extract(epoch FROM scheduled_at) / 60)::bigint, count(*) FROM {SCHEDULED_MESSAGES.qualified}
WHERE sender_id = $1 AND scheduled_at >= $2 GROUP BY 1
"""
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def read_circumstances(
    dsn: str, message: Message, *, now: datetime, horizon: datetime
) -> tuple[Circumstances, Mapping[datetime, int]]:
    """What holds for all, and what the sender has scheduled before, by minute."""
    scope = organization_scope(message.organization_id or "")
    try:
        with transaction(dsn) as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            texts = dict(_rows(cursor, _DOCUMENTS, SYSTEM_SCOPE, scope))
            permissions = frozenset(name for (name,) in _rows(cursor, _PERMISSIONS, message.sender_id))
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
