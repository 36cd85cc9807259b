"""A stop, or a start with fewer channels, costs no message: what was accepted leaves once, now or after the next start.

The stop comes at the worst moments: while an intent is being written down, while claims are under way, under load.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from tests.ports import free_port
from tests.scenarios.messenger_door import (
    attempts,
    beside,
    changed_roster,
    execute,
    fault,
    hurry,
    mail_fault,
    mails,
    refusal,
    route,
    rows,
    wish,
)
from tests.system import RunningSystem, running_system

LOAD = 120
BYE = "[health] bye"  # as it arrives


def send(running: RunningSystem, message: str = "bye", **fields: Any) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(execute(running, route(running, wish(message, **({"recipient": "61"} | fields)))))


@asynccontextmanager
async def admission_held(running: RunningSystem) -> AsyncIterator[None]:
    """Nothing is committed meanwhile: somebody else has the lock."""
    async with running.database.transaction() as connection:
        await connection.fetchval("select name from messenger.rate_buckets where name = 'lock' for update")
        yield


async def committing(running: RunningSystem) -> bool:
    query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    return bool(await running.database.fetchval(query))


async def stopping(running: RunningSystem) -> bool:
    return running.butler("messenger").state == "stopping"


async def nothing_open(running: RunningSystem) -> bool:
    return not any(row["status"] in ("pending", "in_progress", "awaiting_retry") for row in await rows(running))


def standing(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["status"], row["attempts"], row["terminal_error_class"]


async def test_what_is_being_written_down_when_the_stop_comes_still_leaves(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=["messenger"]) as running:
        async with admission_held(running):
            asked = send(running)
            await running.until(lambda: committing(running))
            stop = asyncio.create_task(running.stop())
            await running.until(lambda: stopping(running))
            await asyncio.wait([stop], timeout=0.2)
        await stop
        assert (await asked)["result"]["notify_response"]["delivery"]["status"] == "delivered"
        assert [standing(row) for row in await rows(running)] == [("delivered", 1, None)]
        assert await running.answers(61) == [BYE]


async def test_what_is_written_down_after_the_time_to_stop_is_over_leaves_after_the_start(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    soon = (r"^\[butler\.registry\]", "[butler.shutdown]\ntimeout_s = 0.2\n\n[butler.registry]")
    roster = changed_roster(tmp_path, "messenger", soon)
    async with running_system(tmp_path, postgres_server, names=["messenger"], roster_dir=roster) as running:
        async with admission_held(running):
            asked = send(running)
            await running.until(lambda: committing(running))
            stop = asyncio.create_task(running.stop())
            await asyncio.wait([stop], timeout=1.0)
        await stop
        await asyncio.gather(asked, return_exceptions=True)
        [row] = await rows(running)
        assert row["status"] in ("pending", "in_progress")
        assert await running.answers(61) == []
        await running.start()
        await running.until(lambda: nothing_open(running))
        assert [row["status"] for row in await rows(running)] == ["delivered"]
        assert await running.answers(61) == [BYE]


async def test_a_stop_under_load_leaves_nothing_failed_and_nothing_in_doubt(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=["messenger"]) as running:
        await fault(running, "delay", seconds=0.15, times=None)
        asked: list[asyncio.Task[dict[str, Any]]] = []

        async def load() -> None:
            for number in range(LOAD):
                asked.append(send(running, recipient=str(1000 + number), idempotency_key=f"k{number}"))
                await asyncio.sleep(0.008)  # the pace of the load, not a wait for anything

        async def well_under_way() -> bool:
            return len(await rows(running)) > LOAD // 4

        loading = asyncio.create_task(load())
        await running.until(well_under_way)
        await running.stop()
        await loading
        await asyncio.gather(*asked, return_exceptions=True)
        assert {row["status"] for row in await rows(running)} <= {"delivered", "pending", "awaiting_retry"}
        await running.start()
        await running.until(lambda: nothing_open(running))
        done = await rows(running)
        assert Counter(row["status"] for row in done) == {"delivered": len(done)}
        assert all([await running.answers(int(row["target_identity"])) == [BYE] for row in done])


@asynccontextmanager
async def without_mail(running: RunningSystem, tmp_path: Path) -> AsyncIterator[RunningSystem]:
    """Another process on the same database, which does not serve mail."""
    off = (r"^\[modules\.email\.bot\]", "[modules.email.bot]\nenabled = false")
    roster = load_roster(changed_roster(tmp_path, "messenger", off))
    async with beside(replace(running, roster=roster), ["messenger"], messenger=free_port()) as process:
        yield process


async def greylisted(running: RunningSystem, key: str) -> dict[str, Any]:
    """A mail that has to wait: its row."""
    await mail_fault(running, phase="rcpt", kind="reply", code=451, text="4.7.1 greylisted")
    fields = {"channel": "email", "recipient": "friend@far.example", "subject": "s", "idempotency_key": key}
    asked = send(running, **fields)

    async def waits() -> list[dict[str, Any]]:
        waiting = [row for row in await rows(running) if row["status"] == "awaiting_retry"]
        return [row for row in waiting if row["idempotency_key"] not in seen]

    seen = {row["idempotency_key"] for row in await rows(running) if row["status"] == "awaiting_retry"}
    [row] = await running.until(waits)
    asked.cancel()
    return row


async def test_a_process_leaves_the_deliveries_of_a_channel_it_does_not_serve_alone(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=["messenger"]) as running:
        waiting, late = [await greylisted(running, key) for key in ("waits", "expires")]
        await running.stop()
        async with without_mail(running, tmp_path) as process:
            await fault(process, "error_5xx", status=502)
            asked = send(process)

            async def failed_once() -> bool:
                return len(await attempts(running)) == 3

            await running.until(failed_once)
            past = running.clock.now() - timedelta(seconds=1)
            await running.database.execute(
                "update messenger.delivery_requests set not_after = $2 where id = $1", late["id"], past
            )
            await hurry(running)
            assert (await asked)["status"] == "ok"  # claimed in a round in which the mails were due

            async def expired() -> bool:
                return (late["id"], "expired") in {(row["id"], row["status"]) for row in await rows(running)}

            await running.until(expired)
            mail = next(row for row in await rows(running) if row["id"] == waiting["id"])
            assert (mail["status"], mail["attempts"]) == ("awaiting_retry", 1)
            refused = await refusal(process, wish("hello", channel="email", recipient="a@b.example", subject="s"))
            assert "not served" in refused["message"]
        await running.start()
        await hurry(running)
        await running.until(lambda: nothing_open(running))
        assert sorted(row["status"] for row in await rows(running)) == ["delivered", "delivered", "expired"]
        assert len(await mails(running)) == 1
