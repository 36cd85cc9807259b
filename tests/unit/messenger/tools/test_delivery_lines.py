"""Answers as a person reads them, where something is out of the ordinary."""

from __future__ import annotations

from typing import Any

from butlers.operations import delivery_lines

WHEN = "2026-03-01T12:00:30.123456Z"
CLOSED: dict[str, Any] = {
    "state": "closed",
    "consecutive_failures": 1,
    "trip_reason": None,
    "tripped_at": None,
    "retry_after_s": None,
}


def test_an_open_circuit_says_why_and_until_when() -> None:
    tripped = {"state": "open", "trip_reason": "Bad Gateway", "tripped_at": WHEN, "retry_after_s": 40.5}
    lines = list(delivery_lines.circuits({"channels": {"telegram.bot": CLOSED | tripped, "email.bot": CLOSED}}))
    assert lines[0].endswith("open since 2026-03-01 12:00:30 UTC: Bad Gateway; next probe in 40 s")
    assert lines[1].endswith("closed, 1 failure in a row")


def test_limits_name_what_is_tight_and_who_is_held_back() -> None:
    whole = {"consumed": 0.0, "remaining": 60.0, "total": 60.0, "resets_at": None, "throttled_until": None}
    tight = whole | {"remaining": 5.0, "total": 15.0, "resets_at": WHEN, "throttled_until": WHEN}
    crowded = {"channel": "telegram.bot", "target": "7", "remaining": 0.2, "resets_at": WHEN}
    window = {"channel": "telegram.bot", "target": "8", "throttled_until": WHEN}
    document: dict[str, Any] = {
        "global": whole,
        "in_flight": {"consumed": 3, "total": None},
        "channels": {"telegram.bot": tight | {"stance": "tight", "configured": 30.0}},
        "recipients": {"total": 10.0, "at_limit": 1, "worst": [crowded], "throttles": [window]},
    }
    text = "\n".join(delivery_lines.limits(document))
    assert "60 of 60 left this minute\n" in text
    assert "3 of unknown" in text
    assert "5 of 15 left this minute, full again 2026-03-01 12:00:30 UTC, tight (configured 30), told to wait" in text
    assert "1 recipient at the limit" in text
    assert "telegram.bot 7: 0.2 left" in text
    assert "telegram.bot 8: told to wait until 2026-03-01 12:00:30 UTC" in text


def test_an_attempt_without_an_outcome_is_told_as_such() -> None:
    row = {"attempt_number": 2, "started_at": WHEN, "latency_ms": None, "outcome": None, "error_class": None}
    assert delivery_lines.attempt(row) == "attempt 2  2026-03-01 12:00:30 UTC  no outcome yet"


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    counts = dict.fromkeys(("delivered", "failed", "dead_lettered", "uncertain", "expired", "open"), 0)
    rates = dict.fromkeys(("success_rate", "retry_rate", "p50_ms", "p95_ms"))
    document: dict[str, Any] = {
        "window": {"since": WHEN, "until": WHEN},
        "total": 0,
        **counts,
        **rates,
        "requests": None,
        "groups": [],
    }
    [_, line] = delivery_lines.stats(document)
    assert "0 in all; success unknown, retried unknown, p50 unknown, p95 unknown" in line


def test_the_outcome_of_a_deed_is_found_whether_nested_or_not() -> None:
    flat: dict[str, Any] = {"delivery_id": "D", "status": "pending"}
    for document in (flat, {"delivery": flat}):
        assert next(iter(delivery_lines.result(document))) == "delivery D: pending"
        assert delivery_lines.status_of(document) == "pending"


def test_what_waits_for_a_person_is_counted_apart() -> None:
    document: dict[str, Any] = {
        "total": 0,
        "by_phase": {"admitted": 0, "in_provider_call": 0},
        "by_channel": {},
        "parked": {"pending_approval": 0, "uncertain": 2},
        "oldest_age_s": None,
    }
    assert list(delivery_lines.queue(document)) == [
        "in flight: 0; 0 admitted, 0 in_provider_call; oldest: none",
        "waiting for a person: 2 uncertain",
    ]
