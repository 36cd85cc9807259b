"""Routing without a model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.config import load_roster
from butlers.butler.routing_config import RoutingSection
from butlers.daemon.settings import shipped_roster
from butlers.errors import RoutingError
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing.cascade import Cascade
from butlers.switchboard.routing.decision import Decision
from butlers.switchboard.routing.local import TriggerRouter
from butlers.switchboard.routing.question import RoutingQuestion


def butler(name: str, *triggers: str, state: str = "active", capabilities: tuple[str, ...] = ("route.execute",)) -> Any:
    return RegisteredButler(
        name=name,
        eligibility_state=state,
        triggers=triggers,
        capabilities=capabilities,
    )


def decide(text: str, *, pinned_target: str | None, butlers: list[RegisteredButler]) -> Decision:
    cascade = Cascade(settings=RoutingSection(), local=TriggerRouter())
    return asyncio.run(cascade.decide(RoutingQuestion(text=text, pinned_target=pinned_target), butlers))


FINANCE = butler("finance", "bill", "credit card", "pay")
HEALTH = butler("health", "pill", "pain", "doctor")
GENERAL = butler("general")
BUTLERS = [FINANCE, HEALTH, GENERAL]


def chosen(text: str, butlers: list[RegisteredButler] | None = None, pinned: str | None = None) -> tuple[str, str]:
    decision = decide(text, pinned_target=pinned, butlers=BUTLERS if butlers is None else butlers)
    (segment,) = decision.segments
    return segment.butler, decision.router


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I must pay the bill", ("finance", "local")),
        ("THE BILL!", ("finance", "local")),
        ("my credit-card", ("finance", "local")),
        ("the doctor gave me a pill for the bill", ("health", "local")),
        ("hello there", ("general", "fallback")),
        ("pay the doctor", ("general", "fallback")),
        ("credit card for the doctor", ("finance", "local")),
        ("a card on credit", ("general", "fallback")),
        ("billing department", ("general", "fallback")),
        ("painless", ("general", "fallback")),
        ("ｂｉｌｌ", ("finance", "local")),
        ("", ("general", "fallback")),
    ],
)
def test_trigger_words_decide_by_clear_majority(text: str, expected: tuple[str, str]) -> None:
    assert chosen(text) == expected


def test_a_pinned_target_goes_before_everything() -> None:
    assert chosen("pay the bill", pinned="health") == ("health", "policy")


@pytest.mark.parametrize("target", ["nobody", "switchboard", "messenger", "asleep"])
def test_a_pinned_target_that_takes_no_routes_is_an_error_and_no_guess(target: str) -> None:
    everybody = [*BUTLERS, butler("switchboard"), butler("messenger"), butler("asleep", state="stale")]
    with pytest.raises(RoutingError) as caught:
        chosen("pay the bill", everybody, pinned=target)
    assert caught.value.retryable is False


@pytest.mark.parametrize("state", ["stale", "quarantined"])
def test_a_butler_that_is_not_active_gets_nothing(state: str) -> None:
    assert chosen("pay the bill", [butler("finance", "bill", state=state), GENERAL]) == ("general", "fallback")


def test_a_butler_that_cannot_execute_routes_gets_nothing() -> None:
    mute = butler("finance", "bill", capabilities=("ping",))
    assert chosen("pay the bill", [mute, GENERAL]) == ("general", "fallback")


@pytest.mark.parametrize("door", ["switchboard", "messenger"])
def test_the_doors_themselves_are_never_targets(door: str) -> None:
    assert chosen("bill", [butler(door, "bill"), GENERAL]) == ("general", "fallback")


def test_general_does_not_compete() -> None:
    assert chosen("pay the bill", [FINANCE, butler("general", "pay", "bill", "the")]) == ("finance", "local")


def test_without_anybody_the_request_can_be_tried_again() -> None:
    with pytest.raises(RoutingError) as caught:
        chosen("hello", [butler("general", state="stale")])
    assert caught.value.retryable is True


names = st.lists(st.sampled_from(["bill", "pill", "pay", "pain", "x", "Credit", "card", "!"]), max_size=8)


@given(names, st.permutations(BUTLERS))
def test_the_order_of_the_registry_does_not_matter_and_the_words_are_kept(
    words: list[str], butlers: list[RegisteredButler]
) -> None:
    text = " ".join(words)
    decision = decide(text, pinned_target=None, butlers=butlers)
    assert decision == decide(text, pinned_target=None, butlers=BUTLERS)
    (segment,) = decision.segments
    assert text[segment.start : segment.end] == text
    assert 0 <= segment.confidence <= 1


@given(names)
def test_a_decision_survives_being_stored(words: list[str]) -> None:
    decision = decide(" ".join(words), pinned_target=None, butlers=BUTLERS)
    assert Decision.from_wire(decision.to_wire()) == decision


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I paid the electricity bill", "finance"),
        ("My blood pressure is 120 over 80", "health"),
        ("Book a flight and a hotel", "travel"),
        ("It is my sister's birthday", "relationship"),
        ("Good morning", "general"),
    ],
)
def test_the_shipped_roster_routes_plain_messages(text: str, expected: str) -> None:
    roster = load_roster(shipped_roster())
    butlers = [butler(name, *config.butler.registry.triggers) for name, config in roster.items()]
    assert chosen(text, butlers)[0] == expected
