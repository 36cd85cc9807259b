"""What bulk planning reads and writes: the tables of the delivery runtime."""

from __future__ import annotations

from butlers.outbound import SCHEMA
from butlers.pipeline.tables import MOMENT, STRING, Table, columns

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
