"""What the jobs about deliveries and service levels read and write: who did what when, never a message.

Names of groups (`group_values`, `dimensions`) are JSON texts and a part of the key, so they are text and not jsonb.
"""

from __future__ import annotations

from butlers.outbound import SCHEMA
from butlers.pipeline.tables import Table, columns

DELIVERIES = Table(
    schema="messenger",
    name="delivery_requests",
    columns=columns("""
        id string, origin_butler string, channel string, identity_scope string, intent string,
        target_identity string, priority string, not_after timestamp, status string, attempts int,
        replay_of string, action_id string, terminal_error_class string, terminal_retryable boolean,
        settled_at timestamp, created_at timestamp, terminal_at timestamp
    """),
    key=("id",),
    time="created_at",
)

ATTEMPTS = Table(
    schema="messenger",
    name="delivery_attempts",
    columns=columns("""
        id string, delivery_id string, started_at timestamp, completed_at timestamp, latency_ms int,
        outcome string, certainty string, error_class string, retryable boolean
    """),
    key=("id",),
    time="started_at",
)

DEAD_LETTERS = Table(
    schema="messenger",
    name="delivery_dead_letter",
    columns=columns("id string, channel string, discarded_at timestamp, created_at timestamp"),
    key=("id",),
    time="created_at",
)

RECIPIENT_RULES = Table(
    schema="messenger",
    name="recipient_rules",
    columns=columns("channel string, target string, rule string"),
    key=("channel", "target"),
)

ADMISSION_OUTCOMES = Table(
    schema="messenger",
    name="admission_outcomes",
    columns=columns("""
        minute timestamp, channel string, intent string, origin_butler string, outcome string, rule string,
        requests bigint
    """),
    key=("minute", "channel", "intent", "origin_butler", "outcome", "rule"),
    time="minute",
)

ENTITLEMENTS = Table(
    schema=SCHEMA,
    name="entitlements",
    columns=columns("subject_id string, permission string, organization_id string"),
    key=("subject_id", "permission", "organization_id"),
)

MEMBERSHIPS = Table(
    schema=SCHEMA,
    name="memberships",
    columns=columns("subject_id string, role string, organization_id string"),
    key=("subject_id", "role", "organization_id"),
)

PREFERENCES = Table(
    schema=SCHEMA, name="preferences", columns=columns("subject_id string, document string"), key=("subject_id",)
)

DEFAULTS = Table(schema=SCHEMA, name="defaults", columns=columns("scope string, document string"), key=("scope",))

MESSAGES = Table(
    schema=SCHEMA,
    name="messages",
    columns=columns("id string, sender_id string, document string, created_at timestamp"),
    key=("id",),
)

# Without state and attempts: those are the queue's own, and a load must not touch them.
SCHEDULED_MESSAGES = Table(
    schema=SCHEMA,
    name="scheduled_messages",
    columns=columns("""
        dedupe_key string, message_id string, recipient_id string, sender_id string, channel string,
        scheduled_at timestamp, priority string, created_at timestamp
    """),
    key=("dedupe_key",),
    time="scheduled_at",
)

BLOCKED_RECIPIENTS = Table(
    schema=SCHEMA,
    name="blocked_recipients",
    columns=columns("""
        message_id string, recipient_id string, reason string, detail string, created_at timestamp
    """),
    key=("message_id", "recipient_id"),
)

BOOKS = Table(
    schema="pipeline",
    name="books",
    columns=columns("""
        date date, rule string, severity string, checked bigint, broken bigint, young bigint, run_id string
    """),
    key=("date", "rule"),
    time="date",
)

BOOKS_FINDINGS = Table(
    schema="pipeline",
    name="books_findings",
    columns=columns("date date, rule string, key string, severity string, detail string, run_id string"),
    key=("date", "rule", "key"),
    time="date",
)

REQUESTS = Table(
    schema="switchboard",
    name="message_inbox",
    columns=columns("""
        request_id string, received_at timestamp, source_channel string, policy_tier string,
        lifecycle_state string, progress_at timestamp, final_state_at timestamp, override string
    """),
    key=("received_at", "request_id"),
    time="received_at",
)

ROUTES = Table(
    schema="switchboard",
    name="routing_log",
    columns=columns("""
        id string, target_butler string, success boolean, error_class string, created_at timestamp
    """),
    key=("id",),
    time="created_at",
)

ACCEPT_TIMES = Table(
    schema="switchboard",
    name="ingress_accept_times",
    columns=columns("minute timestamp, source_channel string, accept_ms int, messages bigint"),
    key=("minute", "source_channel", "accept_ms"),
    time="minute",
)

DELIVERY_STATS = Table(
    schema="pipeline",
    name="delivery_stats",
    columns=columns("""
        window_start timestamp, window_end timestamp, grouping string, group_values string, total bigint,
        delivered bigint, failed bigint, dead_lettered bigint, uncertain bigint, expired bigint, open bigint,
        attempted bigint, retried bigint, success_rate double, dead_letter_rate double, retry_rate double,
        p50_ms double, p95_ms double, p99_ms double, provider_p50_ms double, provider_p95_ms double,
        provider_p99_ms double, requests_admitted bigint, requests_deduplicated bigint, requests_parked bigint,
        requests_rejected bigint
    """),
    key=("window_start", "window_end", "grouping", "group_values"),
    time="window_start",
)

SERVICE_LEVELS = Table(
    schema="pipeline",
    name="service_levels",
    columns=columns("""
        window_start timestamp, window_end timestamp, sli string, dimensions string, events bigint, part bigint,
        rate double, p50_ms double, p95_ms double, p99_ms double, counts string
    """),
    key=("window_start", "window_end", "sli", "dimensions"),
    time="window_start",
)

ERROR_BUDGET_BURN = Table(
    schema="pipeline",
    name="error_budget_burn",
    columns=columns("""
        as_of timestamp, window_s bigint, channel string, identity_scope string, good bigint, bad bigint,
        objective double, burn_rate double
    """),
    key=("as_of", "window_s", "channel", "identity_scope"),
    time="as_of",
)

LONG_BUDGET = Table(  # Messenger's own table, written here: what it cannot count every few seconds
    schema="messenger",
    name="long_budget",
    columns=columns("name string, window_s bigint, good bigint, bad bigint, as_of timestamp"),
    key=("name", "window_s"),
    time="as_of",
)
