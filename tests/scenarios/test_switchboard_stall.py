"""Ten thousand messages into a butler that stands still."""

from __future__ import annotations

import asyncio
from pathlib import Path

from butlers.clock import SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.overload import admitted, crowded, hand_in, hand_in_all, message, stalled
from tests.scenarios.switchboard_door import all_finished
from tests.system import RunningSystem, running_system

BATCHES, BATCH = 20, 500
FLOOD = BATCHES * BATCH
# A channel alone has 25 + 100 places to wait in and 50 + 200 to be stored in.
ROOM = "max_waiting = 200\nmax_stored = 400"
ACCEPTED, STORED = 125, 250
OTHERS = ("email", "mcp", "telegram")
FAST_S = 2.0  # on a machine that does nothing else it is a hundredth of that


async def accepted_in(running: RunningSystem, channel: str, number: int) -> float:
    """The seconds until another channel's message was accepted."""
    clock = SystemClock()
    began = clock.monotonic()
    response = await hand_in(running, f"{channel} {number}", channel=channel)
    assert response.status_code == 202, response.text
    return clock.monotonic() - began


async def flood(running: RunningSystem, number: int) -> int:
    """One batch of the flood; how many of it were refused."""
    results = await hand_in_all(running, [message(running, f"flood {number} {n}") for n in range(BATCH)])
    refused = [result["error"] for result in results if "error" in result]
    assert all((error["class"], error["retryable"]) == ("overload_rejected", True) for error in refused)
    return len(refused)


async def test_ten_thousand_messages_into_a_stalled_butler(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = crowded(tmp_path, admission=ROOM)
    refused, waits = 0, list[float]()
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        async with stalled(running):
            for number in range(BATCHES):
                flooding = asyncio.create_task(flood(running, number))
                waits += await asyncio.gather(*(accepted_in(running, channel, number) for channel in OTHERS))
                refused += await flooding

        assert refused == FLOOD - STORED
        assert await admitted(running, "api") == {
            "accepted": ACCEPTED,
            "deferred": STORED - ACCEPTED,
            "rejected": FLOOD - STORED,
        }
        for channel in OTHERS:
            assert await admitted(running, channel) == {"accepted": BATCHES}
        waits.sort()
        assert waits[len(waits) * 9 // 10] < FAST_S, f"accepting took {waits[-5:]} s"
        await all_finished(running, deadline_s=120)
        query = "select source_channel, lifecycle_state, count(*) from switchboard.message_inbox group by 1, 2"
        ended = {(row[0], row[1]): row[2] for row in await running.database.fetch(query)}
        assert ended.pop(("api", "parsed")) == STORED
        assert {channel for channel, _ in ended} == {*OTHERS}
        assert sum(ended.values()) == BATCHES * len(OTHERS)
