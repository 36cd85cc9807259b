"""What the event lake holds of the services' tables.

Nothing that somebody wrote, and nobody's address. Left out on purpose:

    message_inbox            raw_payload, normalized_text, attachments, aggregated_reply (texts); thread_key, dedupe_key
                             (they hold chat ids and addresses); of request_context, routing_output, dispatch_outcomes,
                             lifecycle_error and override only names, counts and classes (see `lake/events.py`); claims
                             and leases (a renewal is no event)
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

from pyspark.sql.types import BooleanType, IntegerType, ShortType

from butlers.pipeline.tables import DOUBLE, LONG, MOMENT, STRING, Table, columns
from butlers.switchboard.connectors.deltas import ADDED

_FLAG, _INT = BooleanType(), IntegerType()

HEARTBEATS_TABLE = Table(
    schema="switchboard",
    name="connector_heartbeat_log",
    columns=columns(
        id=STRING,
        connector_type=STRING,
        endpoint_identity=STRING,
        instance_id=STRING,
        state=STRING,
        uptime_s=DOUBLE,
        messages_ingested=LONG,
        messages_failed=LONG,
        source_api_calls=LONG,
        checkpoint_saves=LONG,
        dedupe_accepted=LONG,
        received_at=MOMENT,
        sent_at=MOMENT,
        **dict.fromkeys(ADDED, LONG),  # null in files and rows from before deltas were stored
        changed_in=LONG,
    ),
    key=("received_at", "id"),
    time="received_at",
)

REQUESTS_TABLE = Table(
    schema="switchboard",
    name="message_inbox",
    columns=columns(
        request_id=STRING,
        received_at=MOMENT,
        source_channel=STRING,
        policy_tier=STRING,
        pinned_target=STRING,
        submitted_by=STRING,
        lifecycle_state=STRING,
        schema_version=STRING,
        prompt_version=STRING,
        model_version=STRING,
        attempts=_INT,
        calls=_INT,
        not_before=MOMENT,
        progress_at=MOMENT,
        final_state_at=MOMENT,
        updated_at=MOMENT,
        changed_in=LONG,
    ),
    key=("received_at", "request_id"),
    time="received_at",
)

ROUTING_TABLE = Table(
    schema="switchboard",
    name="routing_log",
    columns=columns(
        id=STRING,
        request_id=STRING,
        segment_id=STRING,
        source_channel=STRING,
        target_butler=STRING,
        tool_name=STRING,
        success=_FLAG,
        duration_ms=_INT,
        error_class=STRING,
        router=STRING,
        confidence=DOUBLE,
        prompt_version=STRING,
        model_version=STRING,
        created_at=MOMENT,
        changed_in=LONG,
    ),
    key=("id",),
    time="created_at",
)

DELIVERIES_TABLE = Table(
    schema="messenger",
    name="delivery_requests",
    columns=columns(
        id=STRING,
        request_id=STRING,
        origin_butler=STRING,
        channel=STRING,
        identity_scope=STRING,
        intent=STRING,
        priority=STRING,
        rank=ShortType(),
        not_after=MOMENT,
        duplicate_detection=_FLAG,
        status=STRING,
        attempts=_INT,
        next_attempt_at=MOMENT,
        terminal_error_class=STRING,
        terminal_retryable=_FLAG,
        admitted=_FLAG,
        replay_of=STRING,
        action_id=STRING,
        created_at=MOMENT,
        updated_at=MOMENT,
        terminal_at=MOMENT,
        settled_at=MOMENT,
        changed_in=LONG,
    ),
    key=("id",),
    time="created_at",
)

ATTEMPTS_TABLE = Table(
    schema="messenger",
    name="delivery_attempts",
    columns=columns(
        id=STRING,
        delivery_id=STRING,
        attempt_number=_INT,
        worker=STRING,
        started_at=MOMENT,
        completed_at=MOMENT,
        latency_ms=_INT,
        outcome=STRING,
        certainty=STRING,
        error_class=STRING,
        retryable=_FLAG,
        changed_in=LONG,
    ),
    key=("id",),
    time="started_at",
)

RECEIPTS_TABLE = Table(
    schema="messenger",
    name="delivery_receipts",
    columns=columns(id=STRING, delivery_id=STRING, part=_INT, receipt_type=STRING, received_at=MOMENT, changed_in=LONG),
    key=("id",),
    time="received_at",
)
