"""The events of the lake: a table of a service each, and what is taken from it.

Plain columns are the table's own (`table_contracts/lake.py`, with what is left out and why). A derived column is made
on the server from one that must not leave as it is, because it holds texts or addresses beside the names and counts
that the lake wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from pyspark.sql.types import BooleanType, DataType, StringType, StructField, StructType

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Schemas
from butlers.pipeline.tables import DAY, LONG, Table
from butlers.pipeline.tables.lake import (
    ATTEMPTS_TABLE,
    DELIVERIES_TABLE,
    HEARTBEATS_TABLE,
    RECEIPTS_TABLE,
    REQUESTS_TABLE,
    ROUTING_TABLE,
)

CHANGED_IN = "changed_in"  # in the table
CHANGE, DATE = "change", "date"  # in the lake


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A column of the lake that is made from one of the table."""

    name: str
    source: str  # the column that it is made from
    sql: str
    type: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    name: str  # also its folder
    table: Table
    key: tuple[str, ...]  # whose versions are one row
    derived: tuple[Derived, ...] = ()
    born_moves: bool = False  # the time that its day is taken from may change: a row's versions may lie in several days

    @property
    def born(self) -> str:
        """The column that its day is taken from."""
        assert self.table.time is not None
        return self.table.time

    @property
    def schema(self) -> StructType:
        """A row as it is stored; its day is the name of a folder."""
        plain = [field for field in self.table.columns if field.name != CHANGED_IN]
        made = [StructField(one.name, one.type) for one in self.derived]
        return StructType([*plain, *made, StructField(CHANGE, LONG)])

    @property
    def dated_schema(self) -> StructType:
        """A row as it is read."""
        return StructType([*self.schema, StructField(DATE, DAY)])

    @property
    def expressions(self) -> Mapping[str, str]:
        """Each stored column in the server's words."""
        plain = {
            field.name: f'"{field.name}"{"::text" if isinstance(field.dataType, StringType) else ""}'
            for field in self.table.columns
            if field.name != CHANGED_IN
        }
        return plain | {one.name: one.sql for one in self.derived} | {CHANGE: CHANGED_IN}

    @property
    def watched(self) -> frozenset[str]:
        """The table's columns whose change makes a new version."""
        plain = {field.name for field in self.table.columns}
        return frozenset(plain - {CHANGED_IN} | {one.source for one in self.derived})

    def within(self, schemas: Schemas) -> Self:
        return replace(self, table=self.table.within(getattr(schemas, self.table.schema)))


_TEXT, _FLAG = StringType(), BooleanType()
_OUTCOMES = """(
    SELECT jsonb_agg(jsonb_build_object(
        'segment_id', part -> 'segment_id', 'target_butler', part -> 'target_butler', 'success', part -> 'success',
        'skipped', part -> 'skipped', 'duration_ms', part -> 'duration_ms', 'attempts', part -> 'attempts',
        'error_class', part -> 'error' -> 'class') ORDER BY place)
    FROM jsonb_array_elements(dispatch_outcomes) WITH ORDINALITY AS parts (part, place)
    WHERE jsonb_typeof(dispatch_outcomes) = 'array')::text"""
_TARGETS = "jsonb_path_query_array(routing_output, '$.segments[*].butler')::text"

HEARTBEATS = Event(name="heartbeats", table=HEARTBEATS_TABLE, key=("id",))
REQUESTS = Event(
    name="requests",
    table=REQUESTS_TABLE,
    key=("request_id",),
    derived=(
        Derived(
            name="source_endpoint_identity",  # our own mailbox or bot, never the sender
            source="request_context",
            sql="request_context ->> 'source_endpoint_identity'",
            type=_TEXT,
        ),
        Derived(name="router", source="routing_output", sql="routing_output ->> 'router'", type=_TEXT),
        Derived(
            name="fallback_reason", source="routing_output", sql="routing_output ->> 'fallback_reason'", type=_TEXT
        ),
        Derived(name="targets", source="routing_output", sql=_TARGETS, type=_TEXT),  # JSON: the butlers' names
        Derived(name="outcomes", source="dispatch_outcomes", sql=_OUTCOMES, type=_TEXT),  # JSON: one object per segment
        Derived(name="error_class", source="lifecycle_error", sql="lifecycle_error ->> 'class'", type=_TEXT),
        Derived(name="override_action", source="override", sql="override ->> 'action'", type=_TEXT),
    ),
)
ROUTING = Event(name="routing", table=ROUTING_TABLE, key=("id",))
DELIVERIES = Event(
    name="deliveries",
    table=DELIVERIES_TABLE,
    key=("id",),
    derived=(
        Derived(
            name="key_digest",
            source="idempotency_key",
            sql="encode(sha256(convert_to(idempotency_key, 'UTF8')), 'hex')",
            type=_TEXT,
        ),
    ),
)
ATTEMPTS = Event(name="attempts", table=ATTEMPTS_TABLE, key=("id",))
RECEIPTS = Event(
    name="receipts",
    table=RECEIPTS_TABLE,
    key=("id",),
    derived=(
        Derived(
            name="permanent", source="metadata", sql="coalesce(metadata @> '{\"permanent\": true}', false)", type=_FLAG
        ),
        Derived(
            name="reported", source="metadata", sql="coalesce(metadata @> '{\"reported\": true}', false)", type=_FLAG
        ),
    ),
    born_moves=True,  # a bounce that becomes a permanent one
)

EVENTS: Mapping[str, Event] = {
    event.name: event for event in (HEARTBEATS, REQUESTS, ROUTING, DELIVERIES, ATTEMPTS, RECEIPTS)
}


def chosen_events(name: str | None, schemas: Schemas) -> tuple[Event, ...]:
    """The one that somebody named, or all."""
    if name is not None and name not in EVENTS:
        raise invalid("event", f"must be one of {', '.join(EVENTS)}")
    return tuple(event.within(schemas) for event in EVENTS.values() if name in {None, event.name})
