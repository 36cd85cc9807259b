"""What Telegram's answers mean: sent, refused, or nobody knows."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import TargetUnavailable, ValidationError
from butlers.messenger.channel import Certainty, NotSent, Outgoing, Sent
from butlers.messenger.channels.telegram import _call, _judge


def judged(status: int, body: Any) -> Sent | NotSent:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _judge(httpx2.Response(status, content=content))


def refused(code: int, **more: Any) -> NotSent:
    result = judged(code, {"ok": False, "error_code": code, "description": "Bad Request: reason", **more})
    assert isinstance(result, NotSent)
    assert result.certainty is Certainty.NOT_SENT, "a refusal in Telegram's own words is certain"
    assert result.answered
    return result


def test_an_accepted_message_is_sent_under_its_id() -> None:
    result = judged(200, {"ok": True, "result": {"message_id": 7, "text": "private"}})
    assert result == Sent(provider_delivery_id="7", response={"message_id": 7})


@pytest.mark.parametrize("result", [True, {}, None, [], "text"])
def test_an_acceptance_without_an_id_is_sent_all_the_same(result: Any) -> None:
    answer = judged(200, {"ok": True, "result": result})
    assert isinstance(answer, Sent)
    assert answer.provider_delivery_id == "ok"


def test_a_flood_wait_is_retryable_after_its_time() -> None:
    error = refused(429, parameters={"retry_after": 35}).error
    assert isinstance(error, TargetUnavailable)
    assert (error.retryable, error.retry_after) == (True, 35)


def test_a_flood_wait_without_a_time_is_retryable() -> None:
    error = refused(429).error
    assert (error.retryable, error.retry_after) == (True, None)


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_closed_door_is_final(code: int) -> None:
    error = refused(code).error
    assert isinstance(error, TargetUnavailable)
    assert error.retryable is False


@pytest.mark.parametrize("code", [500, 502, 504])
def test_telegrams_own_failure_is_retryable(code: int) -> None:
    assert refused(code).error.retryable is True


@pytest.mark.parametrize("code", [400, 409, 413])
def test_a_refused_message_is_our_mistake(code: int) -> None:
    error = refused(code).error
    assert isinstance(error, ValidationError)
    assert error.retryable is False


@pytest.mark.parametrize("status", [200, 301, 500, 502, 504])
@pytest.mark.parametrize("body", [b"", b"<html>Bad Gateway</html>", b"[]", b"null", b"{}", b'"ok"', b"\xff"])
def test_a_gateways_answer_leaves_us_uncertain(status: int, body: bytes) -> None:
    result = judged(status, body)
    assert isinstance(result, NotSent)
    assert result.certainty is Certainty.UNCERTAIN
    assert not result.answered


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
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
            "parameters": st.fixed_dictionaries({}, optional={"retry_after": st.integers(0, 10**6)}) | st.none(),
        },
    )
)
def test_no_answer_whatever_breaks_the_judge(answer: dict[str, Any]) -> None:
    result = judged(200, answer)
    assert isinstance(result, Sent if answer["ok"] else NotSent)
    if isinstance(result, NotSent):
        assert result.error.retry_after is None or result.error.retry_after >= 0


def outgoing(**changes: Any) -> Outgoing:
    given_: dict[str, Any] = {"intent": "send", "target": "42", "message": "hello"}
    return Outgoing(delivery_id=UUID(int=1), idempotency_key="k", **given_ | changes)


def test_a_message_is_sent_to_its_chat() -> None:
    assert _call(outgoing()) == ("sendMessage", {"chat_id": "42", "text": "hello"})


def test_an_answer_quotes_its_question_if_it_is_still_there() -> None:
    method, body = _call(outgoing(intent="reply", source_event={"message_id": 5}))
    assert method == "sendMessage"
    assert body["reply_parameters"] == {"message_id": 5, "allow_sending_without_reply": True}
    assert "reply_parameters" not in _call(outgoing(intent="reply"))[1]


def test_a_reaction_goes_to_the_message() -> None:
    assert _call(outgoing(intent="react", emoji="👍", source_event={"message_id": 5})) == (
        "setMessageReaction",
        {"chat_id": "42", "message_id": 5, "reaction": [{"type": "emoji", "emoji": "👍"}]},
    )
