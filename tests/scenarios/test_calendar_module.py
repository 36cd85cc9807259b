"""The calendar module at Messenger's door, with the stand-in of Google Calendar behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from butlers.daemon.simulation import Simulated
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS = {
    f"calendar_{deed}"
    for deed in ("list_events", "get_event", "find_free_slots", "create_event", "update_event", "delete_event")
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("system"), postgres_server) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await control(system, "POST", "/reset")
    return system


async def control(running: RunningSystem, verb: str, path: str, body: Any = None) -> dict[str, Any]:
    response = await running.http.request(verb, f"{running.calendar.control_url}{path}", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def calendar(running: RunningSystem, deed: str, *, caller: str = "operator", **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", f"calendar_{deed}", arguments, caller=caller)


def tomorrow(running: RunningSystem, hour: int, length: int = 60) -> dict[str, str]:
    day = (running.clock.now() + timedelta(days=1)).replace(hour=hour, minute=0, second=0, microsecond=0)
    return {"start": day.isoformat(), "end": (day + timedelta(minutes=length)).isoformat()}


async def test_the_door_offers_the_calendar(running: RunningSystem) -> None:
    async with running.mcp("messenger") as client:
        offered = {tool.name for tool in (await client.list_tools()).tools}
    assert offered >= TOOLS
    assert "calendar" in (await call(running, "messenger", "status", {}))["modules"]


async def test_an_event_reaches_google_once(running: RunningSystem) -> None:
    wish = {"summary": "Dentist", **tomorrow(running, 10), "idempotency_key": "request-1"}
    await control(running, "POST", "/faults", {"method": "events.insert", "kind": "drop_after"})
    made = await calendar(running, "create_event", **wish)
    again = await calendar(running, "create_event", **wish)
    assert made["event"] == again["event"]
    (event,) = (await control(running, "GET", "/events"))["events"]
    assert (event["id"], event["summary"]) == (made["event"]["event_id"], "Dentist")
    asked = (await control(running, "GET", "/requests?method=events.insert"))["requests"]
    assert [record["status"] for record in asked] == [None, 409]


async def test_a_taken_time_is_answered_with_suggestions(running: RunningSystem) -> None:
    await calendar(running, "create_event", summary="Dentist", **tomorrow(running, 10))
    answer = await calendar(running, "create_event", summary="Lunch", **tomorrow(running, 10))
    assert answer["status"] == "conflict"
    assert [one["summary"] for one in answer["conflicts"]] == ["Dentist"]
    assert len(answer["suggestions"]) == 3
    assert len((await control(running, "GET", "/events"))["events"]) == 1
    taken = await calendar(running, "create_event", summary="Lunch", **answer["suggestions"][0])
    assert taken["status"] == "created"


async def test_a_provider_that_refuses_is_a_typed_error(running: RunningSystem) -> None:
    await calendar(running, "create_event", summary="First", **tomorrow(running, 15))  # we are let in by now
    await control(running, "POST", "/faults", {"method": "*", "kind": "quota_exceeded", "times": None})
    answer = await calendar(running, "create_event", summary="Dentist", **tomorrow(running, 10))
    error = answer["error"]
    assert (error["class"], error["retryable"], error["retry_after_seconds"]) == ("target_unavailable", True, 3600.0)
    await control(running, "POST", "/reset")
    wrong = await calendar(running, "create_event", summary="Dentist", start="2026-03-02T10:00:00", end="later")
    assert {problem["field"] for problem in wrong["error"]["fields"]} == {"start", "end"}


async def test_other_butlers_may_not_touch_messengers_calendar(running: RunningSystem) -> None:
    answer = await calendar(running, "create_event", caller="health", summary="Dentist", **tomorrow(running, 10))
    assert (answer["error"]["class"], answer["error"]["fields"][0]["field"]) == ("validation_error", "authorization")
    assert (await control(running, "GET", "/requests"))["requests"] == []


@pytest.mark.asyncio(loop_scope="function")
async def test_without_credentials_the_system_starts_and_the_tools_say_so(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, simulated=Simulated({"telegram", "mail"})) as running:
        answer = await calendar(running, "get_event", event_id="abcde")
        assert "calendar" in (await call(running, "messenger", "status", {}))["modules"]
        assert (await control(running, "GET", "/requests"))["requests"] == []
    names = [f"BUTLER_CALENDAR_{name}" for name in ("CLIENT_ID", "CLIENT_SECRET", "REFRESH_TOKEN")]
    assert answer["error"] == {
        "class": "target_unavailable",
        "message": f"the calendar is not connected: set {', '.join(names)}",
        "retryable": False,
    }
