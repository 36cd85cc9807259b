"""What is asked of the Bot API for a message."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butlers.channels.adapter import Outgoing
from butlers.channels.telegram.adapter import ALLOWED, Call, compose
from butlers.errors import ValidationError


def outgoing(**changes: Any) -> Outgoing:
    given_: dict[str, Any] = {"intent": "send", "target": "42", "message": "hello"}
    return Outgoing(delivery_id=UUID(int=1), idempotency_key="k", **given_ | changes)


def composed(**changes: Any) -> tuple[Call, ...]:
    return compose(outgoing(**changes), parse_mode="HTML")


def wrong_field(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        composed(**changes)
    return caught.value.fields[0].field


def test_a_message_is_sent_to_its_chat() -> None:
    (call,) = composed(message="a < **b**")
    assert call.method == "sendMessage"
    assert call.body == {"chat_id": "42", "text": "a &lt; <b>b</b>", "parse_mode": "HTML"}
    assert call.as_plain().body == {"chat_id": "42", "text": "a < b"}
    assert call.as_plain().plain_text is None


def test_without_a_parse_mode_the_text_goes_as_it_is() -> None:
    (call,) = compose(outgoing(message="a < **b**"), parse_mode="none")
    assert call.body == {"chat_id": "42", "text": "a < **b**"}
    assert call.plain_text is None


def test_an_answer_quotes_its_question_if_it_is_still_there() -> None:
    (call,) = composed(intent="reply", source_event={"message_id": 5})
    assert call.body["reply_parameters"] == {"message_id": 5, "allow_sending_without_reply": True}
    assert "reply_parameters" not in composed(intent="reply")[0].body
    assert "reply_parameters" not in composed(source_event={"message_id": 5})[0].body


def test_only_the_first_part_quotes() -> None:
    calls = composed(intent="reply", source_event={"message_id": 5}, message="word " * 2000)
    assert len(calls) == 3
    assert ["reply_parameters" in call.body for call in calls] == [True, False, False]


def test_in_another_chat_numbers_of_messages_mean_nothing() -> None:
    (call,) = composed(intent="reply", source_event={"message_id": 5})
    assert call.to_chat("-1001").body == {"chat_id": "-1001", "text": "hello", "parse_mode": "HTML"}


def test_a_message_without_anything_to_show_is_refused() -> None:
    assert wrong_field(message=" \n\t ") == "delivery.message"


def test_a_reaction_goes_to_the_message() -> None:
    (call,) = composed(intent="react", emoji="👍", source_event={"message_id": 5})
    assert call.method == "setMessageReaction"
    assert call.body == {"chat_id": "42", "message_id": 5, "reaction": [{"type": "emoji", "emoji": "👍"}]}
    assert not call.movable


@pytest.mark.parametrize("emoji", ["✅", "👍🏽", "👍👍", "", None, "x"])
def test_a_reaction_beyond_telegrams_list_is_refused(emoji: str | None) -> None:
    assert wrong_field(intent="react", emoji=emoji, source_event={"message_id": 5}) == "delivery.emoji"


def test_a_reaction_to_nothing_is_refused() -> None:
    assert wrong_field(intent="react", emoji="👍") == "request_context"


def test_a_reaction_is_spelt_as_telegram_spells_it() -> None:
    def reaction(emoji: str) -> str:
        [call] = compose(outgoing(intent="react", emoji=emoji, source_event={"message_id": 5}), parse_mode="HTML")
        return str(call.body["reaction"][0]["emoji"])

    assert {"👀", "👍", "👌", "👾"} <= set(ALLOWED)
    assert reaction("❤\ufe0f") == "❤"
    assert reaction("❤‍🔥") == "❤\ufe0f‍🔥"
    assert all(reaction(emoji) == emoji for emoji in ALLOWED)
