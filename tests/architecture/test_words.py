"""The dictionary of the house holds, and its check sees what it forbids."""

from __future__ import annotations

from tests.architecture.words import every_banned_word, found_in


def test_no_banned_word_is_used() -> None:
    assert every_banned_word() == []


def test_the_check_sees_identifiers_and_sentences() -> None:
    code = (
        '"""A verdict."""\n\ndef judge_it(wish: int) -> None:\n    _FAREWELL_S = 1  # its last words\n'
        "    self.stance = 2\n"
    )
    found = list(found_in("src/x.py", code))
    assert [line.partition(" ")[2].partition(":")[0] for line in found] == [
        *("judge_it", "wish", "_FAREWELL_S", "stance"),
        *("'verdict' in a sentence", "'last words' in a sentence"),
    ]


def test_names_on_the_wire_stay() -> None:
    assert list(found_in("docs/x.md", "| `stance` | the mode | `POST /x/{deed}` |")) == []
    assert len(list(found_in("docs/x.md", "Its stance is tight."))) == 1
