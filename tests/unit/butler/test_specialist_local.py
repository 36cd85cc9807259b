"""Answers without a model."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.specialist import HELP, LONGEST_QUOTE, is_question, local_answer, search_words

DAY = date(2026, 11, 15)


@pytest.mark.parametrize(
    "text", ["What did I pay?", "rent?", "When is the flight", "HOW much", "did I take the pill", "tell me? "]
)
def test_questions(text: str) -> None:
    assert is_question(text)


@pytest.mark.parametrize("text", ["I paid 80 euros", "", "   ", "Whatever happens", "Lunch at 12", "!!!", "? no"])
def test_what_is_no_question(text: str) -> None:
    assert not is_question(text)


def test_a_note_is_acknowledged_with_its_words() -> None:
    assert local_answer("finance", "I paid\n the   bill", []) == "Noted: I paid the bill"


def test_a_question_is_answered_from_the_notes() -> None:
    answer = local_answer("finance", "What did I pay?", [("I paid 80 euros", DAY), ("I paid the rent", DAY)])
    assert answer == ("This is what you told me:\n- I paid 80 euros (on 2026-11-15)\n- I paid the rent (on 2026-11-15)")


@pytest.mark.parametrize("text", ["/start", " /help ", "Help"])
def test_a_newcomer_is_told_what_to_say(text: str) -> None:
    assert local_answer("general", text, []) == HELP


def test_a_question_without_notes_says_so_and_invents_nothing() -> None:
    assert local_answer("finance", "What did I pay?", []).startswith("I have nothing on that yet.")


def test_search_words_are_those_that_can_find_something() -> None:
    assert search_words("What did I pay for the Électricité, the ELECTRICITY?") == ["pay", "électricité", "electricity"]
    assert search_words("What is it?") == []


@given(st.text())
def test_words_are_safe_to_search_with(text: str) -> None:
    words = search_words(text)
    assert len(words) == len(set(words)) <= 20
    assert all(word.isalnum() for word in words)
    assert not any(character in word for word in words for character in " |&!():*'\\<>")


@given(st.text(min_size=1))
def test_an_answer_is_never_blank_and_never_endless(text: str) -> None:
    answer = local_answer("general", text, [(text, DAY)] if is_question(text) else [])
    assert answer.strip()
    assert len(answer) <= LONGEST_QUOTE + 60
