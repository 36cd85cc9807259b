"""What people write is remembered by Switchboard without any model, and consolidated by its own cron."""

from __future__ import annotations

from pathlib import Path

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import call
from tests.system import RunningSystem, running_system

TOLD = "Anna's birthday is 4 May"


async def episodes(running: RunningSystem) -> list[str]:
    rows = await running.database.fetch("select content, speaker from switchboard.memory_episodes order by created_at")
    return [f"{row['speaker']}: {row['content']}" for row in rows]


async def test_a_message_becomes_an_episode_and_then_a_fact(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        await running.finished((await running.ingest(TOLD))["request_id"])

        async def kept() -> bool:
            return await episodes(running) == [f"api:tests:tester: {TOLD}"]

        await running.until(kept)
        await running.database.execute(
            "update switchboard.scheduled_tasks set next_run_at = $1 where name = 'memory-consolidation'",
            running.clock.now(),
        )

        async def known() -> list[str]:
            async with running.mcp("switchboard") as client:
                await call(client, "tick")
                found = await call(client, "memory_recall", {"query": "Anna birthday"})
            return [line["content"] for line in found["memories"] if line["kind"] == "fact"]

        assert any("4 May" in fact for fact in await running.until(known))
