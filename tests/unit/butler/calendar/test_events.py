"""Events as Google writes them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.butler.calendar.events import busy_of, event_id_of, slot_between, takes_time
from butlers.butler.calendar.google import Credentials, described
from butlers.errors import ErrorClass

VIENNA = ZoneInfo("Europe/Vienna")
HOUR = {"start": {"dateTime": "2026-03-02T10:00:00+01:00"}, "end": {"dateTime": "2026-03-02T11:00:00+01:00"}}


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_id_is_what_google_takes_and_one_per_key(one: str, other: str) -> None:
    ids = {event_id_of(one), event_id_of(other)}
    assert all(5 <= len(found) <= 1024 and set(found) <= set("abcdefghijklmnopqrstuv0123456789") for found in ids)
    assert len(ids) == len({one, other})


def test_a_day_is_as_long_as_it_is_where_the_calendar_is() -> None:
    spring = slot_between(date(2026, 3, 29), date(2026, 3, 30), VIENNA)
    assert spring.start == datetime(2026, 3, 28, 23, tzinfo=UTC)
    assert spring.length == timedelta(hours=23)


@pytest.mark.parametrize(
    ("more", "takes"),
    [
        ({}, True),
        ({"transparency": "transparent"}, False),
        ({"status": "cancelled"}, False),
        ({"attendees": [{"self": True, "responseStatus": "declined"}]}, False),
        ({"attendees": [{"responseStatus": "declined"}, {"self": True, "responseStatus": "accepted"}]}, True),
    ],
)
def test_what_is_free_cancelled_or_declined_takes_no_time(more: dict[str, Any], takes: bool) -> None:
    assert takes_time({"id": "a", **HOUR, **more}) is takes


def test_an_event_is_not_in_its_own_way() -> None:
    assert [busy.event_id for busy in busy_of([{"id": "a", **HOUR}, {"id": "b", **HOUR}], VIENNA, without="a")] == ["b"]


def test_credentials_do_not_show_themselves() -> None:
    assert repr(Credentials(client_id="c-1", client_secret="s-1", refresh_token="r-1")) == "Credentials()"


def google_error(status: int, reason: str = "x", **headers: str) -> httpx2.Response:
    error = {"code": status, "message": "words", "errors": [{"reason": reason}]}
    return httpx2.Response(status, json={"error": error}, headers=headers)


@pytest.mark.parametrize(
    ("response", "error_class", "retryable", "retry_after"),
    [
        (google_error(400), ErrorClass.VALIDATION_ERROR, False, None),
        (google_error(401), ErrorClass.TARGET_UNAVAILABLE, False, None),
        (google_error(403, "forbidden"), ErrorClass.TARGET_UNAVAILABLE, False, None),
        (google_error(403, "userRateLimitExceeded"), ErrorClass.TARGET_UNAVAILABLE, True, None),
        (google_error(403, "dailyLimitExceeded"), ErrorClass.TARGET_UNAVAILABLE, True, 3600.0),
        (google_error(404), ErrorClass.VALIDATION_ERROR, False, None),
        (google_error(410), ErrorClass.VALIDATION_ERROR, False, None),
        (google_error(412), ErrorClass.VALIDATION_ERROR, False, None),
        (google_error(429, **{"Retry-After": "7"}), ErrorClass.TARGET_UNAVAILABLE, True, 7.0),
        (google_error(429, **{"Retry-After": "soon"}), ErrorClass.TARGET_UNAVAILABLE, True, None),
        (google_error(503), ErrorClass.TARGET_UNAVAILABLE, True, None),
        (httpx2.Response(502, text="<html>"), ErrorClass.TARGET_UNAVAILABLE, True, None),
        (httpx2.Response(403, json={"error": "text"}), ErrorClass.TARGET_UNAVAILABLE, False, None),
        (httpx2.Response(200, json=[]), ErrorClass.TARGET_UNAVAILABLE, True, None),
    ],
)
def test_refusals_have_their_class(
    response: httpx2.Response, error_class: ErrorClass, retryable: bool, retry_after: float | None
) -> None:
    error = described(response)
    assert (error.error_class, error.retryable, error.retry_after) == (error_class, retryable, retry_after)
