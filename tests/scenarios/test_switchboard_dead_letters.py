"""Dead letters of requests: what failed for good is set aside whole, and a replay keeps its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.retention import add_months, ensure_month_partitions
from butlers.switchboard.operators.audit import RecordKeeper
from tests.scenarios.operator_door import (
    act,
    audited,
    away,
    broken,
    handed_in,
    in_state,
    inbox_row,
    left_behind,
    letters,
    read,
    tool,
)
from tests.scenarios.switchboard_door import rows
from tests.scenarios.test_messenger_cli import document, lines
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    """Nobody waits for a butler that is away."""
    path = tmp_path_factory.mktemp("letters")
    async with running_system(path, postgres_server, request_patience_s=0) as system:
        yield system


async def errored(running: RunningSystem, text: str, target: str = "finance") -> tuple[str, dict[str, Any]]:
    """A request that a butler failed, and its dead letter."""
    async with broken(running, target):
        request_id = await handed_in(running, text, target)
        await in_state(running, request_id, "errored")
    [letter] = await letters(running, request_id)
    return request_id, letter


# --- capture ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-100")
async def test_a_request_that_exceeds_the_retry_policy_moves_to_the_dead_letters(running: RunningSystem) -> None:
    async with away(running, "finance"):
        request_id = await handed_in(running, "I paid the rent", "finance")
        stored = await in_state(running, request_id, "errored")
    [letter] = await letters(running, request_id)
    assert (letter["failure_category"], letter["error_class"]) == ("retries_exhausted", "target_unavailable")
    assert (letter["attempts"], letter["target_butler"], letter["replay_eligible"]) == (3, "finance", True)
    assert stored["lifecycle_error"]["class"] == letter["error_class"]

    # Whole through every door, with the copy that a replay needs.
    whole = (await read(running, f"requests/dead-letters/{letter['id']}"))["dead_letter"]
    assert whole == (await tool(running, "request.dead_letters", dead_letter_id=letter["id"]))["dead_letter"]
    assert whole == (await document(running, "requests", "dead-letter", letter["id"]))["dead_letter"]
    assert whole["original_payload"]["normalized_text"] == "I paid the rent"
    assert whole["request_context"] == stored["request_context"]
    listed = await document(running, "requests", "dead-letters", "--request", request_id)
    assert [row["id"] for row in listed["dead_letters"]] == [letter["id"]]
    shown = await lines(running, "requests", "dead-letters", "--butler", "finance", "--category", "retries_exhausted")
    assert shown[0].startswith(letter["id"])


@pytest.mark.scenario("S3-100")
async def test_only_the_subrequest_that_failed_moves_to_the_dead_letters(running: RunningSystem) -> None:
    async with broken(running, "finance"):
        request_id = await left_behind(running, finance="I paid the bill.", travel="My flight to Oslo leaves at noon.")
        stored = await in_state(running, request_id, "errored")
    outcomes = {outcome["target_butler"]: outcome for outcome in stored["dispatch_outcomes"]}
    assert {butler: outcome["success"] for butler, outcome in outcomes.items()} == {"finance": False, "travel": True}
    [letter] = await letters(running, request_id)
    [failed] = await rows(running, "finance.route_inbox", request_id)
    assert (letter["target_butler"], letter["failure_category"]) == ("finance", "non_retryable")
    assert (letter["segment_id"], letter["subrequest_id"]) == (failed["segment_id"], str(failed["subrequest_id"]))


async def test_letters_are_listed_by_what_they_are_a_page_at_a_time(running: RunningSystem) -> None:
    made = [(await errored(running, f"I paid bill number {number}"))[1]["id"] for number in range(3)]
    first = await read(running, "requests/dead-letters", failure_category="non_retryable", limit=2)
    rest = await tool(running, "request.dead_letters", failure_category="non_retryable", cursor=first["next_cursor"])
    listed = [letter["id"] for letter in (*first["dead_letters"], *rest["dead_letters"])]
    assert listed[:3] == made[::-1]
    assert len(listed) == len(set(listed))
    nobody = await read(running, "requests/dead-letters", target_butler="health")
    assert (nobody["dead_letters"], nobody["next_cursor"]) == ([], None)
    response = await running.http.get(running.url(path="/api/requests/dead-letters?cursor=here"))
    assert (response.status_code, response.json()["error"]["fields"][0]["field"]) == (422, "cursor")
    assert (await running.http.get(running.url(path=f"/api/requests/dead-letters/{uuid4()}"))).status_code == 404


# --- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-101")
async def test_two_replays_at_once_are_one_with_the_lineage_of_the_request(running: RunningSystem) -> None:
    request_id, letter = await errored(running, "I paid the electricity bill of May")
    before = await running.answers()
    replay = f"dead-letters/{letter['id']}/replay"
    answers = await asyncio.gather(act(running, replay), act(running, replay, reason="me, too"))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    [won] = [answer.json() for answer in answers if answer.status_code == 200]
    [lost] = [answer.json()["error"] for answer in answers if answer.status_code == 409]
    assert (won["outcome"], won["request_id"], lost["outcome"]) == ("success", request_id, "rejected")

    trace = await running.finished(request_id)
    assert (trace["lifecycle_state"], trace["lifecycle_error"]) == ("parsed", None)
    assert (trace["override"]["action"], trace["override"]["dead_letter_id"]) == ("replay", letter["id"])
    assert (await running.answers())[len(before) :] == ["[finance] Noted: I paid the electricity bill of May"]
    worked = await rows(running, "finance.route_inbox", request_id)
    assert [row["lifecycle_state"] for row in worked] == ["errored", "processed"]
    [settled] = await letters(running, request_id)
    assert (settled["replay_count"], settled["replay_outcome"], settled["resolution"]) == (1, "parsed", "replay")
    assert settled["replayed_request_id"] == request_id

    # Who, when, why and with what result; also of the one that was refused, and of one that comes too late.
    assert (await act(running, replay)).status_code == 409
    actions = (await read(running, "audit/operators", request_id=request_id))["actions"]
    assert sorted(action["outcome"] for action in actions) == ["rejected", "rejected", "success"]
    assert {(action["operator"], action["action"]) for action in actions} == {("operator", "replay")}
    assert {action["reason"] for action in actions} == {"the owner asked for it", "me, too"}
    assert all(action["performed_at"] and action["payload"]["dead_letter_id"] == letter["id"] for action in actions)


async def test_a_replay_that_fails_again_is_told_on_the_same_letter(running: RunningSystem) -> None:
    request_id, letter = await errored(running, "I paid the water bill")
    async with broken(running, "finance"):
        replayed = await tool(running, "request.replay", dead_letter_id=letter["id"], reason="try")
        assert replayed["outcome"] == "success"
        await in_state(running, request_id, "errored")
    [again] = await letters(running, request_id)
    assert (again["id"], again["replay_count"], again["replay_outcome"]) == (letter["id"], 1, "errored")
    assert (again["attempts"], again["resolved_at"]) == (2, None)
    await lines(running, "requests", "replay", letter["id"], "--reason", "once more")
    await in_state(running, request_id, "parsed")
    [settled] = await letters(running, request_id)
    assert (settled["replay_count"], settled["replay_outcome"]) == (2, "parsed")


async def test_a_replay_asks_nobody_again_who_has_answered(running: RunningSystem) -> None:
    async with broken(running, "travel"):
        request_id = await left_behind(running, finance="I paid the tax.", travel="My train to Bergen leaves at one.")
        await in_state(running, request_id, "errored")
    [letter] = await letters(running, request_id)
    before = await running.answers()
    assert (await act(running, f"dead-letters/{letter['id']}/replay")).status_code == 200
    stored = await in_state(running, request_id, "parsed")
    [said] = (await running.answers())[len(before) :]
    assert said.startswith("[travel] ")
    assert set(stored["aggregated_reply"]["answers"]) == {"finance", "travel"}
    assert len(await rows(running, "finance.route_inbox", request_id)) == 1


@pytest.mark.scenario("S3-101")
async def test_a_replay_outlives_the_month_of_the_inbox(running: RunningSystem) -> None:
    request_id, letter = await errored(running, "I paid the gas bill")
    stored = await inbox_row(running, request_id)
    month = add_months(running.clock.now().date().replace(day=1), -3)
    async with running.database.connection() as connection:
        await ensure_month_partitions(connection, "switchboard", "message_inbox", month, 0)
    moved = "UPDATE switchboard.message_inbox SET received_at = $2 WHERE request_id = $1"
    await running.database.execute(moved, UUID(request_id), stored["received_at"] - timedelta(days=80))
    await running.restart()
    assert await rows(running, "switchboard.message_inbox", request_id) == []
    told = await lines(running, "why", request_id)
    assert told[0] == f"request {request_id}: not known to switchboard any more"
    assert any(f"butlers requests replay {letter['id']}" in line for line in told)

    replayed = (await act(running, f"dead-letters/{letter['id']}/replay")).json()
    assert (replayed["request_id"], replayed["details"]["restored"]) == (request_id, True)
    again = await in_state(running, request_id, "parsed")
    assert again["request_context"] == stored["request_context"]
    assert again["received_at"] > stored["received_at"]
    assert (again["dedupe_key"], again["raw_payload"]) == (stored["dedupe_key"], stored["raw_payload"])
    assert "[finance] Noted: I paid the gas bill" in await running.answers()


async def test_two_letters_of_a_request_whose_month_is_gone_make_one_request(running: RunningSystem) -> None:
    async with broken(running, "finance"), broken(running, "travel"):
        request_id = await left_behind(running, finance="I paid the toll.", travel="My bus to Molde leaves at six.")
        await in_state(running, request_id, "errored")
    found = [UUID(letter["id"]) for letter in await letters(running, request_id)]
    assert len(found) == 2
    gone = "DELETE FROM switchboard.message_inbox WHERE request_id = $1"
    await running.database.execute(gone, UUID(request_id))

    # Nobody gets on until both have looked for the request, or one waits for the other.
    async with running.database.transaction() as connection:
        await connection.execute("SELECT FROM switchboard.dead_letter WHERE id = ANY($1) FOR UPDATE", found)
        replays = [asyncio.create_task(act(running, f"dead-letters/{letter}/replay")) for letter in found]
        await running.until(lambda: both_wait(running))
    answers = await asyncio.gather(*replays)
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert len(await rows(running, "switchboard.message_inbox", request_id)) == 1
    await in_state(running, request_id, "parsed")


async def both_wait(running: RunningSystem) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await running.database.fetchval(waiting) == 2)


async def test_what_is_not_there_or_not_allowed_is_refused_and_audited(running: RunningSystem) -> None:
    unknown = str(uuid4())
    assert (await act(running, f"dead-letters/{unknown}/replay")).status_code == 404
    recorded = (await read(running, "audit/operators", action="replay", limit=1))["actions"][0]
    assert (recorded["outcome"], recorded["request_id"]) == ("rejected", None)
    assert recorded["payload"] == {"dead_letter_id": unknown}
    request_id, letter = await errored(running, "I paid the phone bill")
    path = running.url(path=f"/api/requests/dead-letters/{letter['id']}/replay")
    assert (await running.http.post(path, json={"reason": "x"})).status_code == 403
    assert (await act(running, f"dead-letters/{letter['id']}/replay", caller="finance")).status_code == 403
    refused = await tool(running, "request.replay", caller="finance", dead_letter_id=letter["id"], reason="x")
    assert "may not call" in refused["error"]["message"]
    assert (await inbox_row(running, request_id))["lifecycle_state"] == "errored"
    assert await audited(running, request_id) == []


# --- retention -------------------------------------------------------------------------------------------------------


async def test_letters_and_audits_are_kept_a_year(running: RunningSystem) -> None:
    kept, _ = await errored(running, "I paid the young bill")
    gone, _ = await errored(running, "I paid the old bill")
    assert (await act(running, f"{gone}/retry")).status_code == 200
    await in_state(running, gone, "parsed")
    old, schema = running.clock.now() - timedelta(days=366), "switchboard"
    for table, moment in (("dead_letter", "created_at"), ("operator_audit_log", "performed_at")):
        await running.database.execute(
            f"UPDATE {schema}.{table} SET {moment} = $2 WHERE request_id = $1", UUID(gone), old
        )
    await RecordKeeper(database=running.database, schema=schema, clock=running.clock).keep()
    assert (await letters(running, gone), await audited(running, gone)) == ([], [])
    assert len(await letters(running, kept)) == 1


RECORDS = {
    "routing_log": (
        "(id, request_id, segment_id, source_channel, target_butler, success, duration_ms, router, created_at)"
        " SELECT gen_random_uuid(), gen_random_uuid(), 's1', 'api', 'general', true, 1, 'old', $1"
    ),
    "routing_model_calls": (
        "(id, rollout_key, prompt_version, model_version, outcome, duration_ms, created_at)"
        " SELECT gen_random_uuid(), '', 'p', 'm', 'answered', 1, $1"
    ),
    "extraction_queue": (
        "(id, request_id, position, signal_type, confidence, data, preview, sender, source_channel, status,"
        " expires_at, created_at)"
        " SELECT gen_random_uuid(), gen_random_uuid(), 1, 'fact', 1, '{}', 'x', 's', 'api', 'dismissed', $1, $1"
    ),
    "extraction_log": (
        "(id, request_id, event, signal_type, confidence, actor, preview, created_at)"
        " SELECT gen_random_uuid(), gen_random_uuid(), 'queued', 'fact', 1, 'rule', 'x', $1"
    ),
    "extraction_runs": "(request_id, extractor, found, created_at) SELECT gen_random_uuid(), 'local', 0, $1",
    "butler_eligibility_log": (
        "(id, butler, new, reason, observed_at) SELECT gen_random_uuid(), 'nobody', 'active', 'a test', $1"
    ),
}


@pytest.mark.parametrize("table", RECORDS)
async def test_records_are_kept_a_year_and_go_in_small_batches(running: RunningSystem, table: str) -> None:
    now = running.clock.now()
    for moment in (now - timedelta(days=366), now - timedelta(days=364)):
        await running.database.execute(
            f"INSERT INTO switchboard.{table} {RECORDS[table]} FROM generate_series(1, 5)", moment
        )
    count = f"SELECT count(*) FROM switchboard.{table}"
    before = await running.database.fetchval(count)
    keeper = RecordKeeper(database=running.database, schema="switchboard", clock=running.clock, batch=2)
    await keeper.keep()
    assert await running.database.fetchval(count) == before - 5
