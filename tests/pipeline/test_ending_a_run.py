"""A run that is told to end while Java starts: a row that says so, and no Java that stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from butlers.clock import SystemClock
from butlers.daemon.cli.exits import INTERRUPTED
from butlers.pipeline.runs import Runs
from butlers.pipeline.schema import MIGRATIONS
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

COMMAND = ("pipeline", "run", "delivery-stats", "--from", "2026-03-01", "--to", "2026-03-02", "--master", "local[1]")


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, MIGRATIONS) as uri:
        yield uri


def _java_below(pid: int) -> list[int]:
    """Children of a process that run Java; those that ended are gone."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if _program(child) == "java"]


def _program(pid: int) -> str:
    try:
        return Path(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]).name
    except OSError:
        return ""


@pytest.mark.heavy
@pytest.mark.timeout(300)  # Java and Spark start, on a machine that may be busy
@pytest.mark.parametrize(
    ("number", "tell"),
    [(signal.SIGTERM, os.kill), (signal.SIGINT, os.kill), (signal.SIGTERM, os.killpg), (signal.SIGHUP, os.killpg)],
    ids=["kill", "ctrl-C", "the whole group", "a terminal that closes"],
)
async def test_a_run_ended_while_java_starts(
    dsn: str, tmp_path: Path, number: signal.Signals, tell: Callable[[int, int], None]
):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "butlers.daemon.cli", *COMMAND, "--data-dir", str(tmp_path)),
        env=os.environ | {"DATABASE_URL": dsn},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    while not (started := _java_below(process.pid)):
        await asyncio.sleep(0.01)
    tell(process.pid, number)
    said, complained = await process.communicate()
    assert process.returncode == INTERRUPTED
    assert said == b""
    assert b"Traceback" not in complained
    assert b"Exception" not in complained
    for java in started:  # it ends when it hears nothing from us any more
        while _program(java) == "java":
            await asyncio.sleep(0.1)
    [run] = Runs(dsn).recent(now=SystemClock().now(), limit=5)
    assert (run["outcome"], run["error"]["class"]) == ("failed", "interrupted")
