"""Who is believed when butlers disagree."""

from __future__ import annotations

from itertools import permutations

from butlers.switchboard.dispatch.fanout import aggregate, arbitrate, conflicts_of
from butlers.switchboard.dispatch.plan import FanoutNode
from tests.unit.switchboard.fanout.parts import failed, node, ok, plan


def grouped(number: int, butler: str, priority: int = 0) -> FanoutNode:
    return node(number, butler, arbitration_group="g", arbitration_priority=priority)


def test_the_highest_priority_wins_whatever_the_names_and_the_order() -> None:
    nodes = [grouped(1, "alpha"), grouped(2, "zeta", 5), grouped(3, "beta", 1)]
    outcomes = [ok(1, "alpha", "a"), ok(2, "zeta", "z"), ok(3, "beta", "b")]
    for order in permutations(range(3)):
        [judged] = arbitrate(plan(*nodes), [outcomes[index] for index in order])
        assert judged["winner"]["butler"] == "zeta"
        assert [loser["butler"] for loser in judged["losers"]] == ["beta", "alpha"]
        assert judged["by"] == "priority"


def test_at_the_same_priority_the_first_name_wins() -> None:
    of = plan(grouped(1, "travel"), grouped(2, "finance"))
    [judged] = arbitrate(of, [ok(1, "travel", "t"), ok(2, "finance", "f")])
    assert (judged["winner"]["butler"], judged["by"]) == ("finance", "butler")


def test_of_two_parts_of_one_butler_the_first_subrequest_id_wins() -> None:
    of = plan(grouped(1, "finance"), grouped(2, "finance"))
    outcomes = [ok(1, "finance", "one"), ok(2, "finance", "two")]
    [judged] = arbitrate(of, outcomes)
    assert judged["winner"]["subrequest_id"] == min(str(outcome.subrequest_id) for outcome in outcomes)
    assert judged["by"] == "subrequest_id"
    assert arbitrate(of, outcomes[::-1]) == [judged]


def test_the_same_answer_is_no_conflict_and_a_failure_takes_no_part() -> None:
    of = plan(grouped(1, "travel", 9), grouped(2, "finance"))
    assert arbitrate(of, [ok(1, "travel", "same"), ok(2, "finance", "same")]) == []
    reply = aggregate(of, [failed(1, "travel"), ok(2, "finance", "f")])
    assert reply is not None
    assert "arbitration" not in reply


def test_groups_are_judged_apart() -> None:
    of = plan(
        node(1, "a", arbitration_group="g"),
        node(2, "b", arbitration_group="h"),
        node(3, "c", arbitration_group="g"),
        node(4, "d", arbitration_group="h"),
    )
    judged = arbitrate(of, [ok(1, "a", "1"), ok(2, "b", "2"), ok(3, "c", "3"), ok(4, "d", "4")])
    assert [(one["group"], one["winner"]["butler"]) for one in judged] == [("g", "a"), ("h", "b")]


def test_outside_every_group_a_matter_decided_twice_is_a_conflict_that_nobody_settles() -> None:
    of = plan(node(1, "travel"), node(2, "finance"), node(3, "health"))
    outcomes = [
        ok(1, "travel", key="date", decision="Monday"),
        ok(2, "finance", key="date", decision="Tuesday"),
        ok(3, "health", key="dose", decision="2"),
    ]
    [conflict] = conflicts_of(of, outcomes)
    assert conflict["key"] == "date"
    assert [(one["butler"], one["decision"]) for one in conflict["between"]] == [
        ("finance", "Tuesday"),
        ("travel", "Monday"),
    ]
    assert arbitrate(of, outcomes) == []


def test_different_words_about_different_matters_are_no_conflict() -> None:
    of = plan(node(1, "travel"), node(2, "finance"))
    assert conflicts_of(of, [ok(1, "travel", "booked"), ok(2, "finance", "paid")]) == []
    same = [ok(1, "travel", key="date", decision="Monday"), ok(2, "finance", key="date", decision="Monday")]
    assert conflicts_of(of, same) == []
