"""Whom a place in a conversation names."""

from __future__ import annotations

from typing import Any

import pytest

from butlers.switchboard.routing.conversations import one_butler, replied_to
from butlers.switchboard.routing.decision import RoutingQuestion

BOT = {"id": 1, "is_bot": True, "username": "ButlersBot"}


def question(replied: Any, channel: str = "telegram") -> RoutingQuestion:
    raw = {"message": {"text": "yes", "reply_to_message": replied}}
    return RoutingQuestion(text="yes", channel=channel, endpoint="butlersbot", raw_payload=raw)


def test_a_reply_to_our_bot_names_the_butler_that_spoke() -> None:
    assert replied_to(question({"from": BOT, "text": "[finance] Noted: 84 euros"})) == "finance"


@pytest.mark.parametrize(
    "replied",
    [
        None,
        "text",
        {"from": BOT},
        {"from": BOT, "text": 7},
        {"from": BOT, "text": "finance says hello"},
        {"from": BOT, "text": "hello [finance]"},
        {"from": BOT, "text": "[../x] hello"},
        {"from": BOT | {"username": "OtherBot"}, "text": "[finance] hello"},
        {"from": BOT | {"is_bot": False}, "text": "[finance] hello"},
        {"from": BOT | {"is_bot": "yes"}, "text": "[finance] hello"},
        {"text": "[finance] hello"},
    ],
)
def test_anything_else_names_nobody(replied: Any) -> None:
    assert replied_to(question(replied)) is None


def test_other_channels_have_no_such_replies() -> None:
    assert replied_to(question({"from": BOT, "text": "[finance] hello"}, channel="slack")) is None


def test_one_butler_is_one_and_the_operator_counts_more() -> None:
    one = {"segments": [{"butler": "finance"}, {"butler": "finance"}]}
    two = {"segments": [{"butler": "finance"}, {"butler": "health"}]}
    assert one_butler(one, None) == "finance"
    assert one_butler(two, None) is None
    assert one_butler(two, {"action": "manual_reroute", "target": "travel"}) == "travel"
    assert one_butler(one, {"action": "retry"}) == "finance"
    assert one_butler(None, None) is None
