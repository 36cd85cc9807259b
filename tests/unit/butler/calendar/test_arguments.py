"""What the calendar's tools take and refuse."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import to_json

from butlers.butler.calendar.arguments import CreateArguments, DeleteArguments, ListArguments, UpdateArguments
from butlers.contracts.envelope import Value

TIMES = {"start": "2026-03-02T10:00:00+01:00", "end": "2026-03-02T11:00:00+01:00"}


def parsed(model: type[Value], **given: Any) -> Any:
    return model.model_validate_json(to_json(given))


def refusal(model: type[Value], **given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        parsed(model, **given)
    (problem,) = caught.value.errors()
    return ".".join(map(str, problem["loc"])) + ": " + problem["msg"].removeprefix("Value error, ")


def test_timed_events_take_time_and_days_do_not_unless_said() -> None:
    assert parsed(CreateArguments, summary="x", **TIMES).takes_time
    days = {"summary": "x", "start": "2026-03-02", "end": "2026-03-04"}
    whole = parsed(CreateArguments, **days)
    assert (whole.start, whole.end, whole.takes_time) == (date(2026, 3, 2), date(2026, 3, 4), False)
    assert parsed(CreateArguments, **days, busy=True).takes_time


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"start": "2026-03-02T10:00:00"}, "start: must be an RFC 3339 timestamp with an offset"),
        ({"start": "tomorrow"}, "start: must be an RFC 3339 timestamp with an offset"),
        ({"start": 5}, "start: must be an RFC 3339 timestamp with an offset"),
        ({"start": "0001-01-01T00:00:00Z"}, "start: must lie between 1970 and 2199"),
        ({"start": "9999-12-31"}, "start: must lie between 1970 and 2199"),
        ({"end": "2026-03-02T10:00:00+01:00"}, ": end must lie after start"),
        ({"end": "2026-03-03"}, ": start and end must both be timestamps or both be dates"),
        ({"time_zone": "Mars/Olympus"}, "time_zone: must be an IANA time zone, such as Europe/Vienna"),
    ],
)
def test_wrong_times_are_refused_with_the_field(changed: dict[str, Any], problem: str) -> None:
    assert refusal(CreateArguments, summary="x", **TIMES | changed) == problem


def test_impossible_dates_are_refused() -> None:
    for text in ("2026-02-30", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00+25:00"):
        assert refusal(CreateArguments, summary="x", **TIMES | {"start": text}).startswith("start: ")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, ": says no change"),
        ({"start": TIMES["start"]}, ": start and end are changed together"),
        ({"summary": "x", "time_zone": "UTC"}, ": time_zone is changed together with start and end"),
    ],
)
def test_a_change_must_say_a_whole_change(given: dict[str, Any], problem: str) -> None:
    assert refusal(UpdateArguments, event_id="abcde", **given) == problem


def test_a_window_has_an_order_and_a_limit() -> None:
    wrong = ": time_max must lie after time_min, by 60 days at most"
    for last in ("2026-01-01T00:00:00Z", "2026-03-03T00:00:00Z"):
        assert refusal(ListArguments, time_min="2026-01-01T00:00:00Z", time_max=last) == wrong


def test_ids_and_etags_cannot_leave_their_place_in_a_request() -> None:
    for bad in ("a/b", "../x", "a b", "", "a\n"):
        assert refusal(DeleteArguments, event_id=bad).startswith("event_id: ")
    for bad in ('"x\r\ny"', "x", '"a" "b"'):
        assert refusal(DeleteArguments, event_id="abcde", etag=bad).startswith("etag: ")
