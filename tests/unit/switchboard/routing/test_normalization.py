"""One spelling for what only looks different, with the way back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.switchboard.routing.features import fold


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("pay the bill", "pay the bill"),
        ("Раy the\u200b ｂill", "Pay the bill"),
        ("flіght", "flight"),
        ("𝐟𝐢𝐧𝐚𝐧𝐜𝐞", "finance"),
        ("p\u0336a\u0336y", "pay"),
        ("\u202epay\u202c", "pay"),
        ("Ärger, Straße", "Arger, Strasse"),
        ("оплатить счёт", "оплатить счёт"),
        ("बीमार", "बीमार"),
        ("がぎ", "がぎ"),
    ],
)
def test_a_disguise_is_taken_off_and_a_language_is_left(written: str, read: str) -> None:
    assert fold(written).text == read


@given(st.text())
def test_every_folded_character_knows_where_it_came_from(text: str) -> None:
    folded = fold(text)
    assert len(folded.origin) == len(folded.text) + 1
    assert list(folded.origin) == sorted(folded.origin)
    assert folded.origin[-1] == len(text)
