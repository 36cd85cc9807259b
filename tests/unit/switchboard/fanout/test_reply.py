"""What is said of all results together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from butlers.errors import (
    ClassificationError,
    ClassifiedError,
    InternalError,
    OverloadRejected,
    RoutingError,
    TargetUnavailable,
    TimeoutExceeded,
    ValidationError,
)
from butlers.switchboard.dispatch.fanout import aggregate, in_words
from tests.unit.switchboard.fanout.parts import failed, node, ok, plan

BOTH = plan(node(1, "finance"), node(2, "travel"))


def test_when_all_is_well_there_are_the_answers_and_nothing_else() -> None:
    reply = aggregate(BOTH, [ok(1, "finance", "paid"), ok(2, "travel", "booked")])
    assert reply == {"answers": {"finance": "paid", "travel": "booked"}}


def test_nobody_said_anything() -> None:
    assert aggregate(BOTH, []) is None


def test_a_butler_with_two_parts_answers_with_both() -> None:
    of = plan(node(1, "finance"), node(2, "finance"))
    assert aggregate(of, [ok(1, "finance", "paid"), ok(2, "finance", "noted")]) == {
        "answers": {"finance": "paid\nnoted"}
    }


def test_what_succeeded_is_acknowledged_and_what_failed_is_named() -> None:
    reply = aggregate(BOTH, [ok(1, "finance", "paid"), failed(2, "travel", TimeoutExceeded("no answer within 5 s"))])

    assert reply is not None
    assert reply["answers"] == {"finance": "paid"}
    [told] = reply["failed"]
    assert (told["butler"], told["segment_id"], told["class"]) == ("travel", "s2", "timeout")
    assert "took too long" in told["message"]
    assert "Send it again" in told["message"]
    assert reply["text"].splitlines() == ["Done: finance.", told["message"]]


def test_what_was_left_out_says_why() -> None:
    left_out = replace(ok(2, "travel"), result=None, skipped="it depends on finance, which did not succeed")
    reply = aggregate(BOTH, [failed(1, "finance"), left_out])

    assert reply is not None
    assert "answers" not in reply
    assert reply["skipped"] == [
        {"butler": "travel", "segment_id": "s2", "reason": "it depends on finance, which did not succeed"}
    ]
    assert "travel was not asked" in reply["text"]


def test_of_alternatives_only_the_winner_answers() -> None:
    of = plan(node(1, "finance", arbitration_group="g"), node(2, "travel", arbitration_group="g"))
    reply = aggregate(of, [ok(1, "finance", "cheap"), ok(2, "travel", "dear")])

    assert reply is not None
    assert reply["answers"] == {"finance": "cheap"}
    [judged] = reply["arbitration"]
    assert (judged["winner"]["butler"], judged["losers"][0]["butler"], judged["by"]) == ("finance", "travel", "butler")
    assert "travel said otherwise than finance" in reply["text"]


def test_a_conflict_that_nobody_settles_is_disclosed_with_both_answers() -> None:
    outcomes = [ok(1, "finance", "no", key="date", decision="Mon"), ok(2, "travel", "yes", key="date", decision="Tue")]
    reply = aggregate(BOTH, outcomes)

    assert reply is not None
    assert reply["answers"] == {"finance": "no", "travel": "yes"}
    assert [one["key"] for one in reply["conflicts"]] == ["date"]
    assert "finance, travel do not agree about date" in reply["text"]


@pytest.mark.parametrize(
    "error",
    [
        ClassificationError("x"),
        ValidationError("x"),
        RoutingError("x"),
        TargetUnavailable("x"),
        TimeoutExceeded("x"),
        OverloadRejected("x"),
        InternalError("x"),
    ],
)
def test_every_class_says_what_happened_and_what_to_do(error: ClassifiedError) -> None:
    words = in_words("finance", error)
    assert words.startswith("finance ")
    assert words.endswith(".")
    assert words.count(".") >= 2


def test_a_known_wait_is_said() -> None:
    assert "in 30 s" in in_words("finance", TargetUnavailable("x", retry_after=29.6))
    assert "in 5 minutes" in in_words("finance", OverloadRejected("x", retry_after=300))
