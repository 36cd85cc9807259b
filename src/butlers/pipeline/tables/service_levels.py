"""What the service levels are read from in Switchboard's schema, and where the results go.

Names of groups (`group_values`, `dimensions`) are JSON texts and a part of the key, so they are text and not jsonb.
"""

from __future__ import annotations

from pyspark.sql.types import BooleanType, IntegerType

from butlers.pipeline.tables import DOUBLE, LONG, MOMENT, STRING, Table, columns

REQUESTS = Table(
    schema="switchboard",
    name="message_inbox",
    columns=columns(
        request_id=STRING,
        received_at=MOMENT,
        source_channel=STRING,
        policy_tier=STRING,
        lifecycle_state=STRING,
        progress_at=MOMENT,
        final_state_at=MOMENT,
        override=STRING,
    ),
    key=("received_at", "request_id"),
    time="received_at",
)

ROUTES = Table(
    schema="switchboard",
    name="routing_log",
    columns=columns(id=STRING, target_butler=STRING, success=BooleanType(), error_class=STRING, created_at=MOMENT),
    key=("id",),
    time="created_at",
)

ACCEPT_TIMES = Table(
    schema="switchboard",
    name="ingress_accept_times",
    columns=columns(minute=MOMENT, source_channel=STRING, accept_ms=IntegerType(), messages=LONG),
    key=("minute", "source_channel", "accept_ms"),
    time="minute",
)

_PERCENTILES = {"p50_ms": DOUBLE, "p95_ms": DOUBLE, "p99_ms": DOUBLE}

DELIVERY_STATS = Table(
    schema="pipeline",
    name="delivery_stats",
    columns=columns(
        window_start=MOMENT,
        window_end=MOMENT,
        grouping=STRING,
        group_values=STRING,
        total=LONG,
        delivered=LONG,
        failed=LONG,
        dead_lettered=LONG,
        uncertain=LONG,
        expired=LONG,
        open=LONG,
        attempted=LONG,
        retried=LONG,
        success_rate=DOUBLE,
        dead_letter_rate=DOUBLE,
        retry_rate=DOUBLE,
        **_PERCENTILES,
        **{f"provider_{name}": kind for name, kind in _PERCENTILES.items()},
        requests_admitted=LONG,
        requests_deduplicated=LONG,
        requests_parked=LONG,
        requests_rejected=LONG,
    ),
    key=("window_start", "window_end", "grouping", "group_values"),
    time="window_start",
)

SERVICE_LEVELS = Table(
    schema="pipeline",
    name="service_levels",
    columns=columns(
        window_start=MOMENT,
        window_end=MOMENT,
        sli=STRING,
        dimensions=STRING,
        events=LONG,
        part=LONG,
        rate=DOUBLE,
        **_PERCENTILES,
        counts=STRING,
    ),
    key=("window_start", "window_end", "sli", "dimensions"),
    time="window_start",
)

ERROR_BUDGET_BURN = Table(
    schema="pipeline",
    name="error_budget_burn",
    columns=columns(
        as_of=MOMENT,
        window_s=LONG,
        channel=STRING,
        identity_scope=STRING,
        good=LONG,
        bad=LONG,
        objective=DOUBLE,
        burn_rate=DOUBLE,
    ),
    key=("as_of", "window_s", "channel", "identity_scope"),
    time="as_of",
)

LONG_BUDGET = Table(  # Messenger's own table, written here: what it cannot count every few seconds
    schema="messenger",
    name="long_budget",
    columns=columns(name=STRING, window_s=LONG, good=LONG, bad=LONG, as_of=MOMENT),
    key=("name", "window_s"),
    time="as_of",
)
