"""The mark that says who speaks (seed 001 section 6.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.messenger.preparation import subject_with_origin, with_origin


def test_a_message_starts_with_its_origin() -> None:
    assert with_origin("Done.", "finance") == "[finance] Done."


def test_a_message_that_has_the_mark_keeps_it_once() -> None:
    assert with_origin("[finance] Done.", "finance") == "[finance] Done."


def test_anothers_mark_does_not_count() -> None:
    assert with_origin("[health] Done.", "finance") == "[finance] [health] Done."


@given(st.text(), st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True))
def test_marking_twice_is_marking_once_and_keeps_the_words(text: str, origin: str) -> None:
    marked = with_origin(text, origin)
    assert marked.startswith(f"[{origin}]")
    assert marked.endswith(text)
    assert with_origin(marked, origin) == marked


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (None, "[finance] Message"),
        ("", "[finance] Message"),
        ("  ", "[finance] Message"),
        ("Your bill", "[finance] Your bill"),
        (" Your bill ", "[finance] Your bill"),
        ("Re: [finance] Your bill", "Re: [finance] Your bill"),
        ("[health] Your bill", "[finance] [health] Your bill"),
    ],
)
def test_a_subject_carries_the_mark_once(subject: str | None, expected: str) -> None:
    assert subject_with_origin(subject, "finance") == expected
