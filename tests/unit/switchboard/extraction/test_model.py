"""What a model may take out of a text, in the exact form of each kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from butlers.errors import ClassificationError
from butlers.switchboard.extraction.signals import read_extractions

DATA: dict[str, dict[str, Any]] = {
    "contact": {"name": "Carla", "details": "the new designer"},
    "interaction": {"type": "meal", "summary": "lunch", "occurred_at": "2026-07-19"},
    "life_event": {"event": "wedding", "description": "married"},
    "date": {"label": "birthday", "month": 5, "day": 12, "year": None},
    "fact": {"key": "likes", "value": "tulips"},
    "sentiment": {"emotion": "proud", "context": "of her"},
    "gift": {"description": "a scarf", "occasion": None},
    "loan": {"amount": "50 €", "direction": "lent", "description": "for lunch"},
}


def one(kind: str = "date", **more: Any) -> dict[str, Any]:
    return {"signal_type": kind, "confidence": 0.9, "contact_hint": "Anna", "data": DATA.get(kind, {})} | more


def read(*found: Any) -> Any:
    return read_extractions(json.dumps({"extractions": list(found)}))


@pytest.mark.parametrize("kind", DATA)
def test_every_kind_has_its_form(kind: str) -> None:
    [found] = read(one(kind))
    assert (found.signal_type.value, found.contact_hint, found.data, found.is_high) == (kind, "Anna", DATA[kind], True)


def test_nothing_found_is_a_good_answer() -> None:
    assert read() == ()


@pytest.mark.parametrize(
    "bad",
    [
        one(confidence=2),
        one(confidence="high"),
        one("astrology"),
        one(extra=1),
        one(data=[]),
        one(data=DATA["fact"]),
        one(data=DATA["date"] | {"month": 13}),
        one(data=DATA["date"] | {"month": 2, "day": 30}),
        one("loan", data=DATA["loan"] | {"direction": "given"}),
        one(contact_hint=7),
        "date",
    ],
)
def test_anything_else_is_refused_whole(bad: Any) -> None:
    with pytest.raises(ClassificationError):
        read(one(), bad)


@pytest.mark.parametrize("answer", ["", "[]", '{"extractions": {}}', '{"extractions": [], "send": 1}', "NaN"])
def test_another_shape_is_refused(answer: str) -> None:
    with pytest.raises(ClassificationError):
        read_extractions(answer)
