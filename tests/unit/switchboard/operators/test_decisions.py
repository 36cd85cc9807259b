"""What an operator may do in which state, and with what a request begins anew."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from butlers.operations.operators import Action
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.switchboard.operators.decisions import (
    handed_to,
    possible,
    refusal,
    repeated,
    replay_refusal,
    rerouted,
    round_after,
)

NOW = datetime(2026, 5, 1, tzinfo=UTC)
STATES = ("accepted", "progress", "parsed", "errored")
DECISION = {
    "router": "local",
    "why": "two domains",
    "segments": [{"segment_id": "s1", "butler": "finance"}, {"segment_id": "s2", "butler": "travel"}],
    "plan": {"nodes": [{"segment_id": "s1", "depends_on": []}, {"segment_id": "s2", "depends_on": ["s1"]}]},
}


def outcome(segment_id: str, **more: Any) -> dict[str, Any]:
    return {"segment_id": segment_id, "error": None, "skipped": None, "raw_response": None} | more


def refused(segment_id: str) -> dict[str, Any]:
    """The butler itself has failed it for good, and keeps that answer."""
    error = {"class": "internal_error", "message": "broken", "retryable": False}
    return outcome(segment_id, error=error, raw_response={"status": "error"})


def unreached(segment_id: str) -> dict[str, Any]:
    return outcome(segment_id, error={"class": "target_unavailable", "message": "away", "retryable": True})


@pytest.mark.parametrize(
    ("action", "states"),
    [
        (Action.MANUAL_REROUTE, {"accepted", "progress", "errored"}),
        (Action.CANCEL, {"accepted"}),
        (Action.ABORT, {"progress"}),
        (Action.RETRY, {"errored"}),
        (Action.REPLAY, {"parsed", "errored"}),
        (Action.FORCE_COMPLETE, {"accepted", "progress", "errored"}),
    ],
)
def test_each_action_has_its_states(action: Action, states: set[str]) -> None:
    assert {state for state in STATES if refusal(action, state) is None} == states


def test_a_refusal_says_what_would_work_instead() -> None:
    assert refusal(Action.CANCEL, "progress") == "the request is being worked on; abort stops it"
    assert refusal(Action.ABORT, "accepted") == "the request waits to be worked on; cancel withdraws it"
    assert refusal(Action.RETRY, "parsed") == "the request has ended well"


def test_what_is_possible_is_what_is_not_refused() -> None:
    assert possible("parsed") == []
    assert possible("progress") == [Action.MANUAL_REROUTE, Action.ABORT, Action.FORCE_COMPLETE]
    for state in STATES:
        assert all(refusal(action, state) is None for action in possible(state))


# --- replays ---------------------------------------------------------------------------------------------------------


def letter(**more: Any) -> dict[str, Any]:
    return {
        "error_class": "target_unavailable",
        "replay_eligible": True,
        "ineligible_reason": None,
        "replay_count": 0,
        "replay_outcome": None,
        "resolved_at": None,
    } | more


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"replay_eligible": False, "ineligible_reason": "refused again"}, "refused again"),
        ({"replay_outcome": "pending", "replay_count": 1}, "under way"),
        ({"resolved_at": NOW}, "settled already"),
        ({"replay_count": 3, "replay_outcome": "errored"}, "often enough"),
    ],
)
def test_a_letter_is_not_replayed(more: dict[str, Any], says: str) -> None:
    assert says in (replay_refusal(letter(**more), ReplayPolicy(), NOW) or "")


def test_a_letter_is_replayed_also_after_a_replay_that_failed_or_was_stopped() -> None:
    for result in (None, "errored", "cancelled"):
        assert replay_refusal(letter(replay_outcome=result), ReplayPolicy(), NOW) is None


# --- beginning anew --------------------------------------------------------------------------------------------------


def test_what_nobody_had_is_routed_anew() -> None:
    for stored, outcomes in ((None, None), (DECISION, []), (DECISION, [unreached("s1"), unreached("s2")])):
        beginning = repeated(stored, outcomes, 1)
        assert (beginning.routing_output, beginning.outcomes) == (None, None)


def test_what_succeeded_stays_settled_and_what_was_refused_gets_a_new_name() -> None:
    done = outcome("s2")
    beginning = repeated(DECISION, [refused("s1"), done], 2)
    assert beginning.outcomes == [done]
    assert beginning.routing_output is not None
    assert [segment["segment_id"] for segment in beginning.routing_output["segments"]] == ["s1~2", "s2"]
    assert beginning.routing_output["plan"]["nodes"] == [
        {"segment_id": "s1~2", "depends_on": []},
        {"segment_id": "s2", "depends_on": ["s1~2"]},
    ]


def test_a_name_grows_once_however_often() -> None:
    stored = repeated(DECISION, [refused("s1"), outcome("s2")], 1).routing_output
    again = repeated(stored, [refused("s1~1"), outcome("s2")], 2).routing_output
    assert again is not None
    assert [segment["segment_id"] for segment in again["segments"]] == ["s1~2", "s2"]


def test_whoever_may_still_be_at_work_keeps_the_name() -> None:
    """Under a new name it would be done twice."""
    spent = outcome("s1", error={"class": "timeout", "message": "budget", "retryable": False})
    beginning = repeated(DECISION, [spent, outcome("s2")], 1)
    assert beginning.routing_output is not None
    assert [segment["segment_id"] for segment in beginning.routing_output["segments"]] == ["s1", "s2"]


def test_what_was_skipped_is_not_settled() -> None:
    beginning = repeated(DECISION, [refused("s1"), outcome("s2", skipped="s1 failed")], 1)
    assert beginning.outcomes == []


def test_a_reroute_is_the_whole_text_for_one_butler_under_a_new_name() -> None:
    beginning = rerouted("all of it", "health", why="operator ann: ill", turn=3)
    assert beginning.routing_output is not None
    [segment] = beginning.routing_output["segments"]
    assert (segment["butler"], segment["start"], segment["end"]) == ("health", 0, 9)
    assert (segment["segment_id"], beginning.routing_output["router"]) == ("s1~3", "policy")
    assert beginning.outcomes is None
    assert handed_to(beginning.routing_output) == ["health"]
    assert handed_to(None) == []


def test_rounds_are_counted() -> None:
    assert [round_after(override) for override in (None, {}, {"round": 4})] == [1, 1, 5]
