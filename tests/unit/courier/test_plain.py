"""The quick checks of envelopes and frames take nothing that the models refuse, and the usual ones without them."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butlers.courier import envelope as envelopes
from butlers.courier import frames
from butlers.courier.envelope import Envelope, check_envelope, is_plain
from butlers.courier.errors import CourierError, InvalidEnvelope
from butlers.courier.frames import ClientFrame, read_frame

_TEXTS = st.sampled_from(["", "a", "e-1", "agents/jen/inbox", "é", "\x00", "x" * 256, "x" * 257])
_TIMES = st.sampled_from(
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.123+00:00",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00Z\n",
        "0001-01-01T00:00:00+05:00",
        "2026-01-01",
    ]
)
_NUMBERS = st.sampled_from([0, 1, -1, 1_000_000, 1_000_001, 2**70, True, 1.0, "1"])
_LISTS = st.lists(_TEXTS | _NUMBERS, max_size=3) | st.just(["a"] * 65) | st.just(["a"] * 1_001)
_MAPS = st.dictionaries(_TEXTS, _TEXTS | _NUMBERS | st.none(), max_size=3)
_ANYTHING = _TEXTS | _TIMES | _NUMBERS | _LISTS | _MAPS | st.none()
_ACKS = st.lists(
    _TEXTS | st.fixed_dictionaries({"id": _TEXTS}, optional={"lease": _ANYTHING, "more": _TEXTS}), max_size=3
)


def _documents(usual: dict[str, Any], *names: str) -> st.SearchStrategy[dict[str, Any]]:
    """The usual one with some fields replaced, added or left out."""
    changes = st.dictionaries(st.sampled_from([*usual, *names, "from_", "unknown"]), _ANYTHING, max_size=2)
    without = st.sets(st.sampled_from(sorted(usual)), max_size=1)
    return st.builds(lambda more, less: {k: v for k, v in (usual | more).items() if k not in less}, changes, without)


_USUAL = {
    "id": "e-91a",
    "ts": "2025-10-18T19:55:00Z",
    "from": "architect",
    "to": "agents/Jen/inbox",
    "type": "sprint.assign",
    "schema": "xeno/sprint-assign@v1",
    "version": 1,
    "corr": "c-42",
    "refs": ["T1102"],
    "tags": ["sprint"],
    "headers": {"priority": "normal"},
    "payload": {"wave": "B", "title": "Plan xenoctl CLI"},
}
_FRAMES: list[dict[str, Any]] = [
    {"credit": 10},
    {"ack": "e-1", "lease": "l-1", "stream": "agents/jen/inbox", "credit": 1},
    {"ack": ["e-1", {"id": "e-2", "lease": "l-2"}], "credit": 2},
    {"nack": "e-1", "as": "failed", "delayMs": 500, "reason": "busy", "lease": "l-1"},
    {"extend": "e-1", "extendMs": 60_000},
    {"enqueue": _USUAL, "ref": "r1"},
    {"enqueue": [_USUAL, _USUAL], "ref": "r1"},
]


@given(_documents(_USUAL, "partitionKey"))
@settings(max_examples=500, deadline=None)
def test_a_plain_envelope_is_one_that_the_model_takes(document: dict[str, Any]):
    if is_plain(document):
        Envelope.model_validate(document)


@given(st.one_of([_documents(frame, "ack", "credit", "enqueue", "as_", "delay_ms") for frame in _FRAMES]), _ACKS)
@settings(max_examples=500, deadline=None)
def test_a_plain_frame_is_one_that_the_model_takes(document: dict[str, Any], acks: list[Any]):
    for one in (document, document | {"ack": acks}):
        if frames._is_plain(one):
            ClientFrame.model_validate(one)


def test_the_usual_ones_need_no_model(monkeypatch: pytest.MonkeyPatch):
    def refuse(_document: Any) -> Any:
        raise AssertionError("the model was asked")

    monkeypatch.setattr(Envelope, "model_validate", refuse)
    monkeypatch.setattr(ClientFrame, "model_validate", refuse)
    assert check_envelope(_USUAL) == _USUAL
    for frame in _FRAMES:
        assert read_frame(json.dumps(frame)) == frame


def test_names_of_python_are_read_as_those_of_the_wire():
    assert read_frame('{"nack": "e-1", "delay_ms": 5, "as_": "release"}') == {
        "nack": "e-1",
        "delayMs": 5,
        "as": "release",
    }


@pytest.mark.parametrize("text", ["nul \x00", "\\u0000"])
def test_a_nul_is_refused_and_what_looks_like_one_is_not(text: str):
    document = _USUAL | {"payload": [{"deep": text}]}
    if "\x00" not in text:
        assert check_envelope(document) == document
        return
    with pytest.raises(InvalidEnvelope):
        check_envelope(document)


@given(_documents(_USUAL, "partitionKey"))
@settings(max_examples=300, deadline=None)
def test_an_envelope_is_refused_as_the_model_refuses_it(document: dict[str, Any]):
    try:
        Envelope.model_validate(document)
    except pydantic.ValidationError:
        with pytest.raises(CourierError):
            check_envelope(document)
    else:
        envelopes._check_by_model(document)
