"""The fixtures themselves: no server and no folder survives a test session, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.database import SESSION_DIRECTORY, ServerDirectory

TESTS = """
import os, signal
import pytest

@pytest.mark.parametrize("number", range(4))
async def test_passes(empty_database, number):
    assert await empty_database.fetchval("select 1") == 1

async def test_fails(empty_database):
    assert await empty_database.fetchval("select 1") == 2

async def test_breaks_in_the_middle_of_a_transaction(empty_database):
    async with empty_database.transaction() as connection:
        await connection.execute("no such statement")

async def test_dies(empty_database):
    if os.environ.get("KILL"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path so short that the server's socket lies inside, and its command line names it."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def run_session(folder: Path, *options: str, kill: bool = False) -> subprocess.CompletedProcess[str]:
    """A pytest of its own, with our fixtures, whose temporary files lie in a folder."""
    suite = folder / "suite"
    suite.mkdir()
    (folder / "t").mkdir()
    (suite / "conftest.py").write_text("from tests.conftest import *")
    (suite / "test_suite.py").write_text(TESTS)
    (suite / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", SESSION_DIRECTORY))
    }
    environment |= {"TMPDIR": str(folder / "t"), "PYTHONPATH": str(Path(__file__).parents[3])}
    environment |= {"KILL": "1"} if kill else {}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # most of the time of so short a session
    plugins = ["-p", "pytest_asyncio.plugin", *(["-p", "xdist.plugin"] if "-n" in options else [])]
    command = [sys.executable, "-m", "pytest", str(suite), "-q", "-p", "no:cacheprovider", *plugins, *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def servers_in(folder: Path) -> list[str]:
    """Command lines of all servers that work in a folder; they name it nowhere else."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = (process / "cwd").readlink()
        except OSError:
            continue
        if place.is_relative_to(folder) and "postgres" in command:
            found.append(command)
    return found


def left_in(folder: Path) -> list[Path]:
    return list((folder / "t").glob("butlers-*"))


@pytest.mark.parametrize("options", [[], ["-n", "2"]])
def test_nothing_is_left_when_tests_fail(folder: Path, options: list[str]):
    done = run_session(folder, *options)

    assert "2 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert servers_in(folder) == []
    assert left_in(folder) == []


def test_nothing_is_left_when_a_worker_is_killed(folder: Path):
    done = run_session(folder, "-n", "1", "--max-worker-restart=0", kill=True)

    assert "crashed" in done.stdout, done.stdout + done.stderr
    assert servers_in(folder) == []
    assert left_in(folder) == []


def test_what_a_killed_session_leaves_is_cleared_by_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch):
    done = run_session(folder, kill=True)
    abandoned = servers_in(folder)
    monkeypatch.setattr("tempfile.tempdir", str(folder / "t"))
    following = ServerDirectory()
    left, running = left_in(folder), servers_in(folder)
    following.remove()

    assert done.returncode == -signal.SIGKILL
    assert abandoned != []
    assert running == []
    assert left == [following.path]


def test_a_living_session_is_not_cleared(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    living = ServerDirectory()
    server = EmbeddedPostgres(living.path, durable=False)
    server.start()
    following = ServerDirectory()

    assert living.path.exists()
    assert server.pid is not None
    following.remove()
    server.stop()
    living.remove()
    assert list(folder.iterdir()) == []
