"""Whose work was left behind is told by locks that the kernel frees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from butlers.storage.files import WorkerLock, dead_workers, forget

_WORKER = """
import sys, time
from pathlib import Path
from butlers.storage.files import WorkerLock
WorkerLock(Path(sys.argv[1]), sys.argv[2]).hold()
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_worker_is_dead_at_once_and_a_living_one_is_not(tmp_path: Path):
    living = WorkerLock(tmp_path, "living")
    living.hold()
    other = subprocess.Popen([sys.executable, "-c", _WORKER, tmp_path, "killed"], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    assert dead_workers(tmp_path) == []
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    other.stdout.close()
    assert dead_workers(tmp_path) == ["killed"]
    forget(tmp_path, "killed")
    assert dead_workers(tmp_path) == []
    living.release()
    assert list(tmp_path.iterdir()) == []


def test_nobody_is_dead_where_nobody_was(tmp_path: Path):
    assert dead_workers(tmp_path / "nothing") == []
