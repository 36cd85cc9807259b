"""What every contract promises: a valid document comes through unchanged, anything else is a `ValidationError`."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from butlers.contracts.envelope import Envelope
from butlers.contracts.ingest import IngestEnvelope
from butlers.contracts.notify import NotifyEnvelope
from butlers.contracts.route import RouteEnvelope, RouteResponse
from butlers.errors import ErrorClass, ValidationError

from .documents import DOCUMENTS, KINDS, Document, any_document, ingests, json_values

SECRET = "correct horse battery staple"
quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
by_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.VERSION for kind in KINDS])


def refusal(kind: type[Envelope], data: Any) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        kind.parse(data)
    error = caught.value
    assert error.error_class is ErrorClass.VALIDATION_ERROR
    assert error.retryable is False
    assert error.fields
    assert error.__cause__ is None, "the cause would quote the input"
    return error


def wrong_fields(kind: type[Envelope], data: Any) -> dict[str, str]:
    return {field.field: field.error for field in refusal(kind, data).fields}


def example(kind: type[Envelope]) -> Document:
    """One plain document with the fields that every test below may count on."""
    context = {
        "request_id": "01890a5d-ac96-774b-bcce-b302099a8057",
        "received_at": "2026-01-01T00:00:00Z",
        "source_channel": "telegram",
        "source_endpoint_identity": "bot",
        "source_sender_identity": "anna",
    }
    bodies: dict[str, Document] = {
        "ingest.v1": {
            "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "bot"},
            "event": {"external_event_id": "1", "observed_at": "2026-01-01T00:00:00Z"},
            "sender": {"identity": "anna"},
            "payload": {"raw": {}, "normalized_text": "hello"},
        },
        "route.v1": {
            "request_context": context,
            "input": {"prompt": "hello"},
            "subrequest": {"subrequest_id": "01890a5d-ac96-774b-bcce-b302099a8057", "segment_id": "s1"},
            "target": {"butler": "general"},
        },
        "route_response.v1": {
            "request_context": {"request_id": context["request_id"]},
            "status": "ok",
            "timing": {"duration_ms": 1},
        },
        "notify.v1": {
            "origin_butler": "general",
            "delivery": {"intent": "send", "channel": "email", "message": "hello"},
        },
        "notify_response.v1": {
            "status": "ok",
            "delivery": {"channel": "email", "delivery_id": context["request_id"], "status": "delivered"},
        },
        "connector.heartbeat.v1": {
            "connector": {"connector_type": "t", "endpoint_identity": "b", "instance_id": context["request_id"]},
            "status": {"state": "healthy", "uptime_s": 1.5},
            "counters": {},
            "sent_at": "2026-01-01T00:00:00Z",
        },
    }
    return {"schema_version": kind.VERSION, **copy.deepcopy(bodies[kind.VERSION])}


@quick
@given(any_document())
def test_a_valid_envelope_survives_the_wire(case: tuple[type[Envelope], Document]) -> None:
    kind, document = case
    envelope = kind.parse(document)
    assert kind.parse(json.dumps(document)) == envelope
    assert kind.parse(json.dumps(document, ensure_ascii=False).encode()) == envelope
    wire = envelope.to_wire()
    assert kind.parse(wire) == envelope
    assert kind.parse(json.dumps(wire)).to_wire() == wire


@quick
@given(ingests, json_values)
def test_the_raw_payload_is_kept_verbatim(document: Document, raw: Any) -> None:
    document["payload"]["raw"] = raw
    assert IngestEnvelope.parse(json.dumps(document)).to_wire()["payload"]["raw"] == raw


@quick
@given(st.sampled_from(KINDS), st.binary(max_size=60) | st.text(max_size=60) | json_values)
def test_garbage_is_refused_and_nothing_else_is_raised(kind: type[Envelope], data: Any) -> None:
    refusal(kind, data)


@quick
@given(any_document(), st.data())
def test_a_broken_envelope_is_refused_at_its_broken_place(
    case: tuple[type[Envelope], Document], data: st.DataObject
) -> None:
    """Put a list where none belongs: wrong type at any place that has a type."""
    kind, document = case
    paths = [path for path in _typed_places(document) if path != ("schema_version",)]
    path = data.draw(st.sampled_from(paths))
    _place(document, path[:-1])[path[-1]] = [SECRET]
    error = refusal(kind, document)
    # A rule of the whole (a reply needs its lineage) is only looked at when every part is right.
    assert any(field.field == ".".join(path) or field.field.startswith(".".join(path) + ".") for field in error.fields)
    assert SECRET not in str(error.describe())


@quick
@given(any_document(), st.data())
def test_a_cut_off_envelope_is_refused(case: tuple[type[Envelope], Document], data: st.DataObject) -> None:
    kind, document = case
    encoded = json.dumps(document).encode()
    refusal(kind, encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@by_kind
def test_an_unknown_field_is_named_at_every_depth(kind: type[Envelope]) -> None:
    document = example(kind) | {"surprise": SECRET}
    inner = next(key for key, value in document.items() if isinstance(value, dict))
    document[inner]["surprise"] = SECRET
    fields = wrong_fields(kind, document)
    assert fields == {"surprise": "is not a known field", f"{inner}.surprise": "is not a known field"}


@by_kind
def test_every_missing_field_is_named_at_once(kind: type[Envelope]) -> None:
    required = {name for name, field in kind.model_fields.items() if field.is_required() and name != "schema_version"}
    fields = wrong_fields(kind, {"schema_version": kind.VERSION})
    assert fields == dict.fromkeys(required, "is required")


def test_all_wrong_fields_are_named_at_once() -> None:
    document = example(IngestEnvelope)
    document["event"]["observed_at"] = "2026-01-01T00:00:00"
    document["payload"]["normalized_text"] = "  "
    document["sender"]["identity"] = 7
    document["source"]["channel"] = SECRET
    document["surprise"] = SECRET
    del document["event"]["external_event_id"]
    error = refusal(IngestEnvelope, document)
    assert {field.field: field.error for field in error.fields} == {
        "source.channel": "must be one of 'telegram', 'email', 'api' or 'mcp'",
        "event.external_event_id": "is required",
        "event.observed_at": "must carry a UTC offset",
        "sender.identity": "input should be a valid string",
        "payload.normalized_text": "must not be empty",
        "surprise": "is not a known field",
    }
    assert len(error.fields) == 6
    assert SECRET not in str(error.describe())


@by_kind
@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("v2", "is newer than this system speaks"),
        ("v999999", "is newer than this system speaks"),
        ("v0", "is not supported any more"),
        ("v1.1", "is unknown"),
        ("V1", "is unknown"),
        ("v", "is unknown"),
        ("v-1", "is unknown"),
        ("v1\n", "is unknown"),
        ("v99999999999999999999", "is unknown"),
    ],
)
def test_another_version_is_refused_in_the_same_words(kind: type[Envelope], number: str, words: str) -> None:
    family = kind.VERSION.rpartition(".")[0]
    document = example(kind) | {"schema_version": f"{family}.{number}", "field_of_that_version": SECRET}
    expected = {"schema_version": f"{words}; supported: {kind.VERSION}"}
    assert wrong_fields(kind, document) == expected, "a field of a version we do not speak cannot be judged"
    assert wrong_fields(kind, document) == expected


@by_kind
@pytest.mark.parametrize("version", [1, True, [], {}, "", "v1", "other.v1", SECRET, 1.0])
def test_an_unknown_version_is_refused_without_its_value(kind: type[Envelope], version: Any) -> None:
    error = refusal(kind, example(kind) | {"schema_version": version})
    assert [(f.field, f.error) for f in error.fields] == [("schema_version", f"is unknown; supported: {kind.VERSION}")]
    assert SECRET not in str(error.describe())


@by_kind
@pytest.mark.parametrize("version", [{}, {"schema_version": None}])
def test_a_missing_version_is_refused(kind: type[Envelope], version: Document) -> None:
    document = {key: value for key, value in example(kind).items() if key != "schema_version"} | version
    assert wrong_fields(kind, document) == {"schema_version": f"is required; supported: {kind.VERSION}"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"{} {}", "is not valid JSON"),
        (b"\xff\xfe", "is not valid UTF-8"),
        (b'{"schema_version": "\xc3\x28"}', "is not valid UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "is not valid UTF-8"),
        ('{"a": "\ud800"}', "is not valid UTF-8"),
        (b'{"a": "\\ud800"}', "is not valid JSON"),
        ({"a": "\ud800"}, "is not JSON data"),
        ({"\udfff": 1}, "is not JSON data"),
        ({"a": object()}, "is not JSON data"),
        (b'{"a": NaN}', "is not valid JSON"),
        (b'{"a": -Infinity}', "is not valid JSON"),
        ({"a": float("nan")}, "is not valid JSON"),
        ({"a": float("inf")}, "is not valid JSON"),
        (b'{"a": 1e999}', "must not contain numbers beyond the range of a double"),
        (b'{"a": [-1e400]}', "must not contain numbers beyond the range of a double"),
        (b'{"a": ' + b"9" * 250 + b"e60}", "must not contain numbers beyond the range of a double"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'{"a": "\\u0000"}', "must not contain NUL characters"),
        (b'{"\\u0000": 1}', "must not contain NUL characters"),
        (b'{"a": [{"b": "x\\u0000y"}]}', "must not contain NUL characters"),
        ({"a": ["\x00"]}, "must not contain NUL characters"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "is not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        ([], "must be a JSON object"),
    ],
)
def test_what_is_no_document_is_refused_as_a_whole(data: Any, words: str) -> None:
    for kind in KINDS:
        assert wrong_fields(kind, data) == {"": words}


def test_a_mapping_that_holds_itself_is_refused() -> None:
    document: Document = {}
    document["self"] = document
    assert wrong_fields(IngestEnvelope, document) == {"": "is not JSON data"}


def test_a_backslash_before_u0000_is_text_and_no_nul() -> None:
    document = example(IngestEnvelope)
    document["payload"]["normalized_text"] = "a path: C:\\u0000"
    assert IngestEnvelope.parse(json.dumps(document)).payload.normalized_text == "a path: C:\\u0000"


def test_a_key_given_twice_counts_once_and_the_last_one_wins() -> None:
    encoded = json.dumps(example(IngestEnvelope))
    newer = encoded[:-1] + ', "schema_version": "ingest.v2"}'
    assert wrong_fields(IngestEnvelope, newer) == {
        "schema_version": "is newer than this system speaks; supported: ingest.v1"
    }
    sender = encoded[:-1] + ', "sender": {"identity": "ben"}}'
    assert IngestEnvelope.parse(sender).sender.identity == "ben"


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("2026-01-01T00:00:00", "must carry a UTC offset"),
        ("2026-01-01", "must be an RFC 3339 timestamp with an offset, written as text"),
        (1_767_225_600, "must be an RFC 3339 timestamp with an offset, written as text"),
        ("1767225600", "must be an RFC 3339 timestamp with an offset, written as text"),
        ("0001-01-01T00:00:00+14:00", "must lie between the years 1 and 9999 in UTC"),
        ("9999-12-31T23:59:59-10:00", "must lie between the years 1 and 9999 in UTC"),
    ],
)
def test_a_moment_that_means_nothing_is_refused(moment: Any, words: str) -> None:
    document = example(IngestEnvelope)
    document["event"]["observed_at"] = moment
    assert wrong_fields(IngestEnvelope, document) == {"event.observed_at": words}


@pytest.mark.parametrize("moment", ["2026-02-30T00:00:00Z", "2026-01-01T25:00:00Z", f"2026-01-01T00:00:00Z{SECRET}"])
def test_a_moment_that_is_none_is_refused_without_its_text(moment: str) -> None:
    document = example(IngestEnvelope)
    document["event"]["observed_at"] = moment
    error = refusal(IngestEnvelope, document)
    assert [field.field for field in error.fields] == ["event.observed_at"]
    assert SECRET not in str(error.describe())


@pytest.mark.parametrize("identifier", ["zzz", 5, "", "01890a5d-ac96-774b-bcce-b302099a805", None])
def test_a_request_id_must_be_a_uuid(identifier: Any) -> None:
    document = example(RouteEnvelope)
    document["request_context"]["request_id"] = identifier
    assert wrong_fields(RouteEnvelope, document) == {"request_context.request_id": "must be a UUID"}


def test_a_request_id_must_be_of_version_seven() -> None:
    document = example(RouteEnvelope)
    document["request_context"]["request_id"] = "8c5ba7b2-3b4b-4b0a-9a53-7f6f1a1f2b11"
    assert wrong_fields(RouteEnvelope, document) == {"request_context.request_id": "must be a UUID of version 7"}


@pytest.mark.parametrize(
    ("channel", "provider"), [("telegram", "internal"), ("email", "telegram"), ("api", "gmail"), ("mcp", "imap")]
)
def test_a_provider_that_does_not_serve_the_channel_is_refused(channel: str, provider: str) -> None:
    document = example(IngestEnvelope)
    document["source"] |= {"channel": channel, "provider": provider}
    assert list(wrong_fields(IngestEnvelope, document)) == ["source"]


def test_too_long_a_text_is_refused_and_the_longest_is_taken() -> None:
    document = example(IngestEnvelope)
    document["payload"]["normalized_text"] = "x" * 200_000
    assert len(IngestEnvelope.parse(document).payload.normalized_text) == 200_000
    document["payload"]["normalized_text"] += "x"
    assert list(wrong_fields(IngestEnvelope, document)) == ["payload.normalized_text"]


@pytest.mark.parametrize("duration", [-1, 2**63, 1.5, "1", True])
def test_a_duration_is_a_count_that_a_column_can_hold(duration: Any) -> None:
    document = example(RouteResponse)
    document["timing"]["duration_ms"] = duration
    assert list(wrong_fields(RouteResponse, document)) == ["timing.duration_ms"]


def test_an_error_travels_as_class_and_under_no_other_name() -> None:
    error = {"message": "m", "retryable": False}
    document = {"schema_version": "route_response.v1", "status": "error", "timing": {"duration_ms": 1}}
    known = RouteResponse.parse(document | {"error": error | {"class": "timeout"}})
    assert known.error is not None
    assert known.error.error_class == "timeout"
    assert known.to_wire()["error"]["class"] == "timeout"
    assert wrong_fields(RouteResponse, document | {"error": error | {"error_class": "timeout"}}) == {
        "error.class": "is required"
    }


@pytest.mark.parametrize("change", [{"status": "error"}, {"error": {"class": "x", "message": "", "retryable": True}}])
def test_a_status_that_contradicts_the_rest_is_refused(change: Document) -> None:
    refusal(RouteResponse, example(RouteResponse) | change)


def test_a_response_without_request_context_must_be_an_error() -> None:
    document = example(RouteResponse)
    del document["request_context"]
    assert "request_context" in str(refusal(RouteResponse, document))


LINEAGE = {
    "request_id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "source_channel": "telegram",
    "source_endpoint_identity": "bot",
    "source_sender_identity": "anna",
    "source_thread_identity": "42",
}


@pytest.mark.parametrize("missing", [*LINEAGE, None])
def test_a_reply_without_its_lineage_is_refused(missing: str | None) -> None:
    document = example(NotifyEnvelope)
    document["delivery"] |= {"intent": "reply", "channel": "telegram"}
    document["request_context"] = {key: value for key, value in LINEAGE.items() if key != missing}
    if missing is None:
        assert NotifyEnvelope.parse(document).request_id is not None
    else:
        assert f"request_context.{missing}" in str(refusal(NotifyEnvelope, document))


def test_a_mail_reply_needs_no_thread() -> None:
    document = example(NotifyEnvelope)
    document["delivery"]["intent"] = "reply"
    document["request_context"] = {key: value for key, value in LINEAGE.items() if key != "source_thread_identity"}
    assert NotifyEnvelope.parse(document).delivery.intent == "reply"


@pytest.mark.parametrize(("intent", "emoji"), [("react", None), ("reply", "👍")])
def test_an_emoji_goes_with_a_reaction_and_only_with_it(intent: str, emoji: str | None) -> None:
    document = example(NotifyEnvelope)
    document["delivery"] |= {"intent": intent, "channel": "telegram", "emoji": emoji}
    document["request_context"] = LINEAGE
    assert "emoji" in str(refusal(NotifyEnvelope, document))


def test_envelopes_are_frozen() -> None:
    for kind in KINDS:
        envelope = kind.parse(example(kind))
        with pytest.raises(Exception, match="frozen"):
            envelope.schema_version = "other"  # type: ignore[attr-defined]


def test_every_contract_is_tried() -> None:
    from butlers.contracts.schemas import ENVELOPES

    assert set(ENVELOPES) == set(DOCUMENTS)


def _typed_places(document: Document, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Everything that a contract gives a type other than list or free JSON."""
    found = []
    for key, value in document.items():
        if key in ("raw", "attachments", "conversation_history", "fields", "result"):
            continue
        found.append((*path, key))
        if isinstance(value, dict) and key not in ("context", "trace_context"):
            found += _typed_places(value, (*path, key))
    return found


def _place(document: Document, path: tuple[str, ...]) -> Document:
    for key in path:
        document = document[key]
    return document
