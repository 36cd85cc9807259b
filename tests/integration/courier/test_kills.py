"""A gateway with a journal, killed under load: what was accepted is acked, queued or dead, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from butlers.courier.client import CourierClient
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri
from tests.integration.courier.gateway import DEADLINE_S, INBOX, envelope
from tests.integration.courier.process import served

KILLS, MANY_KILLS = 3, 20
PRODUCERS = 4
FEWEST = 100  # messages that are accepted between two kills


class Load:
    """Producers and a consumer, and what they know: ids that were accepted (HTTP 200), ids whose ack was sent."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.acked: set[str] = set()
        self.delivered: Counter[str] = Counter()
        self.poisoned: set[str] = set()
        self._dice = random.Random(7)
        self._number = 0

    async def until_killed(self, url: str, process: asyncio.subprocess.Process) -> None:
        async with CourierClient(url, timeout_s=DEADLINE_S) as client:
            work = [asyncio.create_task(self._produce(client)) for _ in range(PRODUCERS)]
            work.append(asyncio.create_task(self._consume(client)))
            goal = len(self.accepted) + FEWEST + self._dice.randrange(FEWEST)
            async with asyncio.timeout(DEADLINE_S):
                while len(self.accepted) < goal and not any(task.done() for task in work):
                    await asyncio.sleep(self._dice.random() / 100)
            process.kill()
            await process.wait()
            ended = await asyncio.gather(*work, return_exceptions=True)
        assert len(self.accepted) >= goal, ended  # they ended because of the kill

    async def _produce(self, client: CourierClient) -> None:
        while True:
            self._number += 1
            id = f"m{self._number}"
            await client.post("/v1/enqueue", {"envelope": envelope(id)})
            self.accepted.add(id)

    async def _consume(self, client: CourierClient) -> None:
        async with client.subscribe(INBOX) as jen:
            await jen.grant(20)
            async for frame in jen.frames():
                id = frame["deliver"]["id"]
                self.delivered[id] += 1
                if int(id[1:]) % 50 == 0:
                    self.poisoned.add(id)
                    await jen.say(nack=id, lease=frame["lease"], credit=1, **{"as": "poison"})
                elif int(id[1:]) % 7:  # the others are left leased, so that every kill finds some
                    self.acked.add(id)
                    await jen.ack(frame, credit=1)
                else:
                    await jen.grant(1)


async def left(url: str) -> tuple[set[str], set[str]]:
    """The ids that are still queued, taken one by one, and the dead ones."""
    found: set[str] = set()
    async with CourierClient(url) as client, client.subscribe(INBOX) as jen:
        audit = await client.get("/v1/audit", stream=INBOX)
        assert audit["balanced"]
        queued = audit["groups"]["default"]["queued"]
        await jen.grant(max(1, queued))
        frames = jen.frames()
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < queued:
                frame = await anext(frames)
                found.add(frame["deliver"]["id"])
                await jen.ack(frame)
        dead = await client.get("/v1/dead", stream=INBOX)
    return found, {one["id"] for one in dead["messages"]}


async def kill_under_load(folder: Path, journal: str, kills: int) -> None:
    config = folder / "courier.yaml"
    config.write_text(f"journal: {journal}\ngateway: {{port: 0, messagesPerMinute: null}}\n")
    load = Load()
    for _ in range(kills):
        async with served("--config", str(config)) as (url, process):
            await load.until_killed(url, process)
    async with served("--config", str(config)) as (url, _):
        queued, dead = await left(url)
    again = sum(times - 1 for times in load.delivered.values())
    print(
        f"{kills} kills: {len(load.accepted)} accepted, {len(load.acked)} acked, {len(queued)} queued and "
        f"{len(dead)} dead at the end, {again} delivered again"
    )
    assert len(load.accepted) >= kills * FEWEST
    assert load.accepted <= load.acked | queued | dead, "accepted and lost"
    assert dead <= load.poisoned
    assert load.poisoned & load.accepted <= dead | queued


@pytest.mark.timeout(300)
async def test_killed_under_load_every_accepted_message_is_acked_queued_or_dead(tmp_path: Path):
    await kill_under_load(tmp_path, f"{{kind: jsonl, path: '{tmp_path / 'journal.jsonl'}'}}", KILLS)


@pytest.mark.heavy
@pytest.mark.timeout(1_200)
async def test_killed_twenty_times_with_a_file(tmp_path: Path):
    await kill_under_load(tmp_path, f"{{kind: jsonl, path: '{tmp_path / 'journal.jsonl'}'}}", MANY_KILLS)


@pytest.mark.heavy
@pytest.mark.timeout(1_200)
async def test_killed_twenty_times_with_postgres(tmp_path: Path, postgres_server: EmbeddedPostgres):
    async with cloned_database_uri(postgres_server) as dsn:
        await kill_under_load(tmp_path, f"{{kind: postgres, dsn: '{dsn}'}}", MANY_KILLS)
