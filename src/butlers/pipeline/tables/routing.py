"""What the jobs about routing read and write. `*` in a column of a slice stands for every value, '' for none."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql.types import BooleanType, IntegerType

from butlers.pipeline.tables import DOUBLE, LONG, MOMENT, STRING, Table, columns

KEPT = timedelta(days=365)

MESSAGES = Table(
    schema="switchboard",
    name="message_inbox",
    columns=columns(
        request_id=STRING,
        received_at=MOMENT,
        request_context=STRING,
        normalized_text=STRING,
        pinned_target=STRING,
        routing_output=STRING,
        lifecycle_state=STRING,
        prompt_version=STRING,
        model_version=STRING,
        override=STRING,
        source_channel=STRING,
    ),
    key=("received_at", "request_id"),
    time="received_at",
)

ROUTING_LOG = Table(
    schema="switchboard",
    name="routing_log",
    columns=columns(
        id=STRING,
        request_id=STRING,
        segment_id=STRING,
        target_butler=STRING,
        success=BooleanType(),
        router=STRING,
        prompt_version=STRING,
        model_version=STRING,
        created_at=MOMENT,
    ),
    key=("id",),
    time="created_at",
    kept=KEPT,
)

OPERATOR_AUDIT_LOG = Table(
    schema="switchboard",
    name="operator_audit_log",
    columns=columns(
        id=STRING,
        action=STRING,
        request_id=STRING,
        payload=STRING,
        outcome=STRING,
        outcome_details=STRING,
        performed_at=MOMENT,
    ),
    key=("id",),
    time="performed_at",
    kept=KEPT,
)

BUTLER_REGISTRY = Table(
    schema="switchboard",
    name="butler_registry",
    columns=columns(name=STRING, description=STRING, triggers=STRING, capabilities=STRING),
    key=("name",),
)

SLICE = {
    "router": STRING,
    "model_version": STRING,
    "prompt_version": STRING,
    "source_channel": STRING,
    "target_butler": STRING,
}
WINDOW = {"window_start": MOMENT, "window_end": MOMENT}

ROUTING_QUALITY = Table(
    schema="pipeline",
    name="routing_quality",
    columns=columns(
        **WINDOW,
        **SLICE,
        baseline_start=MOMENT,
        baseline_end=MOMENT,
        requests=LONG,
        decisions=LONG,
        corrected=LONG,
        fallbacks=LONG,
        general_chosen=LONG,
        multi_segment=LONG,
        repeats=LONG,
        repeats_same=LONG,
        redecided=LONG,
        redecided_same=LONG,
        dispatches=LONG,
        failed_dispatches=LONG,
        partial_failures=LONG,
        total_failures=LONG,
        correctness=DOUBLE,
        fallback_rate=DOUBLE,
        multi_segment_rate=DOUBLE,
        stability=DOUBLE,
        dispatch_failure_rate=DOUBLE,
        partial_failure_rate=DOUBLE,
        total_failure_rate=DOUBLE,
        baseline_decisions=LONG,
        multi_segment_change=DOUBLE,
        shift=DOUBLE,
    ),
    key=(*WINDOW, *SLICE),
    time="window_start",
    kept=KEPT,
)

ROUTING_ALERTS = Table(
    schema="pipeline",
    name="routing_alerts",
    columns=columns(
        **WINDOW,
        metric=STRING,
        **SLICE,
        value=DOUBLE,
        threshold=DOUBLE,
        samples=LONG,
        state=STRING,
    ),
    key=(*WINDOW, "metric", *SLICE),
    time="window_start",
    kept=KEPT,
)

CANDIDATE = {**WINDOW, "candidate": STRING}

ROUTING_EVALUATIONS = Table(
    schema="pipeline",
    name="routing_evaluations",
    columns=columns(
        **CANDIDATE,
        router=STRING,
        model_version=STRING,
        prompt_version=STRING,
        messages=LONG,
        agreed=LONG,
        stored_fallbacks=LONG,
        candidate_fallbacks=LONG,
        corrected=LONG,
        stored_right=LONG,
        candidate_right=LONG,
        agreement=DOUBLE,
        stored_fallback_rate=DOUBLE,
        candidate_fallback_rate=DOUBLE,
        stored_accuracy=DOUBLE,
        candidate_accuracy=DOUBLE,
    ),
    key=(*CANDIDATE, "router", "model_version", "prompt_version"),
    time="window_start",
    kept=KEPT,
)

ROUTING_EVALUATION_CHANGES = Table(
    schema="pipeline",
    name="routing_evaluation_changes",
    columns=columns(
        **CANDIDATE,
        stored_targets=STRING,
        candidate_targets=STRING,
        messages=LONG,
        samples=STRING,
        sampled=IntegerType(),
    ),
    key=(*CANDIDATE, "stored_targets", "candidate_targets"),
    time="window_start",
    kept=KEPT,
)
