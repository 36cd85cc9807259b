"""The client and the stand-in of Google Calendar, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from butlers.butler.calendar import GoogleCalendar
from butlers.butler.calendar.events import Slot
from butlers.clock import ManualClock, SystemClock
from butlers.errors import ClassifiedError, ConfigurationError
from butlers.simulators.calendar import serve_calendar
from tests.integration.calendar.stand_in import GOOD, QUICK, StandIn, stand_in

DAY = datetime(2026, 3, 2, tzinfo=UTC)
WEEK = Slot(DAY, DAY + timedelta(days=7))


@pytest_asyncio.fixture
async def standing() -> AsyncIterator[StandIn]:
    async with stand_in() as found:
        yield found


def hour(start: int, summary: str = "Dentist", **more: Any) -> dict[str, Any]:
    times = [(DAY + timedelta(hours=at)).isoformat() for at in (start, start + 1)]
    return {"summary": summary, "start": {"dateTime": times[0]}, "end": {"dateTime": times[1]}, **more}


async def failure(awaitable: Any) -> ClassifiedError:
    with pytest.raises(ClassifiedError) as caught:
        await awaitable
    return caught.value


def told(error: ClassifiedError) -> tuple[str, bool, float | None]:
    return error.error_class.value, error.retryable, error.retry_after


# --- the usual -------------------------------------------------------------------------------------------------------


async def test_an_event_is_made_read_changed_and_deleted(standing: StandIn) -> None:
    calendar = standing.calendar
    made, new = await calendar.insert("abcde1", hour(9))
    assert (new, made["summary"], made["start"]["dateTime"]) == (True, "Dentist", "2026-03-02T10:00:00+01:00")
    changed = await calendar.patch("abcde1", {"summary": "Doctor"}, etag=made["etag"])
    assert changed["etag"] != made["etag"]
    assert (await calendar.get("abcde1"))["summary"] == "Doctor"
    await calendar.delete("abcde1")
    assert (await calendar.get("abcde1"))["status"] == "cancelled"
    assert (await calendar.list_events(WEEK)).events == []
    await calendar.delete("abcde1")  # again: 410, and no mistake
    assert await standing.statuses("events.delete") == [204, 410]
    assert (await calendar.time_zone()).key == "Europe/Vienna"
    assert await standing.statuses("token") == [200]  # one for all


async def test_pages_hold_every_event_once_and_in_order(standing: StandIn) -> None:
    for start in (20, 3, 11, 7, 15):
        await standing.control("POST", "/events", hour(start, f"at {start}"))
    seen: list[str] = []
    token = None
    while True:
        page = await standing.calendar.list_events(WEEK, limit=2, page_token=token)
        seen += [event["summary"] for event in page.events]
        if (token := page.next_page_token) is None:
            break
    assert seen == ["at 3", "at 7", "at 11", "at 15", "at 20"]
    assert len(await standing.statuses("events.list")) == 3
    assert [event["summary"] for event in (await standing.calendar.list_events(WEEK, query="AT 1")).events] == [
        "at 11",
        "at 15",
    ]


async def test_a_window_takes_what_reaches_into_it(standing: StandIn) -> None:
    await standing.control("POST", "/events", hour(9))
    edges = {(8, 9): 0, (8, 10): 1, (9, 10): 1, (10, 11): 0}
    for (start, end), count in edges.items():
        window = Slot(DAY + timedelta(hours=start), DAY + timedelta(hours=end))
        assert len(await standing.calendar.all_events(window)) == count, (start, end)


async def test_busy_times_are_joined_and_leave_out_what_is_free_or_deleted(standing: StandIn) -> None:
    for event in (hour(9), hour(10), hour(15), hour(20, transparency="transparent")):
        await standing.control("POST", "/events", event)
    await standing.calendar.insert("abcde1", hour(12))
    await standing.calendar.delete("abcde1")
    assert await standing.calendar.free_busy(WEEK) == [
        Slot(DAY + timedelta(hours=9), DAY + timedelta(hours=11)),
        Slot(DAY + timedelta(hours=15), DAY + timedelta(hours=16)),
    ]


async def test_a_timed_event_becomes_one_of_whole_days(standing: StandIn) -> None:
    made, _ = await standing.calendar.insert("abcde1", hour(9))
    days = {
        "start": {"date": "2026-03-02", "dateTime": None, "timeZone": None},
        "end": {"date": "2026-03-04", "dateTime": None, "timeZone": None},
    }
    changed = await standing.calendar.patch("abcde1", days, etag=made["etag"])
    assert (changed["start"], changed["end"]) == ({"date": "2026-03-02"}, {"date": "2026-03-04"})
    (busy,) = await standing.calendar.free_busy(WEEK)
    assert busy.end == datetime(2026, 3, 3, 23, tzinfo=UTC)  # midnight in Vienna


async def test_no_write_tells_anybody(standing: StandIn) -> None:
    made, _ = await standing.calendar.insert("abcde1", hour(9))
    await standing.calendar.patch("abcde1", {"summary": "x"}, etag=made["etag"])
    await standing.calendar.delete("abcde1")
    for method in ("insert", "patch", "delete"):
        (record,) = (await standing.control("GET", f"/requests?method=events.{method}"))["requests"]
        assert record["query"] == {"sendUpdates": "none"}


# --- doing it twice --------------------------------------------------------------------------------------------------


async def test_the_same_id_is_the_same_event(standing: StandIn) -> None:
    first, new = await standing.calendar.insert("abcde1", hour(9))
    again, renewed = await standing.calendar.insert("abcde1", hour(9))
    assert (new, renewed, again["etag"]) == (True, False, first["etag"])
    assert await standing.statuses("events.insert") == [200, 409]
    error = await failure(standing.calendar.insert("abcde1", hour(10)))
    assert told(error) == ("validation_error", False, None)
    assert "another event" in error.message
    await standing.calendar.delete("abcde1")
    assert "deleted since" in (await failure(standing.calendar.insert("abcde1", hour(9)))).message


@pytest.mark.parametrize("kind", ["drop_after", "drop_before"])
async def test_an_unanswered_insert_makes_one_event(standing: StandIn, kind: str) -> None:
    await standing.fault("events.insert", kind)
    made, _ = await standing.calendar.insert("abcde1", hour(9))
    assert [event["id"] for event in await standing.events()] == [made["id"]] == ["abcde1"]
    assert await standing.statuses("events.insert") == [None, 409 if kind == "drop_after" else 200]


@pytest.mark.parametrize("kind", ["drop_after", "drop_before"])
async def test_an_unanswered_change_is_made_once(standing: StandIn, kind: str) -> None:
    made, _ = await standing.calendar.insert("abcde1", hour(9))
    await standing.fault("events.patch", kind)
    changed = await standing.calendar.patch("abcde1", {"summary": "Doctor"}, etag=made["etag"])
    assert (changed["summary"], changed["etag"]) == ("Doctor", '"2"')
    assert await standing.statuses("events.patch") == [None, 412 if kind == "drop_after" else 200]


async def test_an_unanswered_deletion_is_a_deletion(standing: StandIn) -> None:
    made, _ = await standing.calendar.insert("abcde1", hour(9))
    await standing.fault("events.delete", "drop_after")
    await standing.calendar.delete("abcde1", etag=made["etag"])
    assert await standing.statuses("events.delete") == [None, 410]


@pytest.mark.parametrize("deed", ["patch", "delete"])
async def test_what_somebody_else_changed_is_not_overwritten(standing: StandIn, deed: str) -> None:
    made, _ = await standing.calendar.insert("abcde1", hour(9))
    await standing.fault(f"events.{deed}", "changed_meanwhile")
    if deed == "patch":
        error = await failure(standing.calendar.patch("abcde1", {"summary": "Doctor"}, etag=made["etag"]))
    else:
        error = await failure(standing.calendar.delete("abcde1", etag=made["etag"]))
    assert (told(error), await standing.statuses(f"events.{deed}")) == (("validation_error", False, None), [412])
    assert "changed meanwhile" in error.message
    (event,) = await standing.events()
    assert (event["summary"], event["status"]) == ("Dentist", "confirmed")


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_a_rejected_token_is_replaced_once(standing: StandIn) -> None:
    await standing.calendar.list_events(WEEK)
    await standing.fault("events.list", "expired_token")
    await standing.calendar.list_events(WEEK)
    assert await standing.statuses("events.list") == [200, 401, 200]
    assert await standing.statuses("token") == [200, 200]
    await standing.fault("events.list", "expired_token", times=None)
    assert told(await failure(standing.calendar.list_events(WEEK))) == ("target_unavailable", False, None)
    assert await standing.statuses("events.list") == [200, 401, 200, 401, 401]


async def test_a_token_is_renewed_before_it_expires() -> None:
    clock = ManualClock(DAY)
    async with stand_in(clock=clock) as standing:
        for seconds, tokens in ((0, 1), (3500, 1), (41, 2)):
            clock.advance(seconds)
            await standing.calendar.list_events(WEEK)
            assert len(await standing.statuses("token")) == tokens
        assert set(await standing.statuses("events.list")) == {200}


async def test_callers_at_the_same_time_share_one_token(standing: StandIn) -> None:
    await asyncio.gather(*(standing.calendar.list_events(WEEK) for _ in range(5)))
    assert await standing.statuses("token") == [200]


@pytest.mark.parametrize(
    ("field", "word"),
    [("client_id", "invalid_client"), ("client_secret", "invalid_client"), ("refresh_token", "invalid_grant")],
)
async def test_wrong_credentials_are_final_and_not_told(field: str, word: str) -> None:
    async with stand_in(credentials=replace(GOOD, **{field: "wrong-secret"})) as standing:
        error = await failure(standing.calendar.list_events(WEEK))
        assert told(error) == ("target_unavailable", False, None)
        assert word in error.message and "wrong-secret" not in error.message
        assert await standing.statuses("token") == [400]


async def test_a_token_endpoint_that_fails_is_asked_again(standing: StandIn) -> None:
    await standing.fault("token", "server_error", status=503)
    await standing.fault("token", "drop_before")
    assert (await standing.calendar.list_events(WEEK)).events == []
    assert await standing.statuses("token") == [503, None, 200]


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "more", "calls"),
    [
        ("server_error", {"status": 500}, [500, 200]),
        ("server_error", {"status": 503, "times": 2}, [503, 503, 200]),
        ("too_many_requests", {"retry_after": 0}, [429, 200]),
        ("rate_limited", {}, [403, 200]),
        ("drop_before", {}, [None, 200]),
        ("drop_after", {}, [None, 200]),
    ],
)
async def test_what_passes_is_tried_again(
    standing: StandIn, kind: str, more: dict[str, Any], calls: list[int | None]
) -> None:
    await standing.fault("events.list", kind, **more)
    await standing.calendar.list_events(WEEK)
    assert await standing.statuses("events.list") == calls


@pytest.mark.parametrize(
    ("kind", "more", "outcome", "calls"),
    [
        ("server_error", {"times": None}, ("target_unavailable", True, None), [500] * 3),
        ("too_many_requests", {"retry_after": 40}, ("target_unavailable", True, 40.0), [429]),
        ("rate_limited", {"times": None}, ("target_unavailable", True, None), [403] * 3),
        ("quota_exceeded", {}, ("target_unavailable", True, 3600.0), [403]),
        ("forbidden", {}, ("target_unavailable", False, None), [403]),
        ("drop_before", {"times": None}, ("target_unavailable", True, None), [None] * 3),
    ],
)
async def test_what_lasts_is_told_in_our_words(
    standing: StandIn, kind: str, more: dict[str, Any], outcome: tuple[str, bool, float | None], calls: list[int | None]
) -> None:
    await standing.fault("events.list", kind, **more)
    assert told(await failure(standing.calendar.list_events(WEEK))) == outcome
    assert await standing.statuses("events.list") == calls


async def test_retry_after_is_waited_for() -> None:
    clock = ManualClock(DAY)
    async with stand_in(clock=clock) as standing:
        await standing.fault("events.list", "too_many_requests", retry_after=4)
        asked = asyncio.create_task(standing.calendar.list_events(WEEK))
        while not clock._sleepers:
            await asyncio.sleep(0)
        clock.advance(3.9)
        assert await standing.statuses("events.list") == [429]
        clock.advance(0.2)
        await asked
        assert await standing.statuses("events.list") == [429, 200]


async def test_a_slow_calendar_is_a_timeout() -> None:
    async with stand_in(timeout_s=0.2) as standing:
        await standing.fault("events.list", "delay", seconds=60, times=None)
        assert told(await failure(standing.calendar.list_events(WEEK))) == ("timeout", True, None)


async def test_a_calendar_that_is_away_is_unavailable() -> None:
    async with stand_in() as gone:
        pass
    url = gone.simulator
    calendar = GoogleCalendar(
        credentials=GOOD, clock=SystemClock(), base_url=url.base_url, token_url=url.token_url, retry=QUICK
    )
    assert told(await failure(calendar.list_events(WEEK))) == ("target_unavailable", True, None)
    await calendar.close()


async def test_unknown_events_and_calendars_are_named(standing: StandIn) -> None:
    for deed in (standing.calendar.get("nosuch1"), standing.calendar.delete("nosuch1")):
        error = await failure(deed)
        assert (told(error), "no such event" in error.message) == (("validation_error", False, None), True)
    assert await standing.calendar.find("nosuch1") is None
    async with stand_in(calendar_id="other@example.org") as other:
        assert told(await failure(other.calendar.free_busy(WEEK))) == ("target_unavailable", False, None)
        for asked in (other.calendar.time_zone(), other.calendar.list_events(WEEK)):
            error = await failure(asked)
            assert (told(error), error.message) == (("target_unavailable", False, None), "there is no such calendar")


async def test_what_google_refuses_is_refused(standing: StandIn) -> None:
    empty = hour(9) | {"end": hour(9)["start"]}
    for event_id, body in (("BAD ID", hour(9)), ("abcde1", empty), ("abcde2", {"summary": "no times"})):
        assert told(await failure(standing.calendar.insert(event_id, body))) == ("validation_error", False, None)
    assert await standing.events() == []


# --- memory ----------------------------------------------------------------------------------------------------------


async def test_the_stand_in_remembers_across_a_restart(tmp_path: Path) -> None:
    journal = tmp_path / "calendar.jsonl"
    async with stand_in(journal=journal) as standing:
        made, _ = await standing.calendar.insert("abcde1", hour(9))
        await standing.fault("events.get", "server_error", times=2)
        with pytest.raises(ConfigurationError, match="another simulator"):
            async with serve_calendar(port=0, clock=ManualClock(), journal_path=journal):
                pass
        before = await standing.events()
    async with stand_in(journal=journal) as standing:
        assert await standing.events() == before
        assert (await standing.control("GET", "/faults"))["faults"][0]["times"] == 2
        changed = await standing.calendar.patch("abcde1", {"summary": "x"}, etag=made["etag"])
        assert changed["etag"] == '"2"'
        await standing.control("DELETE", "/faults")
        await standing.control("POST", "/reset")
        assert (await standing.events(), await standing.control("GET", "/faults")) == ([], {"faults": []})


async def test_the_control_api_names_what_is_wrong(standing: StandIn) -> None:
    wrong = (
        ("/faults", {"method": "events.mend", "kind": "delay"}, "method"),
        ("/faults", {"method": "*", "kind": "plague"}, "kind"),
        ("/events", {"summary": "x", "start": {}, "end": {}}, "start"),
        ("/events", hour(9) | {"end": hour(8)["start"]}, "end"),
    )
    for path, body, field in wrong:
        response = await standing.http.post(f"{standing.simulator.control_url}{path}", json=body)
        assert (response.status_code, response.json()["error"]["fields"][0]["field"]) == (422, field)
