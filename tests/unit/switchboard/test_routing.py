"""The cascade with the local classifier: the model, trigger words that it does not know, pins, eligibility."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.daemon.settings import shipped_roster
from butlers.errors import RoutingError
from butlers.roster import load_roster
from butlers.switchboard.config import RoutingSection
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing.classifier import LocalClassifier
from butlers.switchboard.routing.decision import Cascade, Decision, RoutingQuestion


def butler(name: str, *triggers: str, state: str = "active", capabilities: tuple[str, ...] = ("route.execute",)) -> Any:
    return RegisteredButler(
        name=name,
        eligibility_state=state,
        triggers=triggers,
        capabilities=capabilities,
    )


CLASSIFIER = LocalClassifier()


def decide(text: str, *, pinned_target: str | None, butlers: list[RegisteredButler]) -> Decision:
    cascade = Cascade(settings=RoutingSection(), local=CLASSIFIER)
    return asyncio.run(cascade.decide(RoutingQuestion(text=text, pinned_target=pinned_target), butlers))


FINANCE = butler("finance")
GENERAL = butler("general")
GARDEN = butler("garden", "prune", "tomato plants", "compost")
BUTLERS = [FINANCE, butler("health"), GENERAL, GARDEN]


def chosen(text: str, butlers: list[RegisteredButler] | None = None, pinned: str | None = None) -> tuple[str, str]:
    decision = decide(text, pinned_target=pinned, butlers=BUTLERS if butlers is None else butlers)
    (segment,) = decision.segments
    return segment.butler, decision.router


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I must pay the electricity bill", "finance"),
        ("PAY THE ELECTRICITY BILL!", "finance"),
        ("ｐａｙ the electricity ｂｉｌｌ", "finance"),
        ("my knee hurts since the fall", "health"),
        ("when do I prune the roses", "garden"),
        ("PRUNE the hedge", "garden"),
        ("the tomato-plants have spots", "garden"),
        ("a plant for tomato lovers", "general"),
        ("composting", "general"),
        ("hello there", "general"),
        ("", "general"),
    ],
)
def test_the_model_and_trigger_words_that_it_does_not_know_decide(text: str, expected: str) -> None:
    assert chosen(text)[0] == expected


@pytest.mark.parametrize("text", ["", "?!", "send this to finance", "blorp wug zindle"])
def test_what_says_nothing_falls_to_general_and_says_why(text: str) -> None:
    decision = decide(text, pinned_target=None, butlers=BUTLERS)
    assert (decision.router, decision.fallback_reason) == ("fallback", "ambiguous")


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
    assert chosen("pay the electricity bill", [butler("finance", state=state), GENERAL])[0] == "general"
    assert chosen("prune the hedge", [butler("garden", "prune", state=state), GENERAL])[0] == "general"


def test_a_butler_that_cannot_execute_routes_gets_nothing() -> None:
    mute = butler("finance", capabilities=("ping",))
    assert chosen("pay the electricity bill", [mute, GENERAL])[0] == "general"


@pytest.mark.parametrize("door", ["switchboard", "messenger"])
def test_the_doors_themselves_are_never_targets(door: str) -> None:
    assert chosen("prune the hedge", [butler(door, "prune"), GENERAL])[0] == "general"


def test_general_does_not_compete() -> None:
    assert chosen("prune the hedge", [GARDEN, butler("general", "prune", "hedge", "the")])[0] == "garden"


class NeverAnswers:
    """A record, or a model, that does not come to an end."""

    async def decide(self, _question: RoutingQuestion, _names: frozenset[str]) -> Decision | None:
        await asyncio.Event().wait()
        return None

    async def route(self, _question: RoutingQuestion, _butlers: Any) -> Decision:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("step", ["threads", "llm"])
def test_deciding_has_a_deadline_and_then_the_whole_text_goes_to_general(step: str) -> None:
    settings, text = RoutingSection(decision_timeout_s=0.05), "blorp wug zindle"
    cascade = Cascade(settings=settings, local=CLASSIFIER, **{step: NeverAnswers()})
    decision = asyncio.run(cascade.decide(RoutingQuestion(text=text, pinned_target=None), BUTLERS))
    (segment,) = decision.segments
    assert (decision.router, decision.fallback_reason) == ("fallback", "classification_failed")
    assert (segment.butler, text[segment.start : segment.end]) == ("general", text)
    assert decision.why == "deciding took longer than 0.05 s"


def test_without_anybody_the_request_can_be_tried_again() -> None:
    with pytest.raises(RoutingError) as caught:
        chosen("hello", [butler("general", state="stale")])
    assert caught.value.retryable is True


names = st.lists(st.sampled_from(["bill", "pill", "prune", "pain", "x", "Tomato", "plants", "!"]), max_size=8)


@given(names, st.permutations(BUTLERS))
def test_the_order_of_the_registry_does_not_matter_and_the_words_are_kept(
    words: list[str], butlers: list[RegisteredButler]
) -> None:
    text = " ".join(words)
    decision = decide(text, pinned_target=None, butlers=butlers)
    assert decision == decide(text, pinned_target=None, butlers=BUTLERS)
    assert "".join(text[segment.start : segment.end] for segment in decision.segments) == text
    assert all(0 <= segment.confidence <= 1 for segment in decision.segments)


@given(names)
def test_a_decision_survives_being_stored(words: list[str]) -> None:
    decision = decide(" ".join(words), pinned_target=None, butlers=BUTLERS)
    assert Decision.from_wire(asdict(decision)) == decision


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
