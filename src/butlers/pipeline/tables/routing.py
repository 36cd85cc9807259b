"""What the jobs about routing read and write. `*` in a column of a slice stands for every value, '' for none."""

from __future__ import annotations

from butlers.pipeline.tables import Table, columns

MESSAGES = Table(
    schema="switchboard",
    name="message_inbox",
    columns=columns("""
        request_id string, received_at timestamp, request_context string, normalized_text string,
        pinned_target string, routing_output string, lifecycle_state string, prompt_version string,
        model_version string, override string, source_channel string
    """),
    key=("received_at", "request_id"),
    time="received_at",
)

ROUTING_LOG = Table(
    schema="switchboard",
    name="routing_log",
    columns=columns("""
        id string, request_id string, segment_id string, target_butler string, success boolean, router string,
        prompt_version string, model_version string, created_at timestamp
    """),
    key=("id",),
    time="created_at",
)

OPERATOR_AUDIT_LOG = Table(
    schema="switchboard",
    name="operator_audit_log",
    columns=columns("""
        id string, action string, request_id string, payload string, outcome string, outcome_details string,
        performed_at timestamp
    """),
    key=("id",),
    time="performed_at",
)

BUTLER_REGISTRY = Table(
    schema="switchboard",
    name="butler_registry",
    columns=columns("name string, description string, triggers string, capabilities string"),
    key=("name",),
)

SLICE = ("router", "model_version", "prompt_version", "source_channel", "target_butler")
_WINDOW_KEY = ("window_start", "window_end")
_WINDOW = "window_start timestamp, window_end timestamp"
_SLICE = ", ".join(f"{name} string" for name in SLICE)

ROUTING_QUALITY = Table(
    schema="pipeline",
    name="routing_quality",
    columns=columns(f"""
        {_WINDOW}, {_SLICE}, baseline_start timestamp, baseline_end timestamp, requests bigint, decisions bigint,
        corrected bigint, fallbacks bigint, general_chosen bigint, multi_segment bigint, repeats bigint,
        repeats_same bigint, redecided bigint, redecided_same bigint, dispatches bigint, failed_dispatches bigint,
        partial_failures bigint, total_failures bigint, correctness double, fallback_rate double,
        multi_segment_rate double, stability double, dispatch_failure_rate double, partial_failure_rate double,
        total_failure_rate double, baseline_decisions bigint, multi_segment_change double, shift double
    """),
    key=(*_WINDOW_KEY, *SLICE),
    time="window_start",
)

ROUTING_ALERTS = Table(
    schema="pipeline",
    name="routing_alerts",
    columns=columns(f"""
        {_WINDOW}, metric string, {_SLICE}, value double, threshold double, samples bigint, state string
    """),
    key=(*_WINDOW_KEY, "metric", *SLICE),
    time="window_start",
)

ROUTING_EVALUATIONS = Table(
    schema="pipeline",
    name="routing_evaluations",
    columns=columns(f"""
        {_WINDOW}, candidate string, router string, model_version string, prompt_version string, messages bigint,
        agreed bigint, stored_fallbacks bigint, candidate_fallbacks bigint, corrected bigint, stored_right bigint,
        candidate_right bigint, agreement double, stored_fallback_rate double, candidate_fallback_rate double,
        stored_accuracy double, candidate_accuracy double
    """),
    key=(*_WINDOW_KEY, "candidate", "router", "model_version", "prompt_version"),
    time="window_start",
)

ROUTING_EVALUATION_CHANGES = Table(
    schema="pipeline",
    name="routing_evaluation_changes",
    columns=columns(f"""
        {_WINDOW}, candidate string, stored_targets string, candidate_targets string, messages bigint,
        samples string, sampled int
    """),
    key=(*_WINDOW_KEY, "candidate", "stored_targets", "candidate_targets"),
    time="window_start",
)
