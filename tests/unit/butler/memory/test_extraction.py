"""What local rules read in plain sentences, and what they leave alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.memory.extraction import MAX_NAME, corrections, plain_sentences, statements

ME = "owner"
WORDS = ("my", "I", "is", "lives", "in", "Anna", "'s", "birthday", "and", ",", ".", "like", "hate", "to", "allergic")


def read(text: str) -> list[tuple[str, str, str]]:
    return [(said.subject, said.predicate, said.content) for said in statements(text, ME)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("My dentist is Dr. Weiss.", [(ME, "dentist", "Dr Weiss")]),
        ("my favourite colour is dark green", [(ME, "favourite colour", "dark green")]),
        ("Remember: my locker number is 42", [(ME, "locker number", "42")]),
        ("my mother's name is Eva", [(ME, "mother's name", "Eva")]),
        ("My birthday is May 1", [(ME, "birthday", "May 1")]),
        ("my wife's birthday is 3 May.", [("owner's wife", "birthday", "3 May")]),
        ("Anna's birthday is on the 4th of June!", [("Anna", "birthday", "4th of June")]),
        ("Anna lives in Graz", [("Anna", "lives in", "Graz")]),
        ("I live in Vienna now.", [(ME, "lives in", "Vienna")]),
        ("I moved to Berlin last year", [(ME, "lives in", "Berlin")]),
        ("My brother lives in Linz", [("owner's brother", "lives in", "Linz")]),
        ("I work for Siemens", [(ME, "works at", "Siemens")]),
        ("I'm allergic to nuts and milk", [(ME, "allergy to nuts", "allergic"), (ME, "allergy to milk", "allergic")]),
        ("I am not allergic to cats", [(ME, "allergy to cats", "not allergic")]),
        ("Tom is allergic to penicillin", [("Tom", "allergy to penicillin", "allergic")]),
        ("I love jazz", [(ME, "opinion of jazz", "loves")]),
        ("I hate olives because of the taste", [(ME, "opinion of olives", "hates")]),
        ("I can’t stand olives", [(ME, "opinion of olives", "hates")]),  # a typographic apostrophe
        ("I don't like early meetings", [(ME, "opinion of early meetings", "dislikes")]),
        ("I prefer tea to coffee", [(ME, "opinion of tea", "prefers it to coffee")]),
        ("Tom likes football", [("Tom", "opinion of football", "likes")]),
        ("My name is Ann and I live in Graz", [(ME, "name", "Ann"), (ME, "lives in", "Graz")]),
    ],
)
def test_plain_statements_become_facts(text: str, found: list[tuple[str, str, str]]) -> None:
    assert read(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "Do you know what my name is?",
        "Is my doctor on holiday? Tell me",
        "If my name is Bob, you win",
        "Suppose I live in Rome",
        '"My name is Bob" is what he wrote',
        "> my name is Bob",
        "My head is killing me",
        "my train is late",
        "It is raining",
        "He lives in Rome",
        "I would like a pizza",
        "I like to swim",
        "I like it",
        "Everyone likes football",
        "everyone's birthday is soon",
        "my password is hunter2",
        "My PIN is 1234",
        "my credit card is 4111 1111 1111 1111",
        "my name is " + "very " * 80,
        "",
    ],
)
def test_what_is_no_plain_statement_is_left_alone(text: str) -> None:
    assert read(text) == []


def test_a_changed_mind_is_the_same_fact() -> None:
    [before], [after] = read("I like olives"), read("I hate olives")
    assert before[:2] == after[:2]
    assert before[2] != after[2]


def test_what_lasts_is_surer_than_what_may_pass() -> None:
    [birthday], [name], [car] = (statements(t, ME) for t in ("My birthday is 1 May", "My name is Ann", "My car is red"))
    assert (birthday.permanence, name.permanence, car.permanence) == ("permanent", "stable", "volatile")
    assert birthday.confidence > name.confidence > car.confidence


@pytest.mark.parametrize(
    ("text", "wishes"),
    [
        ("No, please don't send me messages after 10 pm!", ["Don't send me messages after 10 pm"]),
        ("Do not send me messages after 10 pm", ["Don't send me messages after 10 pm"]),
        ("From now on, always answer in German.", ["Always answer in German"]),
        ("I told you already: never call me Johnny", ["Never call me Johnny"]),
        ("Stop sending weather reports", ["Stop sending weather reports"]),
        ("Don't you think so?", []),
        ("I never eat fish", []),
        ("The stop is closed", []),
    ],
)
def test_corrections_are_recognised(text: str, wishes: list[str]) -> None:
    assert corrections(text) == wishes


@given(text=st.text(max_size=2_000))
def test_any_text_is_read_without_failing(text: str) -> None:
    for said in statements(text, ME):
        assert len(said.subject) <= MAX_NAME
        assert len(said.predicate) <= MAX_NAME
        assert 0 < said.confidence <= 1
    assert all(wish for wish in corrections(text))
    assert len(plain_sentences(text)) <= 100


@given(words=st.lists(st.sampled_from(WORDS), max_size=60))
def test_words_of_the_patterns_in_any_order_are_read_without_failing(words: list[str]) -> None:
    for said in statements(" ".join(words), ME):
        assert said.subject.strip()
        assert said.predicate.strip()
        assert said.content.strip()
