"""A request that ends its process is quarantined after three deaths; whatever died with it is finished."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.processes.poisoned_system import DEATH, NAMES
from tests.system import RunningSystem, running_system


@asynccontextmanager
async def process_of(running: RunningSystem) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.processes.poisoned_system",
        running.settings.model_dump_json(),
        cwd=Path(__file__).parents[3],
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ingested(running: RunningSystem, text: str) -> str:
    """The request; the process may still be starting."""

    async def accepted() -> str:
        try:
            response = await running.http.post(running.url(path="/api/ingest"), json=running.envelope(text))
        except httpx2.TransportError:
            return ""
        return str(response.json()["request_id"]) if response.status_code == 202 else ""

    return await running.until(accepted, deadline_s=120)


async def test_three_deaths_are_enough_and_the_innocent_are_served(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=NAMES, start=False) as running:
        async with process_of(running) as first:
            patient = await ingested(running, "a patient note")

            async def in_hand() -> bool:
                return bool(await running.database.fetchval("select count(*) from general.route_inbox"))

            await running.until(in_hand)
            poison = await ingested(running, "this is poison")
            assert await asyncio.wait_for(first.wait(), 60) == DEATH
        for _ in range(2):
            async with process_of(running) as again:
                assert await asyncio.wait_for(again.wait(), 120) == DEATH
        async with process_of(running) as last:
            late = await ingested(running, "I paid the electricity bill")
            for innocent in (patient, late):
                assert (await running.finished(innocent, deadline_s=120))["lifecycle_state"] == "parsed"
            trace = await running.finished(poison, deadline_s=120)
            assert trace["lifecycle_state"] == "errored"
            assert trace["lifecycle_error"]["message"].startswith("quarantined after 3 attempts that did not end")
            response = await running.http.get(
                running.url(path="/api/requests/dead-letters"), params={"request_id": poison}
            )
            (letter,) = response.json()["dead_letters"]
            assert (letter["failure_category"], letter["replay_eligible"]) == ("quarantined", True)
            assert last.returncode is None
        # Mended meanwhile: the same request, replayed by an operator, is worked on once more and ends well.
        await running.start()
        assert await replayed(running, poison) == "parsed"


async def replayed(running: RunningSystem, request_id: str) -> str:
    """How the request ends when an operator replays it, a second time if need be.

    Where Switchboard gave up before the butler did, the butler's own count of deaths answers the first replay.
    """

    async def ended() -> str:
        trace = (await running.http.get(running.url(path=f"/api/requests/{request_id}"))).json()
        return str(trace["lifecycle_state"]) if trace["lifecycle_state"] in ("parsed", "errored") else ""

    state = ""
    while state != "parsed":
        letters = await running.http.get(
            running.url(path="/api/requests/dead-letters"), params={"request_id": request_id}
        )
        open_letters = [letter for letter in letters.json()["dead_letters"] if letter["replay_count"] == 0]
        if not open_letters:
            break
        replay = running.url(path=f"/api/requests/dead-letters/{open_letters[0]['id']}/replay")
        answer = await running.http.post(replay, json={"reason": "mended"}, headers=running.bearer())
        assert answer.status_code == 200, answer.text
        state = await running.until(ended)
    return state
