"""`kill -9` of the embedded database under traffic: it is back by itself, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.system import RunningSystem, running_system

MESSAGES = 60
CHATS = range(7001, 7009)
PATIENT_S = 120.0  # the machine may be busy; `scripts/chaos database` measures how long it takes


async def hand_in(running: RunningSystem, number: int) -> str:
    """As a caller does: the same event again until it is accepted. Returns the request's id."""
    chat = str(CHATS[number % len(CHATS)])
    body = running.envelope(f"note number {number}", external_event_id=f"event-{number}", external_thread_id=chat)
    body |= {
        "source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "butlers_sim_bot"},
        "sender": {"identity": chat},
    }

    async def accepted() -> str:
        try:
            response = await running.http.post(running.url(path="/api/ingest"), json=body)
        except httpx2.TransportError:
            return ""
        assert response.status_code in (202, 503), response.text
        return str(response.json()["request_id"]) if response.status_code == 202 else ""

    return await running.until(accepted, deadline_s=PATIENT_S)


def postmaster(running: RunningSystem) -> int:
    pid = EmbeddedPostgres(running.settings.data_dir).pid
    assert pid is not None
    return pid


async def readiness(running: RunningSystem) -> dict[str, Any]:
    document: dict[str, Any] = (await running.http.get(running.url(path="/readyz"))).json()
    return document


async def is_ready(running: RunningSystem) -> bool:
    return (await running.http.get(running.url(path="/readyz"))).status_code == 200


async def wait_for_readiness(running: RunningSystem) -> None:
    await running.until(lambda: is_ready(running), deadline_s=PATIENT_S)


async def test_a_killed_database_is_back_and_everything_accepted_is_finished_once(
    tmp_path: Path, postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_system(tmp_path, postgres_server, database_url=None, database_durable=True) as running:
        killed: list[int] = []

        async def kill_after(accepted: int) -> None:
            async def enough() -> bool:
                return sum(task.done() for task in tasks) >= accepted

            await running.until(enough, deadline_s=PATIENT_S)
            killed.append(postmaster(running))
            os.kill(killed[-1], signal.SIGKILL)

        tasks = [asyncio.create_task(hand_in(running, number)) for number in range(MESSAGES // 2)]
        await kill_after(10)
        tasks += [asyncio.create_task(hand_in(running, number)) for number in range(MESSAGES // 2, MESSAGES)]
        requests = await asyncio.gather(*tasks)

        assert len(set(requests)) == MESSAGES
        for request in requests:
            assert (await running.finished(request, deadline_s=PATIENT_S))["lifecycle_state"] == "parsed"
        answers = Counter([text for chat in CHATS for text in await running.answers(chat)])
        assert answers == Counter(f"[general] Noted: note number {number}" for number in range(MESSAGES))
        assert postmaster(running) not in killed
        await wait_for_readiness(running)
        [database] = [part for part in (await readiness(running))["parts"] if part["part"] == "database"]
        assert (database["state"], database["restarts"]) == ("ok", 1)
