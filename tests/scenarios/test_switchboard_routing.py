"""The local classifier behind the door: what is stored, and who gets which words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import post, row, rows
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("routing"), postgres_server) as system:
        yield system


async def decided(running: RunningSystem, text: str) -> dict[str, Any]:
    """Hand in and wait for the good end; the stored decision."""
    request_id = (await post(running, running.envelope(text))).json()["request_id"]
    trace = await running.finished(request_id)
    assert trace["lifecycle_state"] == "parsed", trace["lifecycle_error"]
    stored = await row(running, "switchboard.message_inbox", request_id)
    return {"request_id": request_id, **stored["routing_output"]}


async def prompt(running: RunningSystem, butler: str, request_id: str) -> str:
    told: str = (await row(running, f"{butler}.route_inbox", request_id))["envelope"]["input"]["prompt"]
    return told


@pytest.mark.scenario("S3-008", "S3-010")
@pytest.mark.parametrize(
    ("butler", "text"),
    [
        ("finance", "The subscription was billed twice, 12.99 each"),
        ("travel", "Check-in opens tomorrow for our flight to Lisbon"),
        ("relationship", "Met Anna for coffee, her birthday is on 3 May"),
        ("health", "Blood pressure 138/91 this morning, took the tablets"),
        ("general", "What is the capital of Mongolia?"),
    ],
)
async def test_one_domain_goes_whole_to_its_butler(running: RunningSystem, butler: str, text: str) -> None:
    decision = await decided(running, text)
    assert [segment["butler"] for segment in decision["segments"]] == [butler]
    assert await prompt(running, butler, decision["request_id"]) == text


@pytest.mark.scenario("S3-009")
async def test_a_message_of_two_domains_is_one_prompt_per_butler(running: RunningSystem) -> None:
    text = "Flight to Rome is at 9:40 on Friday. Also I took 20 mg of ibuprofen for my headache"
    decision = await decided(running, text)

    first, second = decision["segments"]
    assert (first["butler"], second["butler"]) == ("travel", "health")
    assert (first["start"], first["end"], second["end"]) == (0, second["start"], len(text))
    assert first["rationale"] and second["rationale"]
    assert "Rome" in await prompt(running, "travel", decision["request_id"])
    told = await prompt(running, "health", decision["request_id"])
    assert "ibuprofen" in told
    assert "Rome" not in told


@pytest.mark.scenario("S3-011")
async def test_finance_wins_for_the_refund_and_travel_for_the_booking(running: RunningSystem) -> None:
    refund = await decided(running, "The airline still owes me the refund for the cancelled flight, 240 euros")
    booking = await decided(
        running, "Your hotel booking in Lisbon is confirmed, 4 to 8 May, 320 EUR paid, check-in from 15:00"
    )
    assert [segment["butler"] for segment in refund["segments"]] == ["finance"]
    assert [segment["butler"] for segment in booking["segments"]] == ["travel"]


async def test_what_nobody_is_sure_of_goes_whole_to_general(running: RunningSystem) -> None:
    decision = await decided(running, "...")
    assert (decision["router"], decision["fallback_reason"]) == ("fallback", "ambiguous")
    [segment] = decision["segments"]
    assert (segment["butler"], segment["start"], segment["end"]) == ("general", 0, 3)
    assert await prompt(running, "general", decision["request_id"]) == "..."
    assert await rows(running, "finance.route_inbox", decision["request_id"]) == []
