"""Whatever an adapter hands back can be written down."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Sent, Throttle
from butlers.errors import TargetUnavailable, ValidationError
from butlers.messenger.attempt import LONGEST_NAME, LONGEST_TEXT, storable, text

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats()
    | st.text()
    | st.binary()
    | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
surrogates = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\0\ud83d\udfff"))


def not_sent(**fields: Any) -> NotSent:
    kept = storable(NotSent(**({"error": TargetUnavailable("no")} | fields)))
    assert isinstance(kept, NotSent)
    return kept


def sent(**fields: Any) -> Sent:
    kept = storable(Sent(**({"provider_delivery_id": "7"} | fields)))
    assert isinstance(kept, Sent)
    return kept


@pytest.mark.parametrize(
    "result",
    [
        Sent(provider_delivery_id="7", part=2, response={"a": [1, {"b": None}], "c": 0.5}, moved_to="-100"),
        NotSent(
            error=ValidationError("no"),
            certainty=Certainty.UNCERTAIN,
            answered=True,
            response={"status": 400},
            throttle=Throttle(scope="channel", seconds=3.0),
            recipient_gone=True,
            asked=False,
        ),
    ],
)
def test_what_can_be_kept_stays_as_it_is(result: AttemptResult) -> None:
    assert storable(result) == result


@given(surrogates)
def test_text_is_valid_and_without_nul(words: str) -> None:
    kept = text(words)
    assert "\0" not in kept
    kept.encode()
    assert text(kept) == kept


@given(st.dictionaries(surrogates, anything | surrogates, max_size=4))
def test_evidence_survives_the_way_into_the_table(response: dict[str, Any]) -> None:
    for kept in (sent(response=response).response, not_sent(response=response).response):
        written = to_json(kept)
        assert b"\\u0000" not in written.replace(b"\\\\", b"")  # the character; a backslash and a word are harmless
        assert from_json(written, allow_inf_nan=False) == kept


def test_evidence_that_is_endless_comes_to_an_end() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert len(to_json(sent(response=endless).response)) < 10_000


def test_an_error_keeps_its_place_in_the_taxonomy() -> None:
    error = TargetUnavailable("not \0 now", retryable=False, retry_after=4.0)
    kept = not_sent(error=error).error
    assert (kept.message, kept.error_class, kept.retryable, kept.retry_after) == (
        "not  now",
        error.error_class,
        False,
        4.0,
    )
    assert len(not_sent(error=TargetUnavailable("x" * 9_999)).error.message) == LONGEST_TEXT


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_a_time_that_is_none_counts_as_not_said(seconds: float) -> None:
    error = TargetUnavailable("wait", retry_after=seconds)
    kept = not_sent(error=error, throttle=Throttle(scope="target", seconds=seconds))
    assert (kept.throttle, kept.error.retry_after) == (None, None)


def test_names_fit_their_index_and_a_mended_address_is_nobodys() -> None:
    assert sent(provider_delivery_id="m\0" + "x" * 9_999).provider_delivery_id == "m" + "x" * (LONGEST_NAME - 1)
    for moved_to in ("a\0b", "\ud83d", "", "x" * 9_999):
        assert sent(moved_to=moved_to).moved_to is None
    assert not_sent(moved_to="-1001").moved_to == "-1001"
