"""Where a message can be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.switchboard.routing.clauses import MOST, clauses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one thing", ["one thing"]),
        ("I paid. My knee hurts", ["I paid. ", "My knee hurts"]),
        ("I paid and my knee hurts", ["I paid ", "and my knee hurts"]),
        ("- milk\n- bread", ["- milk\n- ", "bread"]),
        ("paid rent btw call mum", ["paid rent ", "btw call mum"]),
        ("Miete bezahlt, außerdem Mama anrufen", ["Miete bezahlt, ", "außerdem Mama anrufen"]),
        ("薬を飲んだ。家賃を払った", ["薬を飲んだ。", "家賃を払った"]),
        ("3.5 kg", ["3.5 kg"]),
    ],
)
def test_cuts(text: str, expected: list[str]) -> None:
    assert [text[clause.start : clause.end] for clause in clauses(text)] == expected


@given(st.text(alphabet=st.sampled_from("ab .,;\n-–!?and also")))
def test_clauses_cover_the_text_in_order(text: str) -> None:
    found = clauses(text)
    assert "".join(text[clause.start : clause.end] for clause in found) == text
    assert 1 <= len(found) <= MOST
