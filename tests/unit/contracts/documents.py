"""Valid documents of every contract, as they come over the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from butlers.channels.registry import inbound_names, providers_of
from butlers.contracts.envelope import Envelope
from butlers.contracts.heartbeat import HeartbeatEnvelope
from butlers.contracts.ingest import IngestEnvelope
from butlers.contracts.notify import NotifyEnvelope, NotifyResponse
from butlers.contracts.route import RouteEnvelope, RouteResponse

Document = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A lone surrogate is no UTF-8 and PostgreSQL keeps no NUL; all else must pass.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
visible = st.text(characters, min_size=1, max_size=20).filter(lambda text: text.strip() != "")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(characters, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(characters, max_size=5), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(characters, max_size=5), json_values, max_size=3)
traces = st.dictionaries(st.sampled_from(["traceparent", "tracestate"]), st.text(characters, max_size=10))
uuids = st.uuids(allow_nil=True).map(str)


@st.composite
def request_ids(draw: st.DrawFn) -> str:
    number = draw(st.integers(0, 2**128 - 1))
    return str(UUID(int=number & ~(0xF << 76) & ~(0b11 << 62) | (7 << 76) | (0b10 << 62)))


@st.composite
def timestamps(draw: st.DrawFn) -> str:
    offset = timezone(timedelta(minutes=draw(st.integers(-14 * 60, 14 * 60))))
    text = (EPOCH + timedelta(microseconds=draw(st.integers(0, 10**16)))).astimezone(offset).isoformat()
    return text.replace("+00:00", "Z") if draw(st.booleans()) else text


def record(optional: dict[str, st.SearchStrategy[Any]], **required: st.SearchStrategy[Any]) -> Any:
    """Required fields always, optional ones present, absent or null."""
    return st.fixed_dictionaries(required, optional={key: st.none() | value for key, value in optional.items()})


attachments = record(
    {"storage_ref": visible, "filename": visible}, media_type=visible, size_bytes=st.integers(0, 2**63 - 1)
)
sources = st.sampled_from(sorted(inbound_names())).flatmap(
    lambda channel: st.fixed_dictionaries(
        {
            "channel": st.just(channel),
            "provider": st.sampled_from(sorted(providers_of(channel))),
            "endpoint_identity": visible,
        }
    )
)
ingests = st.fixed_dictionaries(
    {
        "schema_version": st.just("ingest.v1"),
        "source": sources,
        "event": record({"external_thread_id": visible}, external_event_id=visible, observed_at=timestamps()),
        "sender": record({"display_name": visible}, identity=visible),
        "payload": st.fixed_dictionaries(
            {"raw": json_values, "normalized_text": visible},
            optional={"attachments": st.lists(attachments, max_size=2)},
        ),
    },
    optional={
        "control": st.fixed_dictionaries(
            {},
            optional={
                "idempotency_key": st.none() | visible,
                "trace_context": traces,
                "policy_tier": st.sampled_from(["default", "interactive", "high_priority"]),
                "ingestion_tier": st.sampled_from(["full", "metadata"]),
                "pinned_target": st.none() | visible,
            },
        )
    },
)
channels = st.sampled_from(["telegram", "email", "slack", "api", "mcp"])
contexts = st.fixed_dictionaries(
    {
        "request_id": request_ids(),
        "received_at": timestamps(),
        "source_channel": channels,
        "source_endpoint_identity": visible,
        "source_sender_identity": visible,
    },
    optional={"source_thread_identity": st.none() | visible, "trace_context": traces},
)
routes = st.fixed_dictionaries(
    {
        "schema_version": st.just("route.v1"),
        "request_context": contexts,
        "input": record(
            {
                "context": json_objects,
                "conversation_history": st.lists(json_objects, max_size=2),
                "attachments": st.lists(attachments, max_size=2),
            },
            prompt=visible,
        ),
        "subrequest": st.fixed_dictionaries(
            {"subrequest_id": uuids, "segment_id": visible},
            optional={"fanout_mode": st.sampled_from(["parallel", "ordered", "conditional"])},
        ),
        "target": st.fixed_dictionaries({"butler": visible}, optional={"tool": st.just("route.execute")}),
    },
    optional={"trace_context": traces},
)
errors = record(
    {"retry_after_seconds": st.floats(0, 1e6), "fields": st.lists(st.just({"field": "a", "error": "b"}), max_size=2)},
    **{"class": visible},
    message=st.text(characters, max_size=20),
    retryable=st.booleans(),
)
timings = st.fixed_dictionaries({"duration_ms": st.integers(0, 2**63 - 1)})
response_contexts = st.fixed_dictionaries({"request_id": request_ids()})
route_responses = st.fixed_dictionaries(
    {
        "schema_version": st.just("route_response.v1"),
        "request_context": response_contexts,
        "status": st.just("ok"),
        "timing": timings,
    },
    optional={"result": st.none() | json_objects},
) | st.fixed_dictionaries(
    {"schema_version": st.just("route_response.v1"), "status": st.just("error"), "error": errors, "timing": timings},
    optional={"request_context": st.none() | response_contexts},
)
extras = {
    "contact_id": st.none() | uuids,
    "idempotency_key": st.none() | visible,
    "not_after": st.none() | timestamps(),
    "priority": st.sampled_from(["urgent", "high", "normal", "low"]),
}
sends = st.fixed_dictionaries(
    {
        "schema_version": st.just("notify.v1"),
        "origin_butler": visible,
        "delivery": record(
            {"recipient": visible, "subject": visible},
            intent=st.just("send"),
            channel=st.sampled_from(["telegram", "email", "sms", "chat"]),
            message=visible,
        ),
    },
    optional=extras,
)
lineage = contexts.map(lambda context: context | {"source_thread_identity": "thread"})
replies = st.fixed_dictionaries(
    {
        "schema_version": st.just("notify.v1"),
        "origin_butler": visible,
        "delivery": st.fixed_dictionaries(
            {"intent": st.just("reply"), "channel": st.sampled_from(["telegram", "email"]), "message": visible}
        ),
        "request_context": lineage,
    },
    optional=extras,
)
notifies = sends | replies
outcomes = st.fixed_dictionaries(
    {
        "channel": st.sampled_from(["telegram", "email"]),
        "delivery_id": uuids,
        "status": st.sampled_from(["pending", "delivered", "failed", "uncertain", "expired"]),
    },
    optional={
        "provider_delivery_id": st.none() | visible,
        "deduplicated": st.booleans(),
        "duplicate_detection": st.booleans(),
    },
)
notify_responses = st.fixed_dictionaries(
    {"schema_version": st.just("notify_response.v1"), "status": st.just("ok"), "delivery": outcomes},
    optional={"request_context": response_contexts},
) | st.fixed_dictionaries(
    {"schema_version": st.just("notify_response.v1"), "status": st.just("error"), "error": errors},
    optional={"delivery": st.none() | outcomes},
)
counts = st.integers(0, 2**63 - 1)
heartbeats = st.fixed_dictionaries(
    {
        "schema_version": st.just("connector.heartbeat.v1"),
        "connector": record({"version": visible}, connector_type=visible, endpoint_identity=visible, instance_id=uuids),
        "status": record(
            {"error_message": st.text(characters, max_size=20)},
            state=st.sampled_from(["healthy", "degraded", "error"]),
            uptime_s=st.floats(0, 1e9) | st.integers(0, 10**9),
        ),
        "counters": st.fixed_dictionaries({}, optional={"messages_ingested": counts, "checkpoint_saves": counts}),
        "sent_at": timestamps(),
    },
    optional={
        "checkpoint": st.none() | st.fixed_dictionaries({"cursor": visible, "updated_at": timestamps()}),
        "capabilities": st.none() | st.fixed_dictionaries({}, optional={"backfill": st.booleans()}),
    },
)
DOCUMENTS: dict[type[Envelope], st.SearchStrategy[Document]] = {
    IngestEnvelope: ingests,
    RouteEnvelope: routes,
    RouteResponse: route_responses,
    NotifyEnvelope: notifies,
    NotifyResponse: notify_responses,
    HeartbeatEnvelope: heartbeats,
}
KINDS = list(DOCUMENTS)


@st.composite
def any_document(draw: st.DrawFn) -> tuple[type[Envelope], Document]:
    kind = draw(st.sampled_from(KINDS))
    return kind, draw(DOCUMENTS[kind])
