"""Operators intervene: every action really acts, is on record, and of two that race one wins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.operator_door import (
    act,
    audited,
    away,
    broken,
    handed_in,
    hanging,
    in_state,
    inbox_row,
    letters,
    read,
    tool,
)
from tests.scenarios.switchboard_door import rows
from tests.scenarios.test_messenger_cli import cli, document, lines
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("operators"), postgres_server) as system:
        yield system


async def put_off(running: RunningSystem, text: str) -> str:
    """A request that waits for a butler that is away."""
    request_id = await handed_in(running, text, "health")

    async def waits() -> bool:
        stored = await inbox_row(running, request_id)
        return stored["lifecycle_state"] == "accepted" and stored["not_before"] is not None

    await running.until(waits)
    return request_id


async def failed(running: RunningSystem, text: str) -> str:
    async with broken(running, "finance"):
        request_id = await handed_in(running, text, "finance")
        await in_state(running, request_id, "errored")
    return request_id


async def answers_with(running: RunningSystem, words: str) -> list[str]:
    return [answer for answer in await running.answers() if words in answer]


# --- the actions -----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-107")
async def test_an_operator_reroutes_cancels_aborts_retries_and_completes(running: RunningSystem) -> None:
    """Each action by another door, each seen in the request's own record and in the audit."""
    running.issue_token("ann", Role.OPERATOR)
    acted: dict[str, str] = {}

    async with away(running, "health"):
        acted["manual_reroute"] = await put_off(running, "the doctor moved my appointment")
        await lines(running, "requests", "reroute", acted["manual_reroute"], "--to", "travel", "--reason", "not ill")
        acted["cancel"] = await put_off(running, "the dentist moved my appointment")
        assert (await act(running, f"{acted['cancel']}/cancel", caller="ann")).json()["lifecycle_state"] == "errored"
    async with hanging(running, "finance"):
        acted["abort"] = await handed_in(running, "pay the bill that never ends", "finance")
        await in_state(running, acted["abort"], "progress")
        aborted = await tool(running, "request.abort", caller="ann", request_id=acted["abort"], reason="a mistake")
        assert (aborted["outcome"], aborted["details"]["handed_to"]) == ("partial", ["finance"])
        await in_state(running, acted["abort"], "errored")
    acted["retry"] = await failed(running, "I paid the loan")
    await lines(running, "requests", "retry", acted["retry"], "--reason", "finance is mended")
    await in_state(running, acted["retry"], "parsed")
    acted["force_complete"] = await failed(running, "I paid the fine")
    said = {"annotation": "paid by hand", "reason": "urgent"}
    assert (await act(running, f"{acted['force_complete']}/force-complete", **said)).status_code == 200

    ends = {
        "manual_reroute": "parsed",
        "cancel": "errored",
        "abort": "errored",
        "retry": "parsed",
        "force_complete": "parsed",
    }
    for action, state in ends.items():
        trace = await running.finished(acted[action])
        assert (trace["lifecycle_state"], trace["override"]["action"]) == (state, action)
        assert trace["override"]["operator"] == ("ann" if action in ("cancel", "abort") else "operator")
        assert trace["override"]["reason"] and trace["override"]["at"]
        [(done, outcome)] = await audited(running, acted[action])
        assert (done, outcome) == (action, "partial" if action == "abort" else "success")
    by_ann = (await read(running, "audit/operators", operator="ann"))["actions"]
    assert {line["request_id"] for line in by_ann} == {acted["cancel"], acted["abort"]}

    # They really acted: who answered, who was never asked, and what is told.
    assert await answers_with(running, "doctor") == ["[travel] Noted: the doctor moved my appointment"]
    assert await answers_with(running, "dentist") == await answers_with(running, "never ends") == []
    assert await rows(running, "finance.route_inbox", acted["abort"]) == []
    assert len(await answers_with(running, "loan")) == 1
    rerouted = await inbox_row(running, acted["manual_reroute"])
    assert (rerouted["routing_output"]["router"], rerouted["pinned_target"]) == ("policy", "travel")
    assert rerouted["routing_output"]["why"] == "operator operator: not ill"
    cancelled = (await inbox_row(running, acted["cancel"]))["lifecycle_error"]
    assert cancelled["class"] == "routing_error"
    assert cancelled["message"] == "cancelled by ann: the owner asked for it"
    [letter] = await letters(running, acted["force_complete"])
    assert letter["resolution"] == "force_complete"
    assert any("paid by hand" in line for line in await lines(running, "why", acted["force_complete"]))


async def test_a_request_that_is_worked_on_is_taken_away_and_given_to_another(running: RunningSystem) -> None:
    async with hanging(running, "finance"):
        request_id = await handed_in(running, "this is about my knee", "finance")
        await in_state(running, request_id, "progress")
        moved = (await act(running, f"{request_id}/reroute", target="relationship")).json()
        assert (moved["outcome"], moved["details"]["was"]) == ("partial", "progress")
        await in_state(running, request_id, "parsed")
    assert await answers_with(running, "knee") == ["[relationship] Noted: this is about my knee"]


@pytest.mark.parametrize("action", ["cancel", "abort", "retry", "reroute", "force-complete"])
async def test_what_has_ended_well_stays_as_it_is(running: RunningSystem, action: str) -> None:
    request_id = await handed_in(running, f"I paid before {action}", "finance")
    before = await in_state(running, request_id, "parsed")
    more = {"reroute": {"target": "travel"}, "force-complete": {"annotation": "again"}}.get(action, {})
    response = await act(running, f"{request_id}/{action}", **more)
    error = response.json()["error"]
    assert (response.status_code, error["outcome"], error["lifecycle_state"]) == (409, "rejected", "parsed")
    assert "has ended well" in error["message"]
    assert dict(await inbox_row(running, request_id)) == dict(before)
    assert [outcome for _, outcome in await audited(running, request_id)] == ["rejected"]


async def test_two_retries_at_once_are_one(running: RunningSystem) -> None:
    request_id = await failed(running, "I paid the twins")
    async with hanging(running, "finance"):
        answers = await asyncio.gather(*(act(running, f"{request_id}/retry") for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    await in_state(running, request_id, "parsed")
    assert len(await answers_with(running, "twins")) == 1
    outcomes = [outcome for _, outcome in await audited(running, request_id)]
    assert sorted(outcomes) == ["rejected"] * 4 + ["success"]


async def test_an_operator_and_a_finishing_worker_have_one_winner(running: RunningSystem) -> None:
    for number in range(6):
        request_id = await handed_in(running, f"I paid race {number}", "finance")

        async def stop(of: str = request_id) -> int:
            await in_state_or_ended(running, of)
            return (await act(running, f"{of}/abort")).status_code

        code = await stop()
        trace = await running.finished(request_id)
        if code == 200:
            assert (trace["lifecycle_state"], trace["override"]["action"]) == ("errored", "abort")
        else:
            assert (code, trace["lifecycle_state"], trace["override"]) == (409, "parsed", None)
        assert trace["dead_letters"] == []


async def in_state_or_ended(running: RunningSystem, request_id: str) -> None:
    async def begun() -> bool:
        return bool((await inbox_row(running, request_id))["lifecycle_state"] != "accepted")

    await running.until(begun)


async def test_only_a_person_with_an_operators_token_may_act(running: RunningSystem) -> None:
    request_id = await failed(running, "I paid in secret")
    for action in ("retry", "cancel", "abort", "reroute", "force-complete"):
        path = running.url(path=f"/api/requests/{request_id}/{action}")
        assert (await running.http.post(path, json={"reason": "x"})).status_code == 403
        assert (await act(running, f"{request_id}/{action}", caller="finance")).status_code == 403
    for name in ("request.retry", "request.dead_letters", "request.audit", "audit.list"):
        refused = await tool(running, name, caller="finance", request_id=request_id, reason="x")
        assert "may not call" in refused["error"]["message"]
    assert (await inbox_row(running, request_id))["lifecycle_state"] == "errored"
    assert await audited(running, request_id) == []


async def test_a_wrong_wish_is_told_apart(running: RunningSystem) -> None:
    request_id = await failed(running, "I paid the wrong one")
    nobody = await act(running, f"{request_id}/reroute", target="gardener")
    assert (nobody.status_code, "is no butler here" in nobody.json()["error"]["message"]) == (409, True)
    door = await act(running, f"{request_id}/reroute", target="messenger")
    assert (door.status_code, "takes no requests" in door.json()["error"]["message"]) == (409, True)
    assert (await act(running, f"{request_id}/retry", reason=" ")).status_code == 422
    assert (await act(running, f"{request_id}/retry", why="x")).status_code == 422
    assert (await act(running, f"{uuid4()}/retry")).status_code == 422, "no request has an id of that kind"
    unknown = "01890000-0000-7000-8000-000000000000"
    assert (await act(running, f"{unknown}/retry")).status_code == 404
    assert [outcome for _, outcome in await audited(running, request_id)] == ["rejected", "rejected"]
    assert await audited(running, unknown) == [("retry", "rejected")]
    complaint = await cli(running, "requests", "cancel", request_id, "--reason", "x", code=2)
    assert "there is nothing to cancel" in complaint.stderr
    misplaced = await cli(running, "requests", "--json", "retry", request_id, "--reason", "x", code=2)
    assert "--json belongs behind `retry`" in misplaced.stderr + misplaced.stdout


# --- explaining ------------------------------------------------------------------------------------------------------


async def test_why_tells_what_was_decided_tried_and_can_be_done(running: RunningSystem) -> None:
    request_id = await failed(running, "I paid for an explanation")
    await cli(running, "requests", "cancel", request_id, "--reason", "too late", code=2)
    told = "\n".join(await lines(running, "why", request_id))
    [letter] = await letters(running, request_id)
    for words in (
        f"request {request_id}: errored",
        "once     the same words from there, handed in again, is this request (content-",
        "route    to finance (1) by policy: the source pinned the target",
        "budget   tier default",
        "dispatch finance s1: internal_error: ",
        "error    internal_error: ",
        "cancel: too late -> rejected (request_id: the request has ended with an error; there is nothing to cancel)",
        f"letter   {letter['id']} (s1 to finance): replayable; non_retryable: internal_error: ",
        f"run it again: butlers requests replay {letter['id']} --reason WHY",
        f"possible now: butlers requests retry {request_id} --reason WHY",
    ):
        assert words in told
    assert await lines(running, "why", letter["id"]) == told.splitlines()
    where = ("--data-dir", str(running.settings.data_dir))
    placed = "\n".join(await lines(running, "why", request_id, *where))
    assert f"butlers requests retry {' '.join(where)} {request_id} --reason WHY" in placed


async def test_the_audit_is_listed_by_request_and_operator_at_every_door(running: RunningSystem) -> None:
    request_id = await failed(running, "I paid the auditor")
    await act(running, f"{request_id}/retry", reason="first")
    await in_state(running, request_id, "parsed")
    await act(running, f"{request_id}/retry", reason="second")
    [second, first] = (await tool(running, "request.audit", request_id=request_id))["actions"]
    assert [(line["reason"], line["outcome"]) for line in (first, second)] == [
        ("first", "success"),
        ("second", "rejected"),
    ]
    assert (await document(running, "requests", "audit", "--request", request_id))["actions"] == [second, first]
    page = await document(running, "requests", "audit", "--operator", "operator", "--limit", "1")
    assert page["actions"] == [second]
    following = await document(running, "requests", "audit", "--limit", "1", "--cursor", page["next_cursor"])
    assert following["actions"] == [first]


# --- nothing is dropped ----------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-043")
async def test_every_accepted_request_has_a_record_whatever_becomes_of_it(running: RunningSystem) -> None:
    well = [await handed_in(running, f"I paid number {number}", "finance") for number in range(5)]
    for request_id in well:
        await in_state(running, request_id, "parsed")
    badly = await failed(running, "I paid number six")
    async with away(running, "health"):
        stopped = await put_off(running, "the nurse called")
        waiting = await put_off(running, "the nurse called again")
        await act(running, f"{stopped}/cancel")
        await running.stop()
    stands = {request_id: await inbox_row(running, request_id) for request_id in (*well, badly, stopped, waiting)}
    assert stands[waiting]["lifecycle_state"] == "accepted"
    assert stands[badly]["lifecycle_error"] and stands[stopped]["lifecycle_error"]
    passed = "UPDATE switchboard.message_inbox SET not_before = received_at WHERE request_id = $1"
    await running.database.execute(passed, UUID(waiting))
    await running.start()
    assert len(await letters(running, badly)) == 1
    await in_state(running, waiting, "parsed")
    assert len(await answers_with(running, "the nurse called again")) == 1
    unaccounted = await running.database.fetch(
        "SELECT request_id FROM switchboard.message_inbox AS message WHERE lifecycle_state = 'errored'"
        " AND (lifecycle_error IS NULL OR (override IS NULL AND NOT EXISTS ("
        "   SELECT 1 FROM switchboard.dead_letter AS letter WHERE letter.request_id = message.request_id)))"
    )
    assert unaccounted == []


# --- what the daemon did ---------------------------------------------------------------------------------------------


async def sessions_told(running: RunningSystem, butler: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await read(running, "audit", butler=butler, operation="session"))["entries"]
    return found


@pytest.mark.scenario("S3-062")
async def test_the_end_of_a_session_is_told_and_telling_never_fails_it(
    running: RunningSystem, caplog: pytest.LogCaptureFixture
) -> None:
    async def triggered(prompt: str) -> dict[str, Any]:
        async with running.mcp("travel") as client:
            answer = (await client.call_tool("trigger", {"prompt": prompt})).structured_content
        assert isinstance(answer, dict)
        return answer

    before = len(await sessions_told(running, "travel"))
    assert (await triggered("look at the timetable"))["status"] == "ok"
    await running.until(lambda: _more(running, before))
    entry = (await sessions_told(running, "travel"))[0]
    assert (entry["butler"], entry["operation"], entry["result"], entry["error"]) == (
        "travel",
        "session",
        "completed",
        None,
    )
    session_id = UUID(entry["request_summary"]["session_id"])
    stored = await running.database.fetchrow("SELECT * FROM travel.sessions WHERE id = $1", session_id)
    assert stored is not None
    assert stored["trigger_source"] == entry["request_summary"]["trigger_source"] == "trigger:operator"
    assert "timetable" not in str(entry), "ids and names, never what somebody wrote"

    # Without its table nothing is recorded, and nothing else is any different.
    await running.database.execute("ALTER TABLE switchboard.dashboard_audit_log RENAME TO audit_away")
    try:
        with caplog.at_level(logging.WARNING, "butlers.activity"):
            assert (await triggered("look again"))["status"] == "ok"
            await running.until(lambda: _logged(caplog, "activity not recorded"))
    finally:
        await running.database.execute("ALTER TABLE switchboard.audit_away RENAME TO dashboard_audit_log")
    assert (await triggered("and once more"))["status"] == "ok"
    await running.until(lambda: _more(running, before + 1))


async def _more(running: RunningSystem, than: int) -> bool:
    return len(await sessions_told(running, "travel")) > than


async def _logged(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return any(record.getMessage() == event for record in caplog.records)


@pytest.mark.scenario("S3-062")
async def test_operators_schedules_and_failed_sessions_are_told_too(running: RunningSystem) -> None:
    request_id = await failed(running, "I paid for the record")
    await act(running, f"{request_id}/retry", reason="on record")
    due = "UPDATE switchboard.scheduled_tasks SET next_run_at = now() - interval '1 minute' WHERE name = $1"
    await running.database.execute(due, "eligibility-sweep")

    async def told() -> list[dict[str, Any]]:
        entries = (await read(running, "audit", operation="schedule", butler="switchboard"))["entries"]
        return [entry for entry in entries if entry["request_summary"]["schedule"] == "eligibility-sweep"]

    [swept, *_] = await running.until(told)
    assert (swept["result"], swept["error"], swept["request_summary"]["mode"]) == ("ok", None, "native")

    async def action() -> list[dict[str, Any]]:
        return list((await tool(running, "audit.list", operation="request.retry"))["entries"][:1])

    [retried] = await running.until(action)
    assert (retried["actor"], retried["result"], retried["request_summary"]) == (
        "operator",
        "success",
        {"request_id": request_id},
    )
    shown = await lines(running, "requests", "activity", "--operation", "request.retry", "--limit", "1")
    assert "request.retry by operator: success" in shown[0]


async def test_what_happened_outlives_the_inbox(running: RunningSystem) -> None:
    request_id = await failed(running, "I paid for the long run")
    await act(running, f"{request_id}/retry")
    await in_state(running, request_id, "parsed")
    about = ("routing_log", "notifications", "dead_letter", "operator_audit_log")
    kept = {table: await rows(running, f"switchboard.{table}", request_id) for table in about}
    assert {table: len(found) for table, found in kept.items()} == {
        "routing_log": 2,
        "notifications": 1,
        "dead_letter": 1,
        "operator_audit_log": 1,
    }
    names = {row["name"] for row in await running.database.fetch("SELECT name FROM switchboard.butler_registry")}
    assert names == set(running.roster)
