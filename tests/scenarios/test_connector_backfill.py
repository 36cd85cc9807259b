"""Backfill jobs: operators decide about them, connectors work on them, and the cap holds by UTC day."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.storage.database import Record
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.connector_door import RemoteConnector, a_connector, operator, post, refused_for
from tests.scenarios.test_messenger_cli import cli, document, lines
from tests.scenarios.test_retention import MovedClock
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAST = {"target_categories": ["INBOX", "Sent"], "date_from": "2025-01-01", "date_to": "2025-12-31"}
ALL = ("pending", "active", "paused", "completed", "cancelled", "cost_capped", "error")
SUMMARY = {
    *("job_id", "connector_type", "endpoint_identity", "target_categories", "date_from", "date_to"),
    *("rate_limit_per_hour", "daily_cost_cap_cents", "status", "rows_processed", "rows_skipped", "cost_spent_cents"),
    *("error", "created_at", "started_at", "completed_at", "updated_at"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("backfill"), postgres_server, telegram_poll_s=1) as system:
        yield system


async def online(running: RunningSystem, endpoint: str) -> RemoteConnector:
    connector = a_connector(running, endpoint)
    await connector.beat_and_be_seen()
    return connector


async def created(connector: RemoteConnector, **more: Any) -> str:
    answer = await operator(connector.running, "create_backfill_job", **connector.named, **PAST, **more)
    assert answer.get("status") == "pending", answer
    job_id: str = answer["job_id"]
    return job_id


async def row(running: RunningSystem, job_id: str) -> Record:
    found = await running.database.fetchrow("SELECT * FROM switchboard.backfill_jobs WHERE job_id = $1", UUID(job_id))
    assert found is not None
    return found


async def reported(connector: RemoteConnector, job_id: str, **more: Any) -> dict[str, Any]:
    batch = {"job_id": job_id, "rows_processed": 10, "rows_skipped": 1, "cost_spent_cents": 20} | more
    return await connector.ask("backfill.progress", **batch)


async def stands(running: RunningSystem, job_id: str, status: str) -> None:
    await running.database.execute(
        "UPDATE switchboard.backfill_jobs SET status = $2 WHERE job_id = $1", UUID(job_id), status
    )


# --- operators -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-065")
@pytest.mark.scenario("S3-067")
async def test_backfill_job_creation(running: RunningSystem) -> None:
    connector = await online(running, "create@example.org")
    answer = await operator(running, "create_backfill_job", **connector.named, **PAST)
    assert answer == {"job_id": answer["job_id"], "status": "pending"}
    stored = await row(running, answer["job_id"])
    assert (stored["status"], stored["connector_type"], stored["endpoint_identity"]) == (
        *("pending", "imap", "create@example.org"),
    )
    assert stored["target_categories"] == ["INBOX", "Sent"]
    assert (str(stored["date_from"]), str(stored["date_to"])) == ("2025-01-01", "2025-12-31")
    assert (stored["rate_limit_per_hour"], stored["daily_cost_cap_cents"]) == (100, 500)
    assert (stored["created_by"], stored["started_at"]) == ("operator", None)
    other = await row(running, await created(connector, rate_limit_per_hour=7, daily_cost_cap_cents=9))
    assert (other["rate_limit_per_hour"], other["daily_cost_cap_cents"]) == (7, 9)


@pytest.mark.scenario("S3-065")
async def test_only_a_connector_that_is_there_can_be_asked(running: RunningSystem) -> None:
    unknown = a_connector(running, "never-seen")
    refusal = await operator(running, "create_backfill_job", **unknown.named, **PAST)
    assert refusal["error"]["message"] == "endpoint_identity: no such connector"
    connector = await online(running, "asleep@example.org")
    await running.database.execute(
        "UPDATE switchboard.connector_registry SET last_heartbeat_at = $1 WHERE endpoint_identity = $2",
        running.clock.now() - timedelta(minutes=3),
        connector.endpoint,
    )
    refusal = await operator(running, "create_backfill_job", **connector.named, **PAST)
    assert "this connector is stale" in refusal["error"]["message"]
    assert (await post(running, "/backfill", connector.named | PAST)).status_code == 409
    assert (await post(running, "/backfill", unknown.named | PAST)).status_code == 404
    await connector.beat_and_be_seen(capabilities={"backfill": False})
    refusal = await operator(running, "create_backfill_job", **connector.named, **PAST)
    assert refused_for(refusal) == ["connector_type"]
    assert (
        await running.database.fetch(
            "SELECT FROM switchboard.backfill_jobs WHERE endpoint_identity = $1", connector.endpoint
        )
        == []
    )


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"target_categories": []}, "target_categories"),
        ({"date_to": "2024-12-31"}, ""),
        ({"date_from": "soon"}, "date_from"),
        ({"rate_limit_per_hour": 0}, "rate_limit_per_hour"),
        ({"daily_cost_cap_cents": -1}, "daily_cost_cap_cents"),
        ({"surprise": 1}, "surprise"),
    ],
)
async def test_a_job_that_makes_no_sense_is_refused(running: RunningSystem, wrong: dict[str, Any], field: str) -> None:
    connector = await online(running, "sense@example.org")
    answer = await operator(running, "create_backfill_job", **(connector.named | PAST | wrong))
    assert (answer["error"]["class"], refused_for(answer)) == ("validation_error", [field])
    assert (await post(running, "/backfill", connector.named | PAST | wrong)).status_code == 422


@pytest.mark.scenario("S3-066")
@pytest.mark.scenario("S3-068")
@pytest.mark.scenario("S3-069")
@pytest.mark.scenario("S3-070")
@pytest.mark.parametrize(
    ("deed", "after", "possible"),
    [
        ("pause", "paused", {"pending", "active"}),
        ("cancel", "cancelled", {"pending", "active", "paused", "cost_capped"}),
        ("resume", "pending", {"paused", "cost_capped"}),
    ],
)
async def test_status_transitions(running: RunningSystem, deed: str, after: str, possible: set[str]) -> None:
    connector = await online(running, "moves@example.org")
    job_id = await created(connector)
    for before in ALL:
        await stands(running, job_id, before)
        answer = await operator(running, f"backfill.{deed}", job_id=job_id)
        if before in possible:
            assert answer == {"job_id": job_id, "status": after}
            assert (await row(running, job_id))["status"] == after
        else:
            assert refused_for(answer) == ["job_id"], before
            assert f"the job is {before}" in answer["error"]["message"]
            assert (await row(running, job_id))["status"] == before
            assert (await post(running, f"/backfill/{job_id}/{deed}", {})).status_code == 409
    unknown = await operator(running, f"backfill.{deed}", job_id=str(uuid4()))
    assert unknown["error"]["message"] == "job_id: no such backfill job"
    assert (await post(running, f"/backfill/{uuid4()}/{deed}", {})).status_code == 404


async def test_no_other_status_can_be_stored(running: RunningSystem) -> None:
    job_id = await created(await online(running, "status@example.org"))
    with pytest.raises(Exception, match="backfill_jobs_status_check"):
        await stands(running, job_id, "resting")


async def test_of_two_who_decide_at_once_one_is_told_that_it_is_too_late(running: RunningSystem) -> None:
    job_id = await created(await online(running, "race@example.org"))
    answers = await asyncio.gather(*(operator(running, "backfill.pause", job_id=job_id) for _ in range(4)))
    assert sorted("error" in answer for answer in answers) == [False, True, True, True]


@pytest.mark.scenario("S3-071")
async def test_list_backfill_jobs(running: RunningSystem) -> None:
    first, second = await online(running, "list-1@example.org"), await online(running, "list-2@example.org")
    one, two, three = await created(first), await created(first), await created(second)
    await operator(running, "backfill.pause", job_id=two)

    async def ids(**wanted: Any) -> list[str]:
        jobs = (await operator(running, "backfill.list", **wanted))["jobs"]
        return [job["job_id"] for job in jobs if job["endpoint_identity"].startswith("list-")]

    assert await ids() == [three, two, one]
    assert await ids(connector_type="imap", endpoint_identity=first.endpoint) == [two, one]
    assert await ids(endpoint_identity=first.endpoint, status="paused") == [two]
    assert await ids(connector_type="telegram") == []
    page = await operator(running, "backfill.list", endpoint_identity=first.endpoint, limit=1)
    assert [job["job_id"] for job in page["jobs"]] == [two]
    assert await ids(endpoint_identity=first.endpoint, cursor=page["next_cursor"]) == [one]
    [job] = (await operator(running, "backfill.list", endpoint_identity=second.endpoint))["jobs"]
    assert job.keys() >= SUMMARY
    assert (job["target_categories"], job["date_from"], job["status"]) == (["INBOX", "Sent"], "2025-01-01", "pending")
    response = await running.http.get(running.url(path="/api/backfill"), params={"status": "paused"})
    assert two in [job["job_id"] for job in response.json()["jobs"]]
    assert refused_for(await operator(running, "backfill.list", status="sleeping")) == ["status"]


async def test_the_command_line(running: RunningSystem) -> None:
    connector = await online(running, "cli@example.org")
    wanted = ("--category", "INBOX", "--from", "2025-01-01", "--to", "2025-01-31", "--daily-cost-cap", "50")
    job = await document(running, "backfill", "create", "imap", connector.endpoint, *wanted)
    assert job["status"] == "pending"
    assert await lines(running, "backfill", "pause", job["job_id"]) == [f"{job['job_id']}: paused"]
    assert (await document(running, "backfill", "resume", job["job_id"]))["status"] == "pending"
    refused = await cli(running, "backfill", "resume", job["job_id"], code=2)
    assert "the job is pending" in refused.stderr
    shown = await lines(running, "backfill", "list", "--endpoint", connector.endpoint)
    assert shown[0].split()[0] == job["job_id"]
    assert shown[1].strip() == "INBOX from 2025-01-01 to 2025-01-31: 0 processed, 0 skipped, 0 cents (0 of 50 today)"
    assert (await document(running, "backfill", "cancel", job["job_id"]))["status"] == "cancelled"
    listed = await document(running, "backfill", "list", "--status", "cancelled", "--type", "imap")
    assert job["job_id"] in [one["job_id"] for one in listed["jobs"]]


async def test_what_operators_decided_is_on_record(running: RunningSystem) -> None:
    job_id = await created(await online(running, "audit@example.org"))
    await operator(running, "backfill.cancel", job_id=job_id)

    async def entries() -> Any:
        listed = (await operator(running, "audit.list", operation="backfill.cancel"))["entries"]
        return [entry for entry in listed if entry["request_summary"] == {"job_id": job_id}]

    [entry] = await running.until(entries)
    assert (entry["result"], entry["actor"], entry["butler"]) == ("cancelled", "operator", "switchboard")


@pytest.mark.parametrize("deed", ["create_backfill_job", "backfill.pause", "backfill.cancel", "backfill.resume"])
@pytest.mark.parametrize("caller", ["finance", "connector-roles@example.org"])
async def test_only_operators_decide(running: RunningSystem, deed: str, caller: str) -> None:
    connector = await online(running, "roles@example.org")
    job_id = await created(connector)
    arguments = connector.named | PAST if deed == "create_backfill_job" else {"job_id": job_id}
    other = RemoteConnector(running=running, principal=caller, endpoint=connector.endpoint)
    assert refused_for(await other.ask(deed, **arguments)) == ["authorization"]
    assert (await post(running, f"/backfill/{job_id}/cancel", {}, caller=None)).status_code == 403
    assert (await row(running, job_id))["status"] == "pending"


# --- connectors ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-072")
async def test_poll_for_pending_backfill_job(running: RunningSystem) -> None:
    connector = await online(running, "poll@example.org")
    nothing = {"job_id": None, "params": None, "cursor": None}
    assert await connector.ask("backfill.poll", **connector.named) == nothing
    oldest, younger = await created(connector), await created(connector)
    before = running.clock.now()
    job = await connector.ask("backfill.poll", **connector.named)
    limits = {"rate_limit_per_hour": 100, "daily_cost_cap_cents": 500}
    assert job == {"job_id": oldest, "params": PAST | limits, "cursor": None}
    stored = await row(running, oldest)
    assert stored["status"] == "active"
    assert before <= stored["started_at"] <= running.clock.now()
    assert (await connector.ask("backfill.poll", **connector.named))["job_id"] == younger
    assert await connector.ask("backfill.poll", **connector.named) == nothing


async def test_of_many_who_poll_at_once_each_gets_another_job(running: RunningSystem) -> None:
    connector = await online(running, "many@example.org")
    jobs = {await created(connector) for _ in range(3)}
    answers = await asyncio.gather(*(connector.ask("backfill.poll", **connector.named) for _ in range(6)))
    given = [answer["job_id"] for answer in answers if answer["job_id"]]
    assert (len(given), {*given}) == (3, jobs)


async def test_a_job_that_somebody_has_in_hand_is_passed_over(running: RunningSystem) -> None:
    connector = await online(running, "hand@example.org")
    oldest, younger = await created(connector), await created(connector)
    async with running.database.transaction() as other:
        await other.execute("SELECT FROM switchboard.backfill_jobs WHERE job_id = $1 FOR UPDATE", UUID(oldest))
        async with asyncio.timeout(5):
            assert (await connector.ask("backfill.poll", **connector.named))["job_id"] == younger


async def test_a_job_goes_on_where_it_was(running: RunningSystem) -> None:
    connector = await online(running, "again@example.org")
    job_id = await created(connector)
    await connector.ask("backfill.poll", **connector.named)
    started = (await row(running, job_id))["started_at"]
    await reported(connector, job_id, cursor="uid 400")
    await operator(running, "backfill.pause", job_id=job_id)
    assert (await reported(connector, job_id, cursor="uid 500"))["status"] == "paused"
    assert (await connector.ask("backfill.poll", **connector.named))["job_id"] is None
    await operator(running, "backfill.resume", job_id=job_id)
    job = await connector.ask("backfill.poll", **connector.named)
    assert (job["job_id"], job["cursor"]) == (job_id, "uid 500")
    stored = await row(running, job_id)
    assert (stored["started_at"], stored["rows_processed"]) == (started, 20)


async def test_a_job_whose_connector_died_is_given_out_again(running: RunningSystem) -> None:
    connector = await online(running, "died@example.org")
    job_id = await created(connector)
    await connector.ask("backfill.poll", **connector.named)
    await reported(connector, job_id, cursor="uid 7")
    await running.database.execute(
        "UPDATE switchboard.backfill_jobs SET progress_at = $2 WHERE job_id = $1",
        UUID(job_id),
        running.clock.now() - timedelta(minutes=16),
    )
    job = await connector.ask("backfill.poll", **connector.named)
    assert (job["job_id"], job["cursor"]) == (job_id, "uid 7")


@pytest.mark.scenario("S3-073")
async def test_report_backfill_progress(running: RunningSystem) -> None:
    connector = await online(running, "progress@example.org")
    job_id = await created(connector, daily_cost_cap_cents=50)
    await connector.ask("backfill.poll", **connector.named)
    assert await reported(connector, job_id, cursor="a") == {
        "job_id": job_id,
        "status": "active",
        "cost_spent_today_cents": 20,
    }
    assert (await reported(connector, job_id, rows_skipped=4, cost_spent_cents=29))["status"] == "active"
    stored = await row(running, job_id)
    assert (stored["rows_processed"], stored["rows_skipped"], stored["cost_spent_cents"]) == (20, 5, 49)
    assert stored["cursor"] == "a"
    assert (await reported(connector, job_id, cost_spent_cents=1))["status"] == "cost_capped"
    assert (await row(running, job_id))["status"] == "cost_capped"
    # Its last words: counted, and the job stays where it is.
    assert (await reported(connector, job_id, cost_spent_cents=0, status="completed"))["status"] == "cost_capped"
    assert (await row(running, job_id))["rows_processed"] == 40


@pytest.mark.scenario("S3-073")
@pytest.mark.parametrize(("status", "error"), [("completed", None), ("error", "mailbox is gone")])
async def test_a_connector_says_how_a_job_ended(running: RunningSystem, status: str, error: str | None) -> None:
    connector = await online(running, f"{status}@example.org")
    job_id = await created(connector, daily_cost_cap_cents=20)
    await connector.ask("backfill.poll", **connector.named)
    told = {"error": error} if error else {}
    assert (await reported(connector, job_id, status=status, **told))["status"] == status
    stored = await row(running, job_id)
    assert (stored["status"], stored["error"], stored["completed_at"] is None) == (status, error, False)
    assert refused_for(await operator(running, "backfill.resume", job_id=job_id)) == ["job_id"]


async def test_the_cap_counts_a_utc_day(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    clock = MovedClock(datetime(2026, 1, 31, 23, 58, tzinfo=UTC))
    async with running_system(tmp_path, postgres_server, clock=clock) as running:
        connector = await online(running, "cap@example.org")
        job_id = await created(connector, daily_cost_cap_cents=20)
        await connector.ask("backfill.poll", **connector.named)
        assert (await reported(connector, job_id))["status"] == "cost_capped"
        await operator(running, "backfill.resume", job_id=job_id)
        assert (await connector.ask("backfill.poll", **connector.named))["job_id"] is None  # not today
        clock.by += timedelta(minutes=3)
        assert (await connector.ask("backfill.poll", **connector.named))["job_id"] == job_id
        assert (await reported(connector, job_id, cost_spent_cents=19))["status"] == "active"
        [job] = (await operator(running, "backfill.list"))["jobs"]
        assert (job["cost_spent_cents"], job["cost_spent_today_cents"]) == (39, 19)


async def test_a_connector_works_only_on_its_own_jobs(running: RunningSystem) -> None:
    connector = await online(running, "own@example.org")
    job_id = await created(connector)
    thief = a_connector(running, "own@example.org", principal="thief")
    assert refused_for(await thief.ask("backfill.poll", **connector.named)) == ["authorization"]
    await connector.ask("backfill.poll", **connector.named)
    assert refused_for(await reported(thief, job_id)) == ["authorization"]
    assert refused_for(await operator(running, "backfill.poll", **connector.named)) == ["authorization"]
    assert refused_for(await reported(connector, str(uuid4()))) == ["job_id"]
    assert refused_for(await reported(connector, job_id, rows_processed=-1)) == ["rows_processed"]
    assert refused_for(await reported(connector, job_id, status="paused")) == ["status"]
    unregistered = a_connector(running, "nobody")
    assert refused_for(await unregistered.ask("backfill.poll", **unregistered.named)) == ["endpoint_identity"]
    assert refused_for(await thief.ask("backfill.poll", **unregistered.named)) == ["authorization"]
    assert (await row(running, job_id))["rows_processed"] == 0


# --- all long-term tables --------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-061")
async def test_long_term_durable_tables(running: RunningSystem) -> None:
    """One message of a person, one decision of an operator: every table has something to tell, also after a restart."""
    await created(await online(running, "durable@example.org"))
    await running.says("My sister Anna was born on 12 May 1990. I paid the electricity bill, 80 euros.")
    tables = (
        *("butler_registry", "routing_log", "extraction_queue", "extraction_log", "notifications"),
        *("dashboard_audit_log", "backfill_jobs"),
    )

    async def counts() -> dict[str, int]:
        return {table: await running.database.fetchval(f"SELECT count(*) FROM switchboard.{table}") for table in tables}

    async def everywhere() -> bool:
        return all((await counts()).values())

    await running.until(everywhere)
    before = await counts()
    await running.restart()
    after = await counts()
    assert all(after[table] >= before[table] > 0 for table in tables), (before, after)
