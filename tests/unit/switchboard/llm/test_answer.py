"""What a model may answer, to the last key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import ClassificationError
from butlers.switchboard.routing.llm_answer import MAX_RATIONALE, read_segments

TEXT = "I paid the bill. My knee hurts. Thanks!"
BILL, KNEE, THANKS = (0, 16), (17, 31), (32, 39)
NAMES = frozenset({"finance", "health", "general"})


def part(
    butler: Any = "finance", span: tuple[Any, Any] = (0, 39), confidence: Any = 0.9, **more: Any
) -> dict[str, Any]:
    segment = {"start": span[0], "end": span[1]}
    return {"butler": butler, "segment": segment, "confidence": confidence, "rationale": "so"} | more


def read(*parts: Any, text: str = TEXT) -> list[tuple[str, str]]:
    segments = read_segments(json.dumps(list(parts)), text, NAMES)
    return [(segment.butler, text[segment.start : segment.end]) for segment in segments]


def test_one_part_is_the_whole_text() -> None:
    assert read(part()) == [("finance", TEXT)]
    assert read(part(span=BILL)) == [("finance", TEXT)]


def test_two_parts_keep_the_authors_words_and_their_order() -> None:
    assert read(part("health", KNEE), part("finance", BILL)) == [
        ("finance", "I paid the bill."),
        ("health", "My knee hurts. Thanks!"),
    ]


def test_general_never_stands_beside_a_specialist() -> None:
    assert read(part("general", BILL), part("health", KNEE)) == [("health", TEXT)]
    assert read(part("general", BILL), part("general", THANKS)) == [("general", TEXT)]


def test_parts_of_one_butler_side_by_side_are_one() -> None:
    [segment] = read_segments(
        json.dumps([part(span=BILL, confidence=0.9), part(span=KNEE, confidence=0.5)]), TEXT, NAMES
    )
    assert (segment.butler, segment.start, segment.end, segment.confidence) == ("finance", 0, len(TEXT), 0.5)


def test_a_rationale_is_one_short_line_of_what_can_be_seen() -> None:
    said = "because\n\u202eevil\u200b " + "x" * 5_000
    [segment] = read_segments(json.dumps([part(rationale=said)]), TEXT, NAMES)
    assert len(segment.rationale) <= MAX_RATIONALE
    assert segment.rationale.isprintable() and segment.rationale.startswith("because evil")


BAD: dict[str, str] = {
    "not json": "finance, I think",
    "words around it": 'Here: [{"butler": "finance"}]',
    "a code fence": "```json\n" + json.dumps([part()]) + "\n```",
    "empty": "",
    "no parts": "[]",
    "an object": json.dumps(part()),
    "too long": json.dumps([part(rationale="x" * 30_000)]),
    "too many parts": json.dumps([part()] * 13),
    "an extra key": json.dumps([part(tool="send")]),
    "a missing key": json.dumps([{"butler": "finance", "segment": {"start": 0, "end": 3}, "confidence": 1}]),
    "an extra key in the span": json.dumps([part(segment={"start": 0, "end": 39, "text": "pay"})]),
    "a key twice": json.dumps([part()]).replace('"butler"', '"butler": "health", "butler"'),
    "an unknown butler": json.dumps([part("root")]),
    "a door": json.dumps([part("messenger")]),
    "a butler that is no text": json.dumps([part(butler=["finance"])]),
    "overlap": json.dumps([part(span=(0, 31)), part("health", KNEE)]),
    "the same twice": json.dumps([part(), part()]),
    "a span outside": json.dumps([part(span=(0, 40))]),
    "a negative span": json.dumps([part(span=(-3, 16))]),
    "a span backwards": json.dumps([part(span=(16, 0))]),
    "an empty span": json.dumps([part(span=(16, 16))]),
    "a span of spaces": json.dumps([part(span=(16, 17))]),
    "a cut word": json.dumps([part(span=(0, 5))]),
    "a span of numbers with points": json.dumps([part(span=(0.0, 39.0))]),
    "a span of truth": json.dumps([part(span=(False, 39))]),
    "nan": json.dumps([part(confidence=float("nan"))]),
    "infinity": json.dumps([part(confidence=float("inf"))]),
    "a huge number": "[" + json.dumps(part()).replace("0.9", "1e999") + "]",
    "too sure": json.dumps([part(confidence=1.01)]),
    "less than unsure": json.dumps([part(confidence=-0.01)]),
    "true": json.dumps([part(confidence=True)]),
    "confidence in words": json.dumps([part(confidence="high")]),
    "a rationale that is no text": json.dumps([part(rationale={"say": "hi"})]),
    "nested for ever": "[" * 5_000,
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD.keys())
def test_anything_else_is_a_classification_error(answer: str) -> None:
    with pytest.raises(ClassificationError):
        read_segments(answer, TEXT, NAMES)


_SPANS = st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True).map(sorted)


@given(text=st.text(min_size=1, max_size=60).filter(str.strip), places=_SPANS, data=st.data())
def test_whatever_is_accepted_loses_no_word_and_repeats_none(text: str, places: list[int], data: st.DataObject) -> None:
    spans = [(start, end) for start, end in zip(places[::2], places[1::2], strict=False)]
    parts = [part(data.draw(st.sampled_from(sorted(NAMES))), span) for span in spans]
    try:
        segments = read_segments(json.dumps(parts), text, NAMES)
    except ClassificationError:
        return
    together = "".join(text[segment.start : segment.end] for segment in segments)
    assert "".join(together.split()) == "".join(text.split())
    assert len({segment.segment_id for segment in segments}) == len(segments)
    butlers = {segment.butler for segment in segments}
    assert butlers == {"general"} or "general" not in butlers
