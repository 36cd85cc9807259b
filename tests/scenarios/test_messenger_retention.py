"""Old deliveries go, with all that belongs to them; what somebody may still need stays, however old it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.messenger.upkeep import Retention
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.gated_system import GATED
from tests.scenarios.messenger_door import call, deliver, fault, lineage, rows, sends, wish
from tests.scenarios.messenger_time import (
    advance,
    as_time_passes,
    emptied,
    later,
    standing_still,
    tool,
    tool_refused,
    with_status,
)
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_BREAKER = (r"failure_threshold = \d+", "failure_threshold = 1000")
ONLY_MAIL_IS_GATED = (GATED[0], GATED[1].replace("\n\n", '\ngated_tools = ["email_send_message"]\n\n', 1))
NAMES = ["messenger", "switchboard"]
CHAT = 61
YEAR = 365
TIDY_S, SWEEP_S = 30.0, 3600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    changes = (NO_BREAKER, ONLY_MAIL_IS_GATED)
    async with standing_still(tmp_path_factory.mktemp("kept"), postgres_server, *changes, names=NAMES) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    return await emptied(system)


# --- hands -----------------------------------------------------------------------------------------------------------


async def delivered(running: RunningSystem, message: str = "hello", **fields: Any) -> str:
    answer = await deliver(running, wish(message, **{"recipient": str(CHAT)} | fields))
    assert answer["status"] == "ok", answer
    identity: str = answer["delivery"]["delivery_id"]
    return identity


async def aged(running: RunningSystem, days: float, *deliveries: str | UUID) -> None:
    """As if these deliveries, and their dead letters, had come and ended so many days earlier."""
    past = "- make_interval(secs => $2::float8 * 86400)"
    await running.database.execute(
        f"update messenger.delivery_requests set created_at = created_at {past}, updated_at = updated_at {past},"
        f" terminal_at = terminal_at {past} where id = any($1::uuid[])",
        deliveries,
        days,
    )
    await running.database.execute(
        f"update messenger.delivery_dead_letter set created_at = created_at {past},"
        f" discarded_at = discarded_at {past} where delivery_id = any($1::uuid[])",
        deliveries,
        days,
    )


async def decided(running: RunningSystem, days: float) -> str:
    """An action that holds nothing, decided so many days ago."""
    identity = str(uuid4())
    await running.database.execute(
        "insert into messenger.pending_actions (id, request_key, tool_name, tool_args, summary, status, requested_by,"
        " requested_at, expires_at, decided_by, decided_at) select $1::uuid, $2, 'notify', '{}', 'old', 'rejected',"
        " 'health', moment, moment, 'operator', moment"
        " from (select $3::timestamptz - make_interval(secs => $4::float8 * 86400) as moment) as past",
        identity,
        identity,
        running.clock.now(),
        days,
    )
    return identity


async def swept(running: RunningSystem) -> None:
    """Keys are retired, then one whole run of the timer: actions go last, so that one is gone when all is done."""
    marker = await decided(running, 30 * YEAR)

    async def marked() -> bool:
        query = "select not exists (select 1 from messenger.pending_actions where id = $1)"
        return bool(await running.database.fetchval(query, marker))

    async def retired() -> bool:
        query = (
            "select count(*) = 0 from messenger.delivery_requests where duplicate_detection"
            " and status <> 'uncertain' and terminal_at < $1::timestamptz - interval '30 days'"
        )
        return bool(await running.database.fetchval(query, running.clock.now()))

    advance(running, TIDY_S)
    await running.until(retired)
    assert not await marked(), "the timer runs once an hour"
    advance(running, SWEEP_S)
    await running.until(marked)


async def left(running: RunningSystem) -> set[str]:
    return {str(row["id"]) for row in await rows(running)}


async def counted(running: RunningSystem, table: str, column: str, identity: str) -> int:
    found: int = await running.database.fetchval(
        f"select count(*) from messenger.{table} where {column} = $1::uuid", identity
    )
    return found


async def dead_letter(running: RunningSystem, message: str = "again") -> dict[str, str]:
    """A delivery that has used up its attempts, and its dead letter."""
    await fault(running, "error_5xx", times=3, chat_id=CHAT)
    await later(running, wish(message, recipient=str(CHAT)))

    async def buried() -> dict[str, str]:
        query = (
            "select letter.id, letter.delivery_id from messenger.delivery_dead_letter as letter"
            " join messenger.delivery_requests as request on request.id = letter.delivery_id"
            " where strpos(request.message, $1) > 0"
        )
        row = await running.database.fetchrow(query, message)
        return {"letter": str(row["id"]), "delivery": str(row["delivery_id"])} if row else {}

    return await as_time_passes(running, buried)


async def replayed(running: RunningSystem, letter: str) -> str:
    arguments = {"dead_letter_id": letter}
    task = asyncio.create_task(call(running, "messenger", "messenger_dead_letter_replay", arguments))

    async def ended() -> bool:
        return task.done()

    await as_time_passes(running, ended)
    answer = await task
    assert answer["status"] == "delivered", answer
    identity: str = answer["delivery_id"]
    return identity


# --- what goes -------------------------------------------------------------------------------------------------------


async def test_a_delivery_goes_a_year_after_its_end_with_all_that_belongs_to_it(running: RunningSystem) -> None:
    keyed = {"request_context": lineage(running), "idempotency_key": "the old one"}
    old, young = await delivered(running, "old", **keyed), await delivered(running, "young")
    await aged(running, YEAR + 1, old)
    await aged(running, YEAR - 1, young)
    await swept(running)

    assert await left(running) == {young}
    for table in ("delivery_attempts", "delivery_receipts"):
        assert await counted(running, table, "delivery_id", old) == 0
        assert await counted(running, table, "delivery_id", young) == 1
    assert "no such delivery" in await tool_refused(running, "delivery_why", delivery_id=old)
    assert "no such delivery" in await tool_refused(running, "delivery_status", delivery_id=old)
    listed = await tool(running, "delivery_search")
    assert [found["id"] for found in listed["deliveries"]] == [young]
    asked = await running.http.get(running.url(path=f"/api/deliveries/{old}/why"), headers=running.bearer())
    assert (asked.status_code, asked.json()["error"]["class"]) == (404, "validation_error"), asked.text

    assert await delivered(running, "old", **keyed) not in {old, young}  # its key is free: this is a new one


async def test_what_was_removed_is_counted(running: RunningSystem) -> None:
    async def counter(record: str) -> float:
        text = (await running.http.get(running.url("messenger", "/metrics"))).text
        lines = [line for line in text.splitlines() if line.startswith("butlers_messenger_records_removed_total")]
        return sum(float(line.split()[-1]) for line in lines if f'record="{record}"' in line)

    records = ("delivery", "attempt", "receipt", "dead_letter", "action")
    before = [await counter(record) for record in records]
    for message in ("one", "two"):
        await aged(running, YEAR + 1, await delivered(running, message))
    await swept(running)
    assert [await counter(record) - known for record, known in zip(records, before, strict=True)] == [2, 2, 2, 0, 1]


async def test_a_dead_letter_that_was_given_up_goes_and_its_delivery_with_it(running: RunningSystem) -> None:
    dead = await dead_letter(running)
    await tool(running, "dead_letter_discard", dead_letter_id=dead["letter"], reason="too late")
    await aged(running, YEAR + 1, dead["delivery"])
    await swept(running)
    assert await left(running) == set()
    assert "no such dead letter" in await tool_refused(running, "dead_letter_inspect", dead_letter_id=dead["letter"])


async def test_a_dead_letter_whose_replay_arrived_goes_with_the_whole_family(running: RunningSystem) -> None:
    dead = await dead_letter(running)
    replay = await replayed(running, dead["letter"])
    await aged(running, YEAR + 1, dead["delivery"], replay)
    await swept(running)
    assert await left(running) == set()
    assert await counted(running, "delivery_dead_letter", "id", dead["letter"]) == 0


async def test_decided_actions_go_and_the_record_of_them_stays(running: RunningSystem) -> None:
    answer = await deliver(running, wish("by mail", channel="email", recipient="friend@elsewhere.example"))
    held, action = answer["delivery"]["delivery_id"], answer["delivery"]["action_id"]
    await call(running, "messenger", "reject_action", {"action_id": action, "reason": "no"})
    await running.database.execute(
        "update messenger.pending_actions set decided_at = decided_at - interval '366 days' where id = $1", action
    )
    young = await decided(running, YEAR - 1)
    await aged(running, YEAR + 1, held)
    await swept(running)

    assert await left(running) == set()
    kept = await running.database.fetch("select id::text as id from messenger.pending_actions")
    assert [row["id"] for row in kept] == [young]
    assert await counted(running, "approval_events", "action_id", action) >= 2


# --- what stays ------------------------------------------------------------------------------------------------------


async def test_what_waits_for_a_person_stays_however_old(running: RunningSystem) -> None:
    parked = await deliver(running, wish("by mail", channel="email", recipient="friend@elsewhere.example"))
    await fault(running, "drop_after", chat_id=CHAT)
    await later(running, wish("did it arrive?", recipient=str(CHAT)))
    (doubtful,) = await as_time_passes(running, lambda: with_status(running, "uncertain"))
    dead = await dead_letter(running)
    waiting = {parked["delivery"]["delivery_id"], str(doubtful["id"]), dead["delivery"]}
    await aged(running, 3 * YEAR, *waiting)
    await swept(running)

    assert await left(running) == waiting
    assert await counted(running, "pending_actions", "id", parked["delivery"]["action_id"]) == 1
    assert await counted(running, "delivery_dead_letter", "id", dead["letter"]) == 1
    await replayed(running, dead["letter"])


async def test_a_family_with_a_young_replay_stays_whole_and_is_not_sent_again(running: RunningSystem) -> None:
    dead = await dead_letter(running)
    replay = await replayed(running, dead["letter"])
    await aged(running, YEAR + 1, dead["delivery"])
    await swept(running)

    assert await left(running) == {dead["delivery"], replay}
    before = await sends(running)
    refused = await tool_refused(running, "dead_letter_replay", dead_letter_id=dead["letter"])
    assert "already_delivered" in refused
    assert await sends(running) == before


async def test_a_delivery_set_aside_just_now_stays_although_it_ended_long_ago(running: RunningSystem) -> None:
    await fault(running, "refused", status=400, chat_id=CHAT)
    await deliver(running, wish("no", recipient=str(CHAT)))
    (failed,) = await with_status(running, "failed")
    await aged(running, YEAR + 1, failed["id"])
    await tool(running, "dead_letter_quarantine", delivery_id=str(failed["id"]), reason="look at it")
    await swept(running)
    assert await left(running) == {str(failed["id"])}


async def test_small_batches_pass_by_what_stays(running: RunningSystem) -> None:
    deliveries = [await delivered(running, f"message {number}") for number in range(7)]
    for number, identity in enumerate(deliveries):
        await aged(running, YEAR + 10 - number, identity)
    kept = {deliveries[0], deliveries[1], deliveries[4]}
    await running.database.execute(
        "update messenger.delivery_requests set status = 'uncertain' where id = any($1::uuid[])", kept
    )
    timer: Any = running.butler("messenger").service("retention").run
    retention: Retention = timer.__self__
    removed = await replace(retention, batch=2).remove()
    assert removed == {"delivery": 4, "attempt": 4, "receipt": 4}
    assert await left(running) == kept


# --- settings --------------------------------------------------------------------------------------------------------


async def test_zero_keeps_for_ever_and_no_period_is_shorter_than_that_of_the_keys(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    changes = (
        (r"^deliveries_days = \S+", "deliveries_days = 7.0"),
        (r"^dead_letters_days = \S+", "dead_letters_days = 0"),
    )
    async with standing_still(tmp_path, postgres_server, NO_BREAKER, *changes) as running:
        dead = await dead_letter(running)
        await tool(running, "dead_letter_discard", dead_letter_id=dead["letter"], reason="too late")
        answered = {"request_context": lineage(running), "idempotency_key": "still known"}
        known, free = await delivered(running, "known", **answered), await delivered(running, "free")
        await aged(running, 30 * YEAR, dead["delivery"])
        await aged(running, 8, known)
        await aged(running, 31, free)
        await swept(running)

        assert await left(running) == {dead["delivery"], known}
        assert await delivered(running, "known", **answered) == known
