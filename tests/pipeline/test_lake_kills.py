"""The stream and the compaction are killed ten times at work, while others write: every row is in the lake, once.

Each process is started while the one before is still at work, because Spark takes seconds to come up. Half of the kills
come soon after a commit, so that the window between the lake's log and Spark's own checkpoint is hit; the others at any
moment.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pyarrow.parquet
import pytest

from butlers.pipeline.lake.events import HEARTBEATS
from butlers.pipeline.lake.log import LakeLog
from butlers.storage.embedded import EmbeddedPostgres
from tests.pipeline.lake_system import LakeSystem, lake_system

KILLS = 10
SEED = 5
LOOK_S = 0.02
ANY_MOMENT_S = 4.0
SOON_S = 0.3


@pytest.mark.timeout(900)
@pytest.mark.heavy
async def test_ten_kills_lose_nothing_and_repeat_nothing(postgres_server: EmbeddedPostgres, tmp_path: Path):
    chance = random.Random(SEED)
    async with lake_system(postgres_server, tmp_path) as system, _writers(system, chance) as stop_writing:
        log = LakeLog(system.lake / HEARTBEATS.name)
        log.create(server=await system.server())
        current = await _start(system, tmp_path)
        try:
            for number in range(KILLS):
                following = asyncio.create_task(_start(system, tmp_path))
                _go(current)
                await _moment(current, log, chance, after_a_commit=number % 2 == 0)
                await _kill(current)
                current = await following
            _go(current)
            await stop_writing()
            written = sorted(map(str, await system.ids("switchboard.connector_heartbeat_log")))
            while log.state().rows < len(written):
                assert current.returncode is None, "the stream ended by itself"
                await asyncio.sleep(LOOK_S)
            current.send_signal(signal.SIGTERM)
            said, _ = await current.communicate()
        finally:
            await _kill(current)
        assert current.returncode == 0
        assert b"ended" in said
        stored = [value for path in log.state().files for value in _ids(system.lake / HEARTBEATS.name / path)]
        assert sorted(stored) == written
        assert len(stored) > 1000


async def _start(system: LakeSystem, folder: Path) -> Process:
    arguments = (system.dsn, str(system.lake), str(folder / "scratch"))
    command = (sys.executable, "-m", "tests.pipeline.lake_driver", *arguments)
    with (folder / "driver.log").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=errors, start_new_session=True
        )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


def _go(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def _moment(process: Process, log: LakeLog, chance: random.Random, *, after_a_commit: bool) -> None:
    if not after_a_commit:
        await asyncio.sleep(chance.uniform(0, ANY_MOMENT_S))
        return
    before = log.state().horizon
    while log.state().horizon == before:
        assert process.returncode is None, "the stream ended by itself"
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(chance.uniform(0, SOON_S))


async def _kill(process: Process) -> None:
    """The driver and its Java at once; Python workers see their sockets close."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


@asynccontextmanager
async def _writers(system: LakeSystem, chance: random.Random) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    over = asyncio.Event()
    tasks = [asyncio.create_task(_write(system, chance, over)) for _ in range(3)]

    async def stop() -> None:
        over.set()
        await asyncio.gather(*tasks)

    try:
        yield stop
    finally:
        await stop()


async def _write(system: LakeSystem, chance: random.Random, over: asyncio.Event) -> None:
    """Transactions of all sizes; some stay open while others commit, some are undone."""
    connection = await system.another_writer()
    while not over.is_set():
        transaction = connection.transaction()
        await transaction.start()
        await system.beat(chance.randint(1, 40), by=connection)
        await asyncio.sleep(chance.uniform(0, 0.3))
        await (transaction.rollback() if chance.random() < 0.1 else transaction.commit())
    await connection.close()


def _ids(path: Path) -> list[str]:
    found: list[str] = pyarrow.parquet.read_table(path, columns=["id"]).column("id").to_pylist()
    return found
