"""What says nothing by itself."""

from __future__ import annotations

import pytest

from butlers.switchboard.routing.conversations import has_no_content


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
    assert has_no_content(text)


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
    assert not has_no_content(text)
