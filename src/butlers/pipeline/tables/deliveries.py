"""What the jobs about deliveries and service levels read: who did what when, never a message."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql.types import BooleanType, IntegerType

from butlers.outbound import SCHEMA
from butlers.pipeline.tables import DAY, LONG, MOMENT, STRING, Table, columns

YES_OR_NO, INTEGER = BooleanType(), IntegerType()

DELIVERIES = Table(
    schema="messenger",
    name="delivery_requests",
    columns=columns(
        id=STRING,
        origin_butler=STRING,
        channel=STRING,
        identity_scope=STRING,
        intent=STRING,
        target_identity=STRING,
        priority=STRING,
        not_after=MOMENT,
        status=STRING,
        attempts=INTEGER,
        replay_of=STRING,
        action_id=STRING,
        terminal_error_class=STRING,
        terminal_retryable=YES_OR_NO,
        settled_at=MOMENT,
        created_at=MOMENT,
        terminal_at=MOMENT,
    ),
    key=("id",),
    time="created_at",
    kept=timedelta(days=365),
)

ATTEMPTS = Table(
    schema="messenger",
    name="delivery_attempts",
    columns=columns(
        id=STRING,
        delivery_id=STRING,
        started_at=MOMENT,
        completed_at=MOMENT,
        latency_ms=INTEGER,
        outcome=STRING,
        certainty=STRING,
        error_class=STRING,
        retryable=YES_OR_NO,
    ),
    key=("id",),
    time="started_at",
    kept=timedelta(days=365),
)

DEAD_LETTERS = Table(
    schema="messenger",
    name="delivery_dead_letter",
    columns=columns(id=STRING, channel=STRING, discarded_at=MOMENT, created_at=MOMENT),
    key=("id",),
    time="created_at",
    kept=timedelta(days=365),
)

RECIPIENT_RULES = Table(
    schema="messenger",
    name="recipient_rules",
    columns=columns(channel=STRING, target=STRING, rule=STRING),
    key=("channel", "target"),
)

ADMISSION_OUTCOMES = Table(
    schema="messenger",
    name="admission_outcomes",
    columns=columns(
        minute=MOMENT,
        channel=STRING,
        intent=STRING,
        origin_butler=STRING,
        outcome=STRING,
        rule=STRING,
        requests=LONG,
    ),
    key=("minute", "channel", "intent", "origin_butler", "outcome", "rule"),
    time="minute",
    kept=timedelta(days=90),
)


ENTITLEMENTS = Table(
    schema=SCHEMA,
    name="entitlements",
    columns=columns(subject_id=STRING, permission=STRING),
    key=("subject_id", "permission"),
)

PREFERENCES = Table(
    schema=SCHEMA, name="preferences", columns=columns(subject_id=STRING, document=STRING), key=("subject_id",)
)

DEFAULTS = Table(schema=SCHEMA, name="defaults", columns=columns(scope=STRING, document=STRING), key=("scope",))

MESSAGES = Table(
    schema=SCHEMA,
    name="messages",
    columns=columns(id=STRING, sender_id=STRING, document=STRING, created_at=MOMENT),
    key=("id",),
)

# Without state and attempts: those are the queue's own, and a load must not touch them.
SCHEDULED_MESSAGES = Table(
    schema=SCHEMA,
    name="scheduled_messages",
    columns=columns(
        dedupe_key=STRING,
        message_id=STRING,
        recipient_id=STRING,
        sender_id=STRING,
        channel=STRING,
        scheduled_at=MOMENT,
        priority=STRING,
        created_at=MOMENT,
    ),
    key=("dedupe_key",),
    time="scheduled_at",
)

BLOCKED_RECIPIENTS = Table(
    schema=SCHEMA,
    name="blocked_recipients",
    columns=columns(message_id=STRING, recipient_id=STRING, reason=STRING, detail=STRING, created_at=MOMENT),
    key=("message_id", "recipient_id"),
)


BOOKS = Table(
    schema="pipeline",
    name="books",
    columns=columns(date=DAY, rule=STRING, severity=STRING, checked=LONG, broken=LONG, young=LONG, run_id=STRING),
    key=("date", "rule"),
    time="date",
)

BOOKS_FINDINGS = Table(
    schema="pipeline",
    name="books_findings",
    columns=columns(date=DAY, rule=STRING, key=STRING, severity=STRING, detail=STRING, run_id=STRING),
    key=("date", "rule", "key"),
    time="date",
)
