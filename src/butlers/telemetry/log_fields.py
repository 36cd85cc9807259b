"""The only names a log line may carry beside its event, by what they tell."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PROCESS = _names("butler instance pid port version schema module signal")

IDS = _names(
    """
    request_id subrequest_id segment_id delivery_id session_id action_id job_id connector_id external_event_id
    dedupe_key trace_id endpoint_id
    """
)

PARTIES = _names("caller origin_butler target_butler tool transport provider")

KINDS = _names(
    """
    channel source_channel connector_type intent identity_scope policy_tier fanout_mode router runtime model
    schedule job_name dispatch_mode migration partition table
    """
)

OUTCOMES = _names(
    """
    dedupe_action duplicate lifecycle_state outcome status status_code certainty decision reason error_class
    retryable
    """
)

NUMBERS = _names(
    """
    attempt attempts retry_after_seconds duration_ms latency_ms count bytes queue_depth oldest newest input_tokens
    output_tokens tool_calls
    """
)

FIELDS: frozenset[str] = PROCESS | IDS | PARTIES | KINDS | OUTCOMES | NUMBERS
