"""Which rule allows a call."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.approvals.rules import Rule, in_precedence, is_live, matches, same, suggested_constraints

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
EXACT, PATTERN, ANY = "exact", "pattern", "any"


def rule(number: int = 1, /, **changes: Any) -> Rule:
    plain = Rule(id=UUID(int=number), tool_name="send", constraints={}, created_at=NOW - timedelta(days=1))
    return replace(plain, **changes)


def to(kind: str, value: Any = None) -> dict[str, dict[str, Any]]:
    return {"to": {"type": kind, "value": value}}


def allowed(constraints: dict[str, dict[str, Any]], args: dict[str, Any]) -> bool:
    return matches(rule(constraints=constraints), "send", args, NOW)


@pytest.mark.parametrize(
    ("constraints", "args", "expected"),
    [
        ({}, {"to": "ann"}, True),
        (to(EXACT, "ann"), {"to": "ann", "text": "hello"}, True),
        (to(EXACT, "ann"), {"to": "Ann"}, False),
        (to(EXACT, "ann"), {"text": "hello"}, False),
        (to(EXACT, None), {}, False),
        (to(EXACT, None), {"to": None}, True),
        (to(EXACT, ["a", {"b": 1}]), {"to": ["a", {"b": 1}]}, True),
        (to(EXACT, 1), {"to": True}, False),
        (to(EXACT, [0]), {"to": [False]}, False),
        (to(PATTERN, "*@example.org"), {"to": "ann@example.org"}, True),
        (to(PATTERN, "*@example.org"), {"to": "ann@example.org.evil"}, False),
        (to(PATTERN, "*@Example.org"), {"to": "ann@example.org"}, False),
        (to(PATTERN, "*"), {"to": 7}, False),
        (to(PATTERN, "*"), {}, False),
        (to(PATTERN, "*"), {"to": "two\nlines"}, True),
        (to(ANY), {}, True),
        (to(ANY), {"to": 7}, True),
    ],
)
def test_constraints(constraints: dict[str, dict[str, Any]], args: dict[str, Any], expected: bool):
    assert allowed(constraints, args) is expected


def test_a_rule_is_for_one_tool():
    assert not matches(rule(), "send_other", {}, NOW)


@pytest.mark.parametrize(
    ("changes", "live"),
    [
        ({"active": False}, False),
        ({"expires_at": NOW}, False),
        ({"expires_at": NOW + timedelta(microseconds=1)}, True),
        ({"max_uses": 2, "use_count": 2}, False),
        ({"max_uses": 2, "use_count": 1}, True),
        ({"use_count": 1_000_000}, True),
    ],
)
def test_a_rule_that_is_over_matches_nothing(changes: dict[str, Any], live: bool):
    assert is_live(rule(**changes), NOW) is live
    assert matches(rule(**changes), "send", {}, NOW) is live


def test_precedence_is_specific_then_bounded_then_newest_then_id():
    args = {"to": "ann", "subject": "Report 7"}
    subject = {"subject": {"type": PATTERN, "value": "Report*"}}
    ordered = [
        rule(9, constraints=to(EXACT, "ann") | subject),
        rule(8, constraints=to(EXACT, "ann"), max_uses=1, created_at=NOW - timedelta(days=9)),
        rule(7, constraints=to(EXACT, "ann"), created_at=NOW),
        rule(5, constraints=to(EXACT, "ann")),
        rule(6, constraints=to(EXACT, "ann")),
        rule(4, constraints=subject, expires_at=NOW + timedelta(days=1)),
        rule(3, constraints=subject),
        rule(2, constraints=to(ANY)),
    ]
    assert list(in_precedence(reversed(ordered), "send", args, NOW)) == ordered


# --- properties ------------------------------------------------------------------------------------------------------

values = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text("ab*?[", max_size=4))
arguments = st.dictionaries(st.sampled_from(["to", "text", "subject"]), values, max_size=3)
constraint = st.one_of(
    st.builds(lambda value: {"type": EXACT, "value": value}, values),
    st.builds(lambda value: {"type": PATTERN, "value": value}, st.text("ab*?[]", min_size=1, max_size=4)),
    st.just({"type": ANY}),
)
rules = st.builds(
    lambda number, constraints, days, ends, uses, used, active: rule(
        number,
        constraints=constraints,
        created_at=NOW - timedelta(days=days),
        expires_at=None if ends is None else NOW + timedelta(days=ends),
        max_uses=uses,
        use_count=used,
        active=active,
    ),
    st.integers(1, 1000),
    st.dictionaries(st.sampled_from(["to", "text", "subject"]), constraint, max_size=3),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(-2, 2)),
    st.one_of(st.none(), st.integers(1, 3)),
    st.integers(0, 3),
    st.booleans(),
)
books = st.lists(rules, max_size=8, unique_by=lambda one: one.id)


@given(books, arguments, st.randoms())
def test_the_order_in_which_rules_are_stored_decides_nothing(book: list[Rule], args: dict[str, Any], random: Any):
    shuffled = random.sample(book, len(book))
    assert in_precedence(book, "send", args, NOW) == in_precedence(shuffled, "send", args, NOW)


@given(books, arguments)
def test_the_first_is_live_matches_and_none_that_matches_is_more_specific(book: list[Rule], args: dict[str, Any]):
    found = in_precedence(book, "send", args, NOW)
    matching = [one for one in book if matches(one, "send", args, NOW)]
    assert set(map(id, found)) == set(map(id, matching))
    if found:
        assert is_live(found[0], NOW)
        assert found[0].specificity == max(one.specificity for one in matching)


@given(rules, arguments)
def test_another_constraint_never_makes_a_rule_match_more(one: Rule, args: dict[str, Any]):
    looser = [
        replace(one, constraints={name: c for name, c in one.constraints.items() if name != dropped})
        for dropped in one.constraints
    ]
    if matches(one, "send", args, NOW):
        assert all(matches(rule, "send", args, NOW) for rule in looser)


@given(arguments, arguments)
def test_a_rule_made_from_a_call_matches_it_and_only_calls_to_the_same_recipient(
    args: dict[str, Any], other: dict[str, Any]
):
    made = rule(constraints=suggested_constraints(args))
    assert matches(made, "send", args, NOW)
    if "to" in args and matches(made, "send", other, NOW):
        assert same(other["to"], args["to"])


def test_a_suggested_rule_frees_the_words_and_keeps_the_rest():
    suggested = suggested_constraints({"recipient": "7", "message": "hi", "subject": "s", "amount": 5, "contact": None})
    assert suggested == {
        "recipient": {"type": "exact", "value": "7"},
        "message": {"type": "any"},
        "subject": {"type": "any"},
        "amount": {"type": "exact", "value": 5},
        "contact": {"type": "exact", "value": None},
    }
