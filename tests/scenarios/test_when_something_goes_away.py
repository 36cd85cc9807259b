"""A butler, Messenger or the database is away for a moment: nothing is lost, nothing is said twice."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from butlers.clock import SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import beside
from tests.system import RunningSystem, running_system

ALL_BUT_GENERAL = ["switchboard", "messenger", "finance", "health", "relationship", "travel"]
ALL_BUT_MESSENGER = ["switchboard", "general", "finance", "health", "relationship", "travel"]
KILL_BUSY_BACKENDS = """
    select count(pg_terminate_backend(pid)) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and application_name = 'butlers'
"""


async def said_once(running: RunningSystem, *texts: str) -> bool:
    return sorted(await running.answers()) == sorted(f"[general] Noted: {text}" for text in texts)


async def test_a_message_waits_for_a_butler_that_starts_later(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=ALL_BUT_GENERAL, heartbeat_s=0.2) as running:
        reply = await running.ingest("nobody is there for this yet")

        async def put_off() -> bool:
            query = "select not_before is not null and lifecycle_state = 'accepted' from switchboard.message_inbox"
            return bool(await running.database.fetchval(query))

        await running.until(put_off)
        async with beside(running, ["general"]):
            trace = await running.finished(reply["request_id"], deadline_s=60)
            assert trace["lifecycle_state"] == "parsed"
            assert await said_once(running, "nobody is there for this yet")


async def test_a_message_is_given_up_when_the_patience_is_used_up(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=ALL_BUT_GENERAL, request_patience_s=0) as running:
        trace = await running.finished((await running.ingest("is anybody there?"))["request_id"])
        assert trace["lifecycle_state"] == "errored"
        assert trace["lifecycle_error"]["class"] == "routing_error"


async def test_an_answer_waits_for_a_messenger_that_restarts(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, names=ALL_BUT_MESSENGER, heartbeat_s=0.2) as running:
        reply = await running.ingest("say it when you can")

        async def worked_on() -> int:
            count: int = await running.database.fetchval(
                "select count(*) from general.entries where answer is not null"
            )
            return count

        await running.until(worked_on)
        async with beside(running, ["messenger"]):
            trace = await running.finished(reply["request_id"], deadline_s=30)
            assert trace["lifecycle_state"] == "parsed"
            assert await said_once(running, "say it when you can")


async def test_every_message_survives_broken_database_connections(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    texts = [f"note number {number}" for number in range(40)]
    async with running_system(tmp_path, postgres_server, lease_ttl_s=2, lease_renew_s=0.5) as running:
        replies = []
        for number, text in enumerate(texts):
            response = await running.http.post(running.url(path="/api/ingest"), json=running.envelope(text))
            while response.status_code == 503:  # explicit and retryable, never a 500
                assert response.json()["error"]["retryable"] is True
                response = await running.http.post(running.url(path="/api/ingest"), json=running.envelope(text))
            assert response.status_code == 202, response.text
            replies.append(response.json())
            if number % 10 == 5:
                await running.database.fetchval(KILL_BUSY_BACKENDS)
        for reply in replies:
            await running.finished(reply["request_id"], deadline_s=60)
        answers = await running.answers()
        assert len(answers) == len(set(answers))
        uncertain = await running.database.fetchval(
            "select count(*) from messenger.delivery_requests where status = 'uncertain'"
        )
        assert uncertain == 0
        assert await said_once(running, *texts)


async def test_stopping_with_answers_under_way_sends_them_first(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    texts = [f"note number {number}" for number in range(6)]
    async with running_system(tmp_path, postgres_server) as running:
        await running.control(
            "POST", "/faults", {"method": "sendMessage", "kind": "delay", "seconds": 0.2, "times": None}
        )
        for text in texts:
            await running.ingest(text)
        before = running.clock.monotonic()
        await running.stop()
        assert running.clock.monotonic() - before < 15
        left = await running.database.fetch(
            "select status from messenger.delivery_requests where status <> 'delivered'"
        )
        assert left == []
        await running.control("DELETE", "/faults")
        await running.start()

        async def all_said() -> bool:
            return await said_once(running, *texts)

        await running.until(all_said, deadline_s=30)


class SteppingClock(SystemClock):
    """The machine's clock, set forward in the middle."""

    def __init__(self) -> None:
        self._step = timedelta()

    def now(self) -> datetime:
        return super().now() + self._step

    def step(self, seconds: float) -> None:
        self._step += timedelta(seconds=seconds)


async def test_a_clock_set_forward_does_not_make_a_living_send_uncertain(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    clock = SteppingClock()
    async with running_system(tmp_path, postgres_server, clock=clock) as running:
        await running.control("POST", "/faults", {"method": "sendMessage", "kind": "delay", "seconds": 1.0})
        reply = await running.ingest("a slow one")

        async def under_way() -> int:
            query = "select count(*) from messenger.delivery_requests where status = 'in_progress'"
            count: int = await running.database.fetchval(query)
            return count

        await running.until(under_way)
        clock.step(30)
        trace = await running.finished(reply["request_id"])
        assert [delivery["status"] for delivery in trace["deliveries"]] == ["delivered"]
        assert await said_once(running, "a slow one")


async def test_what_is_possible_only_later_waits_in_the_buffer_and_holds_no_worker(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    texts = [f"note number {n}" for n in range(5)]  # more than the buffer has workers
    async with running_system(tmp_path, postgres_server, messenger_patience_s=0) as running:
        await running.database.execute(
            "update messenger.channel_states set state = 'open', generation = generation + 1,"
            " trip_reason = 'a test', tripped_at = now(), probe_at = now() + interval '1 minute'"
            " where name = 'telegram.bot'"
        )
        replies = [await running.ingest(text) for text in texts]

        async def all_put_off() -> bool:
            query = "select count(*) from switchboard.message_inbox where not_before > now() + interval '20 seconds'"
            return bool(await running.database.fetchval(query) == len(texts))

        await running.until(all_put_off)
        assert await running.answers() == []
        assert await running.database.fetchval("select count(*) from messenger.delivery_requests") == 0
        await running.database.execute("update messenger.channel_states set state = 'closed'")
        await running.database.execute("update switchboard.message_inbox set not_before = now()")
        for reply in replies:
            assert (await running.finished(reply["request_id"], deadline_s=60))["lifecycle_state"] == "parsed"
        assert await said_once(running, *texts)
