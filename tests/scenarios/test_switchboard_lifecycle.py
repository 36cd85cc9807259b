"""What the author of a message sees of its life, and the order in which the messages of one thread are dealt with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.downstream import after, downstream, ok
from tests.scenarios.messenger_door import beside, changed_roster
from tests.scenarios.switchboard_door import post
from tests.system import RunningSystem, running_system

ALL_BUT_FINANCE = ["switchboard", "messenger", "general", "health", "relationship", "travel"]
EYES, THUMB, ALIEN = "👀", "👍", "👾"


@pytest.fixture
async def running(tmp_path: Path, postgres_server: EmbeddedPostgres) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path, postgres_server, reactions=True) as system:
        yield system


async def written(running: RunningSystem, text: str) -> dict[str, Any]:
    """A message of a person as the chat shows it now."""
    found = [line for line in await running.transcript() if line["from"] != "bot" and line["text"] == text]
    return found[-1] if found else {}


async def reaction(running: RunningSystem, text: str, emoji: str) -> None:
    async def there() -> bool:
        return (await written(running, text)).get("reactions") == [emoji]

    await running.until(there)


async def the_row(running: RunningSystem, text: str) -> dict[str, Any]:
    row = await running.database.fetchrow("select * from switchboard.message_inbox where normalized_text = $1", text)
    return dict(row) if row else {}


async def ended(running: RunningSystem, text: str) -> dict[str, Any]:
    async def over() -> dict[str, Any]:
        row = await the_row(running, text)
        return row if row.get("final_state_at") else {}

    return await running.until(over, deadline_s=60)


@pytest.mark.scenario("S3-031", "S3-032")
async def test_a_person_sees_the_eyes_and_then_the_thumb(running: RunningSystem) -> None:
    text = "remember the milk"
    await running.control("POST", "/faults", {"method": "sendMessage", "kind": "delay", "seconds": 1.0, "times": 1})
    await running.says(text)
    await reaction(running, text, EYES)
    assert (await the_row(running, text))["lifecycle_state"] == "progress"
    await reaction(running, text, THUMB)
    assert (await ended(running, text))["lifecycle_state"] == "parsed"

    async def on_record() -> list[str]:
        wishes = await running.database.fetch(
            "select source_butler from switchboard.notifications where message like '%' || $1", THUMB
        )
        return [wish["source_butler"] for wish in wishes]

    assert await running.until(on_record) == ["switchboard"], "it left through Messenger"


async def test_where_there_is_no_message_in_the_chat_nothing_is_tried(running: RunningSystem) -> None:
    """Handed in over HTTP for a chat, as the README shows it."""
    chat = {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"}
    envelope = running.envelope("My flight leaves at nine", external_thread_id="1000") | {"source": chat}
    await post(running, envelope | {"sender": {"identity": "1000"}})
    await ended(running, "My flight leaves at nine")
    await running.until(running.answers)
    intents = await running.database.fetch("select intent, status from messenger.delivery_requests")
    assert [tuple(row) for row in intents] == [("reply", "delivered")]


@pytest.mark.scenario("S3-033", "S3-060")
async def test_a_person_sees_the_alien_and_is_told_what_failed(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    text = "I paid the electricity bill"
    async with running_system(
        tmp_path, postgres_server, names=ALL_BUT_FINANCE, reactions=True, request_patience_s=0, heartbeat_s=0.2
    ) as running:
        async with beside(running, ["finance"]):  # registered, and then away
            pass
        await running.says(text)
        await reaction(running, text, ALIEN)
        row = await ended(running, text)
        assert row["lifecycle_state"] == "errored"
        assert row["lifecycle_error"]["class"] == "target_unavailable"
        (outcome,) = row["dispatch_outcomes"]
        assert (outcome["target_butler"], outcome["error"]["class"]) == ("finance", "target_unavailable")

        async def told() -> list[str]:
            return [answer for answer in await running.answers() if "finance could not do its part" in answer]

        (answer,) = await running.until(told)
        assert "target_unavailable" in answer
        assert "send it again in a few minutes" in answer
        assert str(row["request_id"]) in answer, "the person can ask about it"


@pytest.mark.scenario("S3-034")
async def test_a_reaction_that_telegram_refuses_stops_nothing(
    running: RunningSystem, caplog: pytest.LogCaptureFixture
) -> None:
    text = "remember the bread"
    refusal = {"method": "setMessageReaction", "kind": "refused", "status": 400, "times": None}
    await running.control("POST", "/faults", refusal | {"description": "Bad Request: REACTION_INVALID"})
    await running.says(text)
    assert (await ended(running, text))["lifecycle_state"] == "parsed"

    async def warned() -> bool:
        return any(record.message == "reaction was not set" for record in caplog.records)

    await running.until(warned)
    assert await running.answers() == [f"[general] Noted: {text}"]
    assert (await written(running, text))["reactions"] == []


async def test_an_end_that_a_dead_process_left_unsaid_is_said_once(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    text = "I paid the water bill"
    async with running_system(
        tmp_path, postgres_server, names=ALL_BUT_FINANCE, reactions=True, request_patience_s=0, heartbeat_s=0.2
    ) as running:
        async with beside(running, ["finance"]):
            pass
        await running.says(text)
        await reaction(running, text, ALIEN)

        async def nothing_left() -> bool:
            return not (await ended(running, text))["signal_pending"]

        await running.until(nothing_left)
        before = len(await running.answers())
        await running.stop()
        # As if the process had died between the end of the request and the word about it.
        await running.database.execute(
            "update switchboard.message_inbox"
            " set signal_pending = true, final_state_at = final_state_at - $1::interval",
            timedelta(seconds=60),
        )
        await running.start()
        await running.until(nothing_left, deadline_s=60)
        assert len(await running.answers()) == before, "Messenger knew it by its key"


async def test_reactions_can_be_other_ones_or_none(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    text = "remember the salt"
    roster = changed_roster(tmp_path, "switchboard", (r"\[buffer\]", '[lifecycle]\nparsed = "👌"\n\n[buffer]'))
    async with running_system(tmp_path, postgres_server, roster_dir=roster, reactions=True) as running:
        await running.says(text)
        await reaction(running, text, "👌")


def pinned(running: RunningSystem, text: str, butler: str, thread: str | None = None) -> dict[str, Any]:
    document = running.envelope(text)
    document["event"] |= {"external_thread_id": thread} if thread else {}
    return document | {"control": {"pinned_target": butler}}


@pytest.mark.scenario("S3-108")
async def test_messages_of_one_thread_are_dealt_with_in_order(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    others = [name for name in ALL_BUT_FINANCE if name != "health"]
    async with (
        running_system(tmp_path, postgres_server, names=others) as running,
        downstream(running, "finance") as finance,
        downstream(running, "health") as health,
    ):
        gate = asyncio.Event()
        finance.will(after(gate), ok())
        for number in (1, 2, 3):
            assert (await post(running, pinned(running, f"bill {number}", "finance", "t1"))).status_code == 202
        assert (await post(running, pinned(running, "pill", "health", "t1"))).status_code == 202
        await finance.called()
        assert (await post(running, pinned(running, "another thread", "health", "t2"))).status_code == 202
        assert (await post(running, pinned(running, "no thread", "health"))).status_code == 202
        await ended(running, "another thread")
        await ended(running, "no thread")

        waiting = [await the_row(running, text) for text in ("bill 2", "bill 3", "pill")]
        assert [row["lifecycle_state"] for row in waiting] == ["accepted"] * 3, "the first is not done"
        assert (len(finance.got), len(health.got)) == (1, 2)
        gate.set()
        ends = [(await ended(running, text))["final_state_at"] for text in ("bill 1", "bill 2", "bill 3", "pill")]
        assert ends == sorted(ends)
        assert [got["input"]["prompt"] for got in finance.got] == ["bill 1", "bill 2", "bill 3"]


async def test_what_is_settled_of_a_message_stays_settled_while_it_waits_behind_another(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    others = [name for name in ALL_BUT_FINANCE if name != "travel"]
    text = "I paid the gas bill. My flight to Rome leaves at nine."
    async with (
        running_system(tmp_path, postgres_server, names=others, request_patience_s=600) as running,
        downstream(running, "finance") as finance,
    ):
        async with downstream(running, "travel"):
            pass
        assert (await post(running, pinned(running, "the train is late", "travel", "t1"))).status_code == 202

        async def put_off(text: str) -> bool:
            return (await the_row(running, text)).get("waiting_for") == ["travel"]

        await running.until(lambda: put_off("the train is late"), deadline_s=60)
        document = running.envelope(text)
        document["event"]["external_thread_id"] = "t1"
        assert (await post(running, document)).status_code == 202
        await running.until(lambda: waits(running, text), deadline_s=60)
        row = await the_row(running, text)
        butlers = {segment["butler"] for segment in row["routing_output"]["segments"]}
        assert butlers == {"finance", "travel"}, "the decision is kept while it waits"
        assert finance.got == [], "none of it is dispatched before the earlier message"
        async with downstream(running, "travel") as travel:
            assert (await ended(running, text))["lifecycle_state"] == "parsed"
            assert travel.got[0]["input"]["prompt"] == "the train is late"
        assert len(finance.got) == 1


async def waits(running: RunningSystem, text: str) -> bool:
    return (await the_row(running, text)).get("waiting_for") is not None


async def test_a_butler_that_is_away_holds_up_only_what_is_for_it(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=ALL_BUT_FINANCE, heartbeat_s=0.2) as running:
        async with beside(running, ["finance"]):
            pass
        await running.says("I paid the rent bill")

        async def put_off() -> bool:
            return bool((await the_row(running, "I paid the rent bill")).get("waiting_for"))

        await running.until(put_off, deadline_s=60)
        await running.says("the doctor says I need a pill for the pain")
        await running.says("I paid the gas bill")
        assert (await ended(running, "the doctor says I need a pill for the pain"))["lifecycle_state"] == "parsed"
        assert not (await the_row(running, "I paid the gas bill")).get("final_state_at")
        async with beside(running, ["finance"]):
            first = await ended(running, "I paid the rent bill")
            second = await ended(running, "I paid the gas bill")
            assert (first["lifecycle_state"], second["lifecycle_state"]) == ("parsed", "parsed")
            assert first["final_state_at"] <= second["final_state_at"]
            kept = await running.database.fetch("select text from finance.entries order by created_at")
            assert [row["text"] for row in kept] == ["I paid the rent bill", "I paid the gas bill"]
