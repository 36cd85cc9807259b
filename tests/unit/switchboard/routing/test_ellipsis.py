"""What says nothing by itself."""

from __future__ import annotations

import pytest

from butlers.switchboard.routing.conversations import says_nothing_itself


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "ok!",
        "Yes, the second one.",
        "no, not that one",
        "tomorrow at 5?",
        "👍",
        "",
        "7",
        "ja bitte",
        "le deuxième",
    ],
)
def test_words_that_point_at_something_else(text: str) -> None:
    assert says_nothing_itself(text)


@pytest.mark.parametrize(
    "text",
    [
        "weather tomorrow?",
        "yes, the invoice",
        "tell me a joke",
        "Rechnung",
        "the second one of the hotels",
        "no " * 20,
        "?" * 2_000,
    ],
)
def test_words_that_say_something(text: str) -> None:
    assert not says_nothing_itself(text)
