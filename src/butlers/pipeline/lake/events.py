"""The events of the lake: a table of a service each, and what is taken from it.

A derived column is made on the server from one that must not leave as it is, because it holds texts or addresses
beside the names and counts that the lake wants.

Nothing that somebody wrote, and nobody's address. Left out on purpose:

    message_inbox            raw_payload, normalized_text, attachments, aggregated_reply (texts); thread_key, dedupe_key
                             (they hold chat ids and addresses); of request_context, routing_output, dispatch_outcomes,
                             lifecycle_error and override only names, counts and classes; claims and leases (a renewal
                             is no event)
    routing_log              error (may quote the message)
    connector_heartbeat_log  error_message (may quote the source)
    delivery_requests        message, subject, envelope, source_event, decisions, terminal_error_message (texts);
                             target_identity, address, ordering_key, contact_id (whom it is for); of the idempotency
                             key, which holds the address, a digest; settled_by (a person); claims and leases
    delivery_attempts        error_message, provider_response (may quote the message)
    delivery_receipts        provider_delivery_id (holds a chat or a mail domain); of metadata two flags

`changed_in` is the number of the transaction that wrote the row as it is now (docs/decisions/0067).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import DataType, StringType, StructField, StructType

from butlers.contracts.envelope import invalid
from butlers.pipeline.tables import ADDED_COLUMNS, TYPES, Table, columns

CHANGED_IN = "changed_in"  # in the table
CHANGE, DATE = "change", "date"  # in the lake


@dataclass(frozen=True, slots=True)
class Derived:
    """A column of the lake that is made from one of the table."""

    name: str
    source: str  # the column that it is made from
    sql: str
    type: DataType = TYPES["string"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    name: str  # also its folder
    table: Table
    derived: tuple[Derived, ...] = ()
    born_moves: bool = False  # the time that its day is taken from may change: a row's versions may lie in several days

    @property
    def key(self) -> str:
        """The column whose versions are one row; what stands before it in the table's key names a partition."""
        return self.table.key[-1]

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
        return StructType([*plain, *made, StructField(CHANGE, TYPES["bigint"])])

    @property
    def dated_schema(self) -> StructType:
        """A row as it is read."""
        return StructType([*self.schema, StructField(DATE, TYPES["date"])])

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


_OUTCOMES = """(
    SELECT jsonb_agg(jsonb_build_object(
        'segment_id', part -> 'segment_id', 'target_butler', part -> 'target_butler', 'success', part -> 'success',
        'skipped', part -> 'skipped', 'duration_ms', part -> 'duration_ms', 'attempts', part -> 'attempts',
        'error_class', part -> 'error' -> 'class') ORDER BY place)
    FROM jsonb_array_elements(dispatch_outcomes) WITH ORDINALITY AS parts (part, place)
    WHERE jsonb_typeof(dispatch_outcomes) = 'array')::text"""
_TARGETS = "jsonb_path_query_array(routing_output, '$.segments[*].butler')::text"

HEARTBEATS = Event(
    name="heartbeats",
    table=Table(
        schema="switchboard",
        name="connector_heartbeat_log",
        columns=columns(f"""
            id string, connector_type string, endpoint_identity string, instance_id string, state string,
            uptime_s double, messages_ingested bigint, messages_failed bigint, source_api_calls bigint,
            checkpoint_saves bigint, dedupe_accepted bigint, received_at timestamp, sent_at timestamp, {ADDED_COLUMNS},
            changed_in bigint
        """),
        key=("received_at", "id"),
        time="received_at",
    ),
)
REQUESTS = Event(
    name="requests",
    table=Table(
        schema="switchboard",
        name="message_inbox",
        columns=columns("""
            request_id string, received_at timestamp, source_channel string, policy_tier string, pinned_target string,
            submitted_by string, lifecycle_state string, schema_version string, prompt_version string,
            model_version string, attempts int, calls int, not_before timestamp, progress_at timestamp,
            final_state_at timestamp, updated_at timestamp, changed_in bigint
        """),
        key=("received_at", "request_id"),
        time="received_at",
    ),
    derived=(
        # Our own mailbox or bot, never the sender.
        Derived("source_endpoint_identity", "request_context", "request_context ->> 'source_endpoint_identity'"),
        Derived("router", "routing_output", "routing_output ->> 'router'"),
        Derived("fallback_reason", "routing_output", "routing_output ->> 'fallback_reason'"),
        Derived("targets", "routing_output", _TARGETS),  # JSON: the butlers' names
        Derived("outcomes", "dispatch_outcomes", _OUTCOMES),  # JSON: one object per segment
        Derived("error_class", "lifecycle_error", "lifecycle_error ->> 'class'"),
        Derived("override_action", "override", "override ->> 'action'"),
    ),
)
ROUTING = Event(
    name="routing",
    table=Table(
        schema="switchboard",
        name="routing_log",
        columns=columns("""
            id string, request_id string, segment_id string, source_channel string, target_butler string,
            tool_name string, success boolean, duration_ms int, error_class string, router string, confidence double,
            prompt_version string, model_version string, created_at timestamp, changed_in bigint
        """),
        key=("id",),
        time="created_at",
    ),
)
DELIVERIES = Event(
    name="deliveries",
    table=Table(
        schema="messenger",
        name="delivery_requests",
        columns=columns("""
            id string, request_id string, origin_butler string, channel string, identity_scope string, intent string,
            priority string, rank smallint, not_after timestamp, duplicate_detection boolean, status string,
            attempts int, next_attempt_at timestamp, terminal_error_class string, terminal_retryable boolean,
            admitted boolean, replay_of string, action_id string, created_at timestamp, updated_at timestamp,
            terminal_at timestamp, settled_at timestamp, changed_in bigint
        """),
        key=("id",),
        time="created_at",
    ),
    derived=(Derived("key_digest", "idempotency_key", "encode(sha256(convert_to(idempotency_key, 'UTF8')), 'hex')"),),
)
ATTEMPTS = Event(
    name="attempts",
    table=Table(
        schema="messenger",
        name="delivery_attempts",
        columns=columns("""
            id string, delivery_id string, attempt_number int, worker string, started_at timestamp,
            completed_at timestamp, latency_ms int, outcome string, certainty string, error_class string,
            retryable boolean, changed_in bigint
        """),
        key=("id",),
        time="started_at",
    ),
)
RECEIPTS = Event(
    name="receipts",
    table=Table(
        schema="messenger",
        name="delivery_receipts",
        columns=columns("""
            id string, delivery_id string, part int, receipt_type string, received_at timestamp, changed_in bigint
        """),
        key=("id",),
        time="received_at",
    ),
    derived=tuple(
        Derived(flag, "metadata", f"""coalesce(metadata @> '{{"{flag}": true}}', false)""", TYPES["boolean"])
        for flag in ("permanent", "reported")
    ),
    born_moves=True,  # a bounce that becomes a permanent one
)

EVENTS: Mapping[str, Event] = {
    event.name: event for event in (HEARTBEATS, REQUESTS, ROUTING, DELIVERIES, ATTEMPTS, RECEIPTS)
}


def chosen_events(name: str | None) -> tuple[Event, ...]:
    """The one that somebody named, or all."""
    if name is not None and name not in EVENTS:
        raise invalid("event", f"must be one of {', '.join(EVENTS)}")
    return tuple(event for event in EVENTS.values() if name in {None, event.name})
