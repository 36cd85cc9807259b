"""`kill -9` of the embedded database under traffic: it is back by itself, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2

from butlers.storage.embedded import EmbeddedPostgres
from tests.system import RunningSystem, running_system

MESSAGES = 24  # by each of the two ways in
CHATS = range(7001, 7005)
BUTLERS = ("switchboard", "messenger", "general")
PATIENT_S = 120.0  # the machine may be busy; `scripts/chaos database` measures how long it takes


async def hand_in(running: RunningSystem, number: int) -> str:
    """At the HTTP door, as a caller does: the same event again until it is accepted. Returns the request's id."""
    body = running.envelope(f"handed in {number}", external_event_id=f"event-{number}")

    async def accepted() -> str:
        try:
            response = await running.http.post(running.url(path="/api/ingest"), json=body)
        except httpx2.TransportError:
            return ""
        assert response.status_code in (202, 503), response.text
        return str(response.json()["request_id"]) if response.status_code == 202 else ""

    return await running.until(accepted, deadline_s=PATIENT_S)


def killable_system(tmp_path: Path, postgres_server: EmbeddedPostgres) -> AbstractAsyncContextManager[RunningSystem]:
    """With an embedded database of its own; durable, so that what callers were told is written when it is killed."""
    return running_system(tmp_path, postgres_server, names=BUTLERS, database_url=None, database_durable=True)


def postmaster(running: RunningSystem) -> int:
    pid = EmbeddedPostgres(running.settings.data_dir).pid
    assert pid is not None
    return pid


async def test_a_killed_database_is_back_and_everything_accepted_is_finished_once(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with killable_system(tmp_path, postgres_server) as running:
        killed = postmaster(running)
        half = MESSAGES // 2
        handed_in = [asyncio.create_task(hand_in(running, number)) for number in range(half)]
        for number in range(half):
            await running.says(f"note number {number}", chat=CHATS[number % len(CHATS)])
        os.kill(killed, signal.SIGKILL)
        handed_in += [asyncio.create_task(hand_in(running, number)) for number in range(half, MESSAGES)]
        for number in range(half, MESSAGES):
            await running.says(f"note number {number}", chat=CHATS[number % len(CHATS)])

        requests = await asyncio.gather(*handed_in)
        assert len(set(requests)) == MESSAGES
        for request in requests:
            assert (await running.finished(request, deadline_s=PATIENT_S))["lifecycle_state"] == "parsed"
        expected = Counter(f"[general] Noted: note number {number}" for number in range(MESSAGES))

        async def answers() -> Counter[str]:
            return Counter([text for chat in CHATS for text in await running.answers(chat)])

        async def all_answered() -> bool:
            return expected <= await answers()

        await running.until(all_answered, deadline_s=PATIENT_S)
        assert await answers() == expected
        assert postmaster(running) != killed
        assert await database_part(running) == {"part": "database", "state": "ok", "restarts": 1}


async def database_part(running: RunningSystem) -> dict[str, Any]:
    """What `/readyz` says of the database, once everything is ready."""

    async def ready() -> dict[str, Any]:
        response = await running.http.get(running.url(path="/readyz"))
        return response.json() if response.status_code == 200 else {}

    document = await running.until(ready, deadline_s=PATIENT_S)
    [part] = [part for part in document["parts"] if part["part"] == "database"]
    return dict(part)


async def test_a_database_that_does_not_come_back_is_named_by_readyz_and_served_when_it_does(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with killable_system(tmp_path, postgres_server) as running:
        pgdata = running.settings.data_dir / "postgres"
        control = pgdata / "global" / "pg_control"
        hidden = pgdata / "hidden"
        control.rename(hidden)
        os.kill(postmaster(running), signal.SIGKILL)

        async def failing() -> dict[str, Any]:
            response = await running.http.get(running.url(path="/readyz"))
            parts = [part for part in response.json()["parts"] if part["part"] == "database"]
            return parts[0] if response.status_code == 503 and parts[0].get("deaths", 0) > 1 else {}

        part = await running.until(failing, deadline_s=PATIENT_S)
        assert part["state"] == "failing"
        assert "The embedded database died" in part["sentence"]
        assert "postgres/log" in part["remedy"]
        assert (await running.http.get(running.url(path="/healthz"))).status_code == 200

        hidden.rename(control)
        assert (await database_part(running))["state"] == "ok"
        assert (await running.finished(await hand_in(running, 1), deadline_s=PATIENT_S))["lifecycle_state"] == "parsed"
