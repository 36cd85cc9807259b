"""Signatures: what is signed convinces, and nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.webhook.simulator import signature_of
from butlers.messenger.receipts import SIGNATURE, TIMESTAMP, problem_with, signed_headers

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.text(min_size=1, max_size=20), st.binary(max_size=50))
def test_what_is_signed_convinces(key: str, body: bytes) -> None:
    assert problem_with(signed_headers(key, body, now=NOW), body, key, now=NOW) is None


def test_it_is_the_signature_that_the_page_describes() -> None:
    """Computed a second time by the gateway's own code."""
    headers = signed_headers("key", b"body", now=NOW)
    assert headers == {TIMESTAMP: "1767225600", SIGNATURE: signature_of("key", "1767225600", b"body")}


def test_another_body_key_or_time_does_not() -> None:
    headers = signed_headers("key", b"body", now=NOW)
    assert problem_with(headers, b"other", "key", now=NOW)
    assert problem_with(headers, b"body", "other", now=NOW)
    assert problem_with(headers | {TIMESTAMP: "1767225601"}, b"body", "key", now=NOW)


@pytest.mark.parametrize("seconds", [-301, 301, 86_400])
def test_an_old_or_early_signature_does_not(seconds: int) -> None:
    headers = signed_headers("key", b"body", now=NOW)
    assert "away from now" in (problem_with(headers, b"body", "key", now=NOW + timedelta(seconds=seconds)) or "")


@pytest.mark.parametrize("seconds", [-300, 0, 300])
def test_clocks_may_differ_a_little(seconds: int) -> None:
    headers = signed_headers("key", b"body", now=NOW)
    assert problem_with(headers, b"body", "key", now=NOW + timedelta(seconds=seconds)) is None


@pytest.mark.parametrize("stamp", ["", "now", "-1", "1.5", "²", "9" * 13, " 1767225600"])
def test_a_time_that_is_none_does_not(stamp: str) -> None:
    headers = signed_headers("key", b"body", now=NOW) | {TIMESTAMP: stamp}
    assert problem_with(headers, b"body", "key", now=NOW)


@given(st.text(max_size=80))
def test_no_made_up_signature_convinces_or_breaks_the_check(signature: str) -> None:
    assert problem_with({TIMESTAMP: "1767225600", SIGNATURE: signature}, b"body", "key", now=NOW)


def test_without_headers_nothing_convinces() -> None:
    assert problem_with({}, b"body", "key", now=NOW)
