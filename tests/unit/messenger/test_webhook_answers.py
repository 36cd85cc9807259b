"""What a gateway's answers mean, and that no answer breaks the reader."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Throttle
from butlers.channels.webhook.adapter import Answer, decoded, result_of
from butlers.errors import TargetUnavailable, ValidationError
from butlers.http_client import retry_after

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
OURS = UUID(int=7)
OUTGOING = Outgoing(delivery_id=OURS, idempotency_key="key", intent="send", target="+1555", message="hi")


def judged(status: int, said: Any = None, **more: Any) -> AttemptResult:
    return result_of(Answer(status=status, body=said, **more), OUTGOING)


def refused(status: int, said: Any = None, **more: Any) -> NotSent:
    result = judged(status, {"error": "no"} if said is None else said, **more)
    assert isinstance(result, NotSent)
    assert (result.certainty, result.answered) == (Certainty.NOT_SENT, True)
    return result


def unsure(status: int, said: Any = None, **more: Any) -> NotSent:
    result = judged(status, said, **more)
    assert isinstance(result, NotSent)
    assert (result.certainty, result.answered) == (Certainty.UNCERTAIN, False)
    assert result.error.retryable, "whether it is tried again is the certainty policy's to say"
    return result


@pytest.mark.parametrize("status", [200, 201, 202])
@pytest.mark.parametrize(("given_id", "kept"), [("msg-1", "msg-1"), (17, "17")])
def test_a_taken_message_is_sent_under_the_gateways_id(status: int, given_id: Any, kept: str) -> None:
    assert judged(status, {"id": given_id}) == Sent(provider_delivery_id=kept, response={"status": status, "id": kept})


@pytest.mark.parametrize("said", [None, {}, {"id": ""}, {"id": " "}, {"id": None}, {"id": True}, {"id": "x" * 513}])
def test_an_acceptance_that_names_no_message_leaves_us_uncertain(said: Any) -> None:
    unsure(200, said)


@pytest.mark.parametrize("said", [{"id": "a\x00b"}, {"id": 2**70}, {"id": [1]}])
def test_an_id_that_cannot_be_kept_is_none(said: Any) -> None:
    unsure(200, said)


def test_a_message_it_had_already_is_sent() -> None:
    result = judged(409, {"id": "msg-1", "delivery_id": str(OURS).upper()})
    assert isinstance(result, Sent)
    assert result.provider_delivery_id == "msg-1"


def test_a_key_that_belongs_to_another_message_is_our_mistake() -> None:
    result = refused(409, {"id": "msg-1", "delivery_id": str(UUID(int=8))})
    assert isinstance(result.error, ValidationError)


@pytest.mark.parametrize("said", [None, {}, {"error": "in progress"}, {"delivery_id": str(OURS)}])
def test_a_conflict_about_nothing_in_particular_leaves_us_uncertain(said: Any) -> None:
    unsure(409, said)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refused_message_is_our_mistake(status: int) -> None:
    error = refused(status).error
    assert isinstance(error, ValidationError)
    assert not error.retryable


def test_a_recipient_that_is_gone_is_not_tried_again() -> None:
    result = refused(410)
    assert result.recipient_gone
    assert isinstance(result.error, TargetUnavailable)
    assert not result.error.retryable


@pytest.mark.parametrize("status", [401, 403, 301, 302, 307])
def test_a_fault_of_the_channel_is_final_and_not_the_recipients(status: int) -> None:
    result = refused(status)
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.recipient_gone) == (False, False)


def test_a_full_gateway_says_how_long_to_wait_and_with_whom() -> None:
    assert refused(429, retry_after=7.0).throttle == Throttle(scope="channel", seconds=7.0)
    assert refused(429, {"scope": "recipient"}, retry_after=7.0).throttle == Throttle(scope="target", seconds=7.0)
    error = refused(429, retry_after=7.0).error
    assert (error.retryable, error.retry_after) == (True, 7.0)


def test_a_full_gateway_that_names_no_time_is_left_to_the_usual_pause() -> None:
    result = refused(429)
    assert (result.throttle, result.error.retryable, result.error.retry_after) == (None, True, None)


@pytest.mark.parametrize("status", [408, 425])
def test_what_was_not_taken_in_is_certain_and_retryable(status: int) -> None:
    assert refused(status).error.retryable


@pytest.mark.parametrize("status", [500, 503, 507, 599])
def test_the_gateways_own_failure_is_certain_and_retryable(status: int) -> None:
    error = refused(status, {"error": "not_taken"}, retry_after=3.0).error
    assert (error.retryable, error.retry_after) == (True, 3.0)
    assert error.message == f"the gateway failed (HTTP {status}: not_taken)"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"message": "Endpoint request timed out"},
        {"error": "Gateway Timeout", "status": 504},
        {"error": {"code": 503, "message": "not_taken"}},
        {"error": "upstream_timeout"},
        {"error": ["not_taken"]},
    ],
)
def test_a_failure_that_is_not_in_its_words_leaves_us_uncertain(status: int, said: Any) -> None:
    unsure(status, said)


@pytest.mark.parametrize("status", [502, 504])
def test_who_speaks_of_a_gateway_is_not_the_gateway(status: int) -> None:
    unsure(status, {"error": "not_taken"})


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("30", 30.0),
        (" 30 ", 30.0),
        ("0", 0.0),
        ("Thu, 01 Jan 2026 12:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2026 13:00:30 +0100", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("99999999999999999999", 86_400.0),
        ("Thu, 01 Jan 2099 00:00:00 GMT", 86_400.0),
    ],
)
def test_the_time_to_wait_is_read_in_seconds_or_as_a_date(header: str, seconds: float) -> None:
    assert retry_after(header, now=NOW) == seconds


@pytest.mark.parametrize("header", [None, "", "soon", "-5", "1.5", "²", "Mon, 01 Jan 2026 00:00:00 +9999999999999"])
def test_a_time_that_cannot_be_read_counts_as_not_said(header: str | None) -> None:
    assert retry_after(header, now=NOW) is None


@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d{1,3} Jan \d{1,6} \d\d:\d\d:\d\d [+-]\d{1,12}"))
def test_no_time_whatever_breaks_the_reader(header: str) -> None:
    seconds = retry_after(header, now=NOW)
    assert seconds is None or 0 <= seconds <= 86_400


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b"null", b'"id"', b"\xff", b'{"id": "\\ud800"}', b"[" * 9999]
)
def test_only_a_json_object_is_the_gateways_word(content: bytes) -> None:
    assert decoded(content) is None


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
names = st.sampled_from(["id", "delivery_id", "error", "scope"])


@given(st.integers(200, 599), st.dictionaries(names, json_like) | st.none() | json_like)
def test_no_answer_whatever_breaks_the_judge(status: int, said: Any) -> None:
    result = result_of(Answer(status=status, body=decoded(json.dumps(said).encode())), OUTGOING)
    assert isinstance(result, Sent | NotSent)
    if isinstance(result, Sent):
        assert "\x00" not in result.provider_delivery_id
    else:
        assert "\x00" not in result.error.message
