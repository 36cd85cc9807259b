"""A real standalone cluster: executors read PostgreSQL, one of them is killed, and the rows are the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

import pyspark
import pytest

from butlers.clock import SystemClock
from butlers.pipeline.job import Window
from butlers.pipeline.process import run_in_process
from butlers.pipeline.runs import Runs
from butlers.pipeline.session import find_java
from butlers.storage.embedded import EmbeddedPostgres
from tests.pipeline.heartbeats import heartbeat_database
from tests.ports import free_port
from tests.unit.switchboard.connectors.reports import INSERT, SimulatedConnectors

START = datetime(2026, 3, 28, 6, tzinfo=UTC)
WINDOW = Window(start=START, end=START + timedelta(hours=48))
JOB = "connector-stats-hourly"
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    url: str
    page: str  # the master's own, as JSON
    workers: list[subprocess.Popen[bytes]]

    def busy(self) -> int:
        """Workers that have an executor at work."""
        with urlopen(self.page) as answer:
            return sum(worker["coresused"] > 0 for worker in json.load(answer)["workers"])

    def kill_one(self) -> None:
        """kill -9 of a worker and of the executor it started."""
        os.killpg(self.workers[0].pid, signal.SIGKILL)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers of one core each, from the package."""
    port, page = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    started = [_start(folder, "master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(page))]
    try:
        for _ in range(2):
            place = ("--host", HOST, "--cores", "1", "--memory", "1g", "--webui-port", "0")
            started.append(_start(folder, "worker.Worker", *place, url))
        yield Cluster(url=url, page=f"http://{HOST}:{page}/json/", workers=started[1:])
    finally:
        for process in started:
            _end(process)


def _start(folder: Path, what: str, *arguments: str) -> subprocess.Popen[bytes]:
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = os.environ | {
        "JAVA_HOME": str(find_java(os.environ, cache=folder)),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    return subprocess.Popen(
        [program, f"org.apache.spark.deploy.{what}", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # so that a worker goes together with its executors
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@asynccontextmanager
async def filled_database(server: EmbeddedPostgres) -> AsyncIterator[tuple[str, Callable[[], Awaitable[list[Any]]]]]:
    """A database with two days of a fleet, and a look at its hours."""
    reports = SimulatedConnectors(Random(5), START, hours=44).reports(20)
    async with heartbeat_database(server, (date(2026, 3, 1), date(2026, 4, 1))) as (dsn, database):
        await database.executemany(INSERT, [report.row() for report in reports])

        async def hours() -> list[Any]:
            return [tuple(row) for row in await database.fetch("SELECT * FROM switchboard.connector_stats_hourly")]

        yield dsn, hours


@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_a_worker_dies_in_the_middle_and_the_rows_are_the_same(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async def run(dsn: str, master: str) -> dict[str, Any]:
        return await run_in_process(JOB, WINDOW, dsn=dsn, master=master, lake=tmp_path, scratch=tmp_path / "scratch")

    async with filled_database(postgres_server) as (dsn, hours):
        alone = await run(dsn, "local[2]")
        expected = sorted(await hours())
    async with filled_database(postgres_server) as (dsn, hours):
        with cluster(tmp_path) as cores:
            await _until(lambda: cores.busy() == 0)  # the master answers
            running = asyncio.create_task(run(dsn, cores.url))
            await _until(lambda: running.done() or cores.busy() == 2)
            assert not running.done(), running
            cores.kill_one()
            together = await running
        assert sorted(await hours()) == expected
        [ran] = Runs(dsn).recent(now=SystemClock().now(), limit=5)
    assert len(expected) > 500
    assert (together["outcome"], together["rows_out"]) == (alone["outcome"], alone["rows_out"])
    assert (ran["master"], ran["spark_app_id"][:4]) == (cores.url, "app-")


async def _until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while True:
            with suppress(OSError):  # the master is still starting
                if await asyncio.to_thread(look):
                    return
            await asyncio.sleep(0.1)
