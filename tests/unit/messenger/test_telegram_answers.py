"""What Telegram's answers mean: sent, refused, or nobody knows."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.adapter import Certainty, NotSent, Throttle
from butlers.channels.telegram.adapter import DEFAULT_WAIT, Answer, read, refused
from butlers.errors import TargetUnavailable, ValidationError


def answer(status: int, body: Any) -> Answer | None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read(httpx2.Response(status, content=content))


def told(code: int, description: str = "Bad Request: reason", **more: Any) -> Answer:
    found = answer(code, {"ok": False, "error_code": code, "description": description, **more})
    assert found is not None
    return found


def refusal(code: int, description: str = "Bad Request: reason", **more: Any) -> NotSent:
    result = refused(told(code, description, **more), evidence={"part": 1})
    assert result.certainty is Certainty.NOT_SENT, "a refusal in Telegram's own words is certain"
    assert result.answered
    assert result.response["part"] == 1
    assert result.response["error_code"] == code
    return result


def test_an_accepted_message_has_its_id() -> None:
    found = answer(200, {"ok": True, "result": {"message_id": 7, "text": "private"}})
    assert found is not None
    assert (found.ok, found.message_id) == (True, 7)


@pytest.mark.parametrize("result", [True, {}, None, [], "text", {"message_id": "7"}, {"message_id": True}])
def test_an_acceptance_without_an_id_is_one_all_the_same(result: Any) -> None:
    found = answer(200, {"ok": True, "result": result})
    assert found is not None
    assert (found.ok, found.message_id) == (True, None)


def test_a_flood_wait_is_retryable_after_its_time_and_closes_the_chat_meanwhile() -> None:
    result = refusal(429, parameters={"retry_after": 35})
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.error.retry_after) == (True, 35)
    assert result.throttle == Throttle(scope="target", seconds=35)
    assert not result.recipient_gone


@pytest.mark.parametrize(
    ("description", "more", "seconds"),
    [
        ("Too Many Requests: retry after 12", {}, 12),
        ("Too Many Requests", {}, DEFAULT_WAIT),
        ("Too Many Requests", {"parameters": {"retry_after": "soon"}}, DEFAULT_WAIT),
        ("Too Many Requests", {"parameters": {"retry_after": -3}}, DEFAULT_WAIT),
        ("Too Many Requests", {"parameters": {"retry_after": 10**400}}, DEFAULT_WAIT),
        ("Too Many Requests", {"parameters": []}, DEFAULT_WAIT),
        ("Too Many Requests", {"parameters": {"retry_after": 0}}, 1),
    ],
)
def test_a_flood_wait_without_a_usable_time_has_a_sane_one(description: str, more: Any, seconds: float) -> None:
    result = refusal(429, description, **more)
    assert (result.error.retryable, result.error.retry_after) == (True, seconds)
    assert result.throttle == Throttle(scope="target", seconds=seconds)


@pytest.mark.parametrize(
    "description",
    [
        "Forbidden: bot was blocked by the user",
        "Forbidden: bot was kicked from the group chat",
        "Forbidden: user is deactivated",
    ],
)
def test_a_recipient_who_shut_us_out_is_gone(description: str) -> None:
    result = refusal(403, description)
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.recipient_gone) == (False, True)


@pytest.mark.parametrize("code", [401, 404])
def test_a_bad_token_is_final_and_not_the_recipients_fault(code: int) -> None:
    result = refusal(code)
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.recipient_gone, result.throttle) == (False, False, None)


@pytest.mark.parametrize("code", [500, 502, 504])
def test_telegrams_own_failure_is_retryable(code: int) -> None:
    result = refusal(code)
    assert isinstance(result.error, TargetUnavailable)
    assert (result.error.retryable, result.recipient_gone) == (True, False)


@pytest.mark.parametrize("code", [400, 409, 413])
def test_a_refused_message_is_our_mistake(code: int) -> None:
    result = refusal(code)
    assert isinstance(result.error, ValidationError)
    assert (result.error.retryable, result.recipient_gone) == (False, False)


def test_without_a_code_of_its_own_a_refusal_has_that_of_http() -> None:
    found = answer(429, {"ok": False})
    assert found is not None
    assert found.wait == DEFAULT_WAIT


def test_a_group_that_moved_says_where_to() -> None:
    moved = told(400, parameters={"migrate_to_chat_id": -1001})
    assert moved.moved_to == "-1001"
    assert refused(moved, evidence={}).moved_to == "-1001"
    assert told(400, parameters={"migrate_to_chat_id": "x"}).moved_to is None
    assert refused(told(403), evidence={}, moved_to="-1002").moved_to == "-1002"


def test_only_unreadable_markup_counts_as_such() -> None:
    assert told(400, "Bad Request: can't parse entities: Unsupported start tag").cannot_parse
    assert not told(400, "Bad Request: message is too long").cannot_parse
    assert not told(500, "can't parse entities").cannot_parse


def test_evidence_quotes_neither_the_message_nor_the_token() -> None:
    words = 'Bad Request: can\'t parse entities: found "</secret>", sent by 123456789:AAabcdefghijklmnopqrstuvwxyz "cut'
    result = refusal(400, words)
    shown = json.dumps(dict(result.response)) + result.error.message
    assert "can't parse entities" in shown
    for hidden in ("secret", "AAabc", "cut"):
        assert hidden not in shown
    assert len(refusal(400, "x" * 5000).response["description"]) == 200


def test_evidence_can_be_stored_whatever_telegram_says() -> None:
    assert refusal(400, "half \ud83d of \0 it").response["description"] == "half ? of  it"


@pytest.mark.parametrize("status", [200, 301, 500, 502, 504])
@pytest.mark.parametrize(
    "body", [b"", b"<html>Bad Gateway</html>", b"[]", b"null", b"{}", b'"ok"', b"\xff", b"[" * 9999]
)
def test_a_gateways_words_are_not_telegrams(status: int, body: bytes) -> None:
    assert answer(status, body) is None


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.fixed_dictionaries(
        {"ok": json_like},
        optional={
            "result": json_like,
            "error_code": st.sampled_from([400, 403, 429, 500]) | json_like,
            "description": json_like,
            "parameters": st.fixed_dictionaries(
                {}, optional={"retry_after": json_like, "migrate_to_chat_id": json_like}
            )
            | json_like,
        },
    )
)
def test_no_answer_whatever_breaks_the_judge(body: dict[str, Any]) -> None:
    found = answer(200, body)
    assert found is not None
    assert found.ok is bool(body["ok"])
    result = refused(found, evidence={})
    assert result.error.retry_after is None or 1 <= result.error.retry_after < 10**9
    json.dumps(dict(result.response), allow_nan=False)
