"""The calendar's tools against the stand-in: what a butler's session sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any

import pytest
import pytest_asyncio

from butlers.butler.calendar.tools import CalendarPolicy, CalendarTools
from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.clock import ManualClock
from butlers.errors import ClassifiedError
from butlers.ids import Uuid7Factory
from butlers.operations.operation import Role
from tests.integration.calendar.stand_in import StandIn, stand_in

NOW = datetime(2026, 3, 2, 6, tzinfo=UTC)  # a Monday, 07:00 in Vienna
SUGGEST = CalendarPolicy()
OPERATOR = Caller(name="operator", role=Role.OPERATOR)
DENTIST = {"summary": "Dentist", "start": "2026-03-02T10:00:00+01:00", "end": "2026-03-02T11:00:00+01:00"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    standing: StandIn
    clock: ManualClock
    policy: CalendarPolicy = SUGGEST

    async def call(self, name: str, caller: Any = OPERATOR, **arguments: Any) -> dict[str, Any]:
        tools = CalendarTools(
            butler="messenger",
            calendar=self.standing.calendar,
            policy=self.policy,
            clock=self.clock,
            new_id=Uuid7Factory(self.clock),
        )
        return await ToolBox(tools.tools()).call(f"calendar_{name}", caller, arguments)

    async def refusal(self, name: str, **arguments: Any) -> dict[str, Any]:
        with pytest.raises(ClassifiedError) as caught:
            await self.call(name, **arguments)
        return caught.value.describe()

    async def kept(self) -> list[str]:
        return [event["summary"] for event in await self.standing.events() if event["status"] != "cancelled"]


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock(NOW)
    async with stand_in(clock=clock) as standing:
        yield Desk(standing=standing, clock=clock)


async def test_an_event_is_made_found_changed_and_deleted(desk: Desk) -> None:
    made = await desk.call("create_event", **DENTIST, location="Main Street", time_zone="Europe/London")
    event = made["event"]
    assert (made["status"], event["start"], event["all_day"], event["busy"], event["time_zone"]) == (
        "created",
        "2026-03-02T10:00:00+01:00",
        False,
        True,
        "Europe/London",
    )
    day = {"time_min": "2026-03-02T00:00:00Z", "time_max": "2026-03-03T00:00:00Z"}
    assert await desk.call("list_events", **day) == {"events": [event], "next_page_token": None}
    changed = await desk.call("update_event", event_id=event["event_id"], summary="Doctor")
    assert (changed["status"], changed["event"]["summary"], changed["event"]["location"]) == (
        "updated",
        "Doctor",
        "Main Street",
    )
    assert (await desk.call("get_event", event_id=event["event_id"]))["event"] == changed["event"]
    assert (await desk.call("delete_event", event_id=event["event_id"]))["status"] == "deleted"
    assert (await desk.call("list_events", **day))["events"] == []
    gone = await desk.refusal("update_event", event_id=event["event_id"], summary="x")
    assert (gone["class"], gone["message"]) == ("validation_error", "event_id: the event has been deleted")


async def test_pages_are_walked_by_token(desk: Desk) -> None:
    for start in range(8, 13):
        times = {"start": f"2026-03-02T{start:02}:00:00Z", "end": f"2026-03-02T{start:02}:30:00Z"}
        await desk.call("create_event", summary=f"at {start}", **times)
    window = {"time_min": "2026-03-02T00:00:00Z", "time_max": "2026-03-03T00:00:00Z", "limit": 3}
    first = await desk.call("list_events", **window)
    second = await desk.call("list_events", **window, page_token=first["next_page_token"])
    assert [event["summary"] for page in (first, second) for event in page["events"]] == [
        f"at {start}" for start in range(8, 13)
    ]
    assert second["next_page_token"] is None
    assert (await desk.refusal("list_events", **window, page_token="nonsense"))["class"] == "validation_error"


async def test_a_taken_time_is_answered_with_suggestions_and_nothing_is_made(desk: Desk) -> None:
    await desk.call("create_event", **DENTIST)
    wanted = {"summary": "Lunch", "start": "2026-03-02T09:30:00Z", "end": "2026-03-02T10:30:00Z"}
    answer = await desk.call("create_event", **wanted)
    assert answer["status"] == "conflict"
    (conflict,) = answer["conflicts"]
    assert (conflict["summary"], conflict["start"], conflict["end"]) == (
        "Dentist",
        DENTIST["start"],
        DENTIST["end"],
    )
    assert [one["start"] for one in answer["suggestions"]] == [
        "2026-03-02T11:00:00+01:00",
        "2026-03-02T09:00:00+01:00",
        "2026-03-02T12:00:00+01:00",
    ]
    assert await desk.kept() == ["Dentist"]
    taken = await desk.call("create_event", summary="Lunch", **answer["suggestions"][0])
    assert taken["status"] == "created"
    assert (await desk.call("create_event", **wanted, allow_conflict=True))["status"] == "created"


@pytest.mark.parametrize(("conflicts", "status"), [("reject", "conflict"), ("allow", "created")])
async def test_other_policies(desk: Desk, conflicts: Any, status: str) -> None:
    await desk.call("create_event", **DENTIST)
    other = Desk(standing=desk.standing, clock=desk.clock, policy=CalendarPolicy(conflicts=conflicts))
    answer = await other.call("create_event", **DENTIST | {"summary": "Lunch"})
    assert (answer["status"], answer.get("suggestions", [])) == (status, [])


async def test_an_event_that_is_moved_to_a_taken_time_stays(desk: Desk) -> None:
    await desk.call("create_event", **DENTIST)
    other = await desk.call(
        "create_event", summary="Lunch", start="2026-03-02T12:00:00+01:00", end="2026-03-02T13:00:00+01:00"
    )
    moved = {"start": "2026-03-02T10:30:00+01:00", "end": "2026-03-02T11:30:00+01:00"}
    event_id = other["event"]["event_id"]
    assert (await desk.call("update_event", event_id=event_id, **moved))["status"] == "conflict"
    assert (await desk.call("get_event", event_id=event_id))["event"] == other["event"]
    # Its own old time is not in its way.
    later = {"start": "2026-03-02T12:30:00+01:00", "end": "2026-03-02T13:30:00+01:00"}
    assert (await desk.call("update_event", event_id=event_id, **later))["event"]["start"] == later["start"]
    free = await desk.call("update_event", event_id=event_id, **moved, busy=False)
    assert (free["status"], free["event"]["busy"]) == ("updated", False)
    assert (await desk.call("update_event", event_id=event_id, busy=True))["status"] == "conflict"
    assert (await desk.call("update_event", event_id=event_id, busy=True, allow_conflict=True))["status"] == "updated"


async def test_whole_days_take_no_time_unless_said(desk: Desk) -> None:
    holiday = {"summary": "Holiday", "start": "2026-03-02", "end": "2026-03-04"}
    made = await desk.call("create_event", **holiday)
    assert (made["event"]["all_day"], made["event"]["busy"], made["event"]["end"]) == (True, False, "2026-03-04")
    assert (await desk.call("create_event", **DENTIST))["status"] == "created"
    busy = await desk.call("create_event", **holiday, busy=True)
    assert (busy["status"], [one["summary"] for one in busy["conflicts"]]) == ("conflict", ["Dentist"])
    timed = await desk.call(
        "update_event",
        event_id=made["event"]["event_id"],
        start="2026-03-05T10:00:00Z",
        end="2026-03-05T11:00:00Z",
    )
    assert (timed["event"]["all_day"], timed["event"]["start"]) == (False, "2026-03-05T11:00:00+01:00")


async def test_a_key_makes_one_event(desk: Desk) -> None:
    first = await desk.call("create_event", **DENTIST, idempotency_key="request-1")
    again = await desk.call("create_event", **DENTIST, idempotency_key="request-1")
    assert (first["status"], again["status"], again["event"]) == ("created", "exists", first["event"])
    await desk.call("update_event", event_id=first["event"]["event_id"], summary="Doctor")
    assert (await desk.call("create_event", **DENTIST, idempotency_key="request-1"))["status"] == "exists"
    other = await desk.refusal("create_event", **DENTIST | {"summary": "Other"}, idempotency_key="request-1")
    assert other["message"] == "idempotency_key: was used for another event"
    assert await desk.kept() == ["Doctor"]


async def test_two_wishes_for_one_time_at_once_make_one_event(desk: Desk) -> None:
    tools = CalendarTools(
        butler="messenger",
        calendar=desk.standing.calendar,
        policy=CalendarPolicy(),
        clock=desk.clock,
        new_id=Uuid7Factory(desk.clock),
    )
    box = ToolBox(tools.tools())
    wishes = [DENTIST | {"summary": f"wish {number}"} for number in range(5)]
    answers = await asyncio.gather(*(box.call("calendar_create_event", OPERATOR, wish) for wish in wishes))
    assert sorted(answer["status"] for answer in answers) == ["conflict"] * 4 + ["created"]
    assert len(await desk.kept()) == 1


async def test_an_old_etag_is_refused(desk: Desk) -> None:
    event = (await desk.call("create_event", **DENTIST))["event"]
    await desk.call("update_event", event_id=event["event_id"], summary="Doctor")
    for name, more in (("update_event", {"summary": "Mine"}), ("delete_event", {})):
        error = await desk.refusal(name, event_id=event["event_id"], etag=event["etag"], **more)
        assert error["fields"][0]["field"] == "etag"
    assert await desk.kept() == ["Doctor"]


async def test_free_slots_lie_within_the_working_hours(desk: Desk) -> None:
    await desk.call("create_event", **DENTIST)
    window = {"time_min": "2026-03-02T00:00:00Z", "time_max": "2026-03-04T00:00:00Z"}
    answer = await desk.call("find_free_slots", **window, duration_minutes=120)
    assert answer == {
        "time_zone": "Europe/Vienna",
        "slots": [
            {"start": "2026-03-02T08:00:00+01:00", "end": "2026-03-02T10:00:00+01:00"},
            {"start": "2026-03-02T11:00:00+01:00", "end": "2026-03-02T20:00:00+01:00"},
            {"start": "2026-03-03T08:00:00+01:00", "end": "2026-03-03T20:00:00+01:00"},
        ],
        "more": False,
    }
    short = await desk.call("find_free_slots", **window, duration_minutes=121, limit=1)
    assert (short["slots"], short["more"]) == (answer["slots"][1:2], True)
    early = Desk(standing=desk.standing, clock=desk.clock, policy=CalendarPolicy(opens=time(6), closes=time(9)))
    assert (await early.call("find_free_slots", **window))["slots"][0]["start"] == "2026-03-02T07:00:00+01:00"  # now


async def test_the_tools_are_for_the_butler_itself_and_the_operator(desk: Desk) -> None:
    window = {"time_min": "2026-03-02T00:00:00Z", "time_max": "2026-03-04T00:00:00Z"}
    await desk.call("list_events", Caller(name="messenger", role=Role.BUTLER), **window)
    strangers = (None, Caller(name="health", role=Role.BUTLER), Caller(name="app", role=Role.CLIENT))
    for caller in strangers:
        error = await desk.refusal("list_events", caller=caller, **window)
        assert (error["class"], error["fields"][0]["field"]) == ("validation_error", "authorization")
    assert await desk.standing.statuses("events.list") == [200]


async def test_without_credentials_the_tools_say_which_are_missing(desk: Desk) -> None:
    tools = CalendarTools(
        butler="messenger",
        calendar=None,
        missing=("CLIENT", "SECRET"),
        policy=CalendarPolicy(),
        clock=desk.clock,
        new_id=Uuid7Factory(desk.clock),
    )
    box = ToolBox(tools.tools())
    arguments: dict[str, dict[str, Any]] = {name: {"event_id": "abcde"} for name in ("get_event", "delete_event")}
    arguments |= {"update_event": {"event_id": "abcde", "summary": "x"}, "create_event": DENTIST}
    window = {"time_min": "2026-03-02T00:00:00Z", "time_max": "2026-03-04T00:00:00Z"}
    arguments |= {"list_events": window, "find_free_slots": window}
    assert {f"calendar_{name}" for name in arguments} == set(box.names())
    for name, given in arguments.items():
        with pytest.raises(ClassifiedError) as caught:
            await box.call(f"calendar_{name}", OPERATOR, given)
        assert caught.value.describe() == {
            "class": "target_unavailable",
            "message": "the calendar is not connected: set CLIENT, SECRET",
            "retryable": False,
        }
