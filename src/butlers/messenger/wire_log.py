"""Evidence of what left the machine, for the case that the process does not live to say so.

Before the first byte of an attempt leaves, its id is appended to the worker's own file: one write(2), which survives
the death of the process (though not of the machine). After a crash

    id is in the file            the bytes may have left       -> uncertain
    id is not in the file        they certainly did not        -> not sent, safe to try again
    file is missing, the machine was rebooted, or its worker may still live
                                 nothing is known              -> uncertain

The worker holds a lock on its file for life; only when the lock is free is the absence of an id a proof.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO
from uuid import UUID

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class WireLog:
    """The file of one worker."""

    def __init__(self, directory: Path, worker: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = path_of(directory, worker)
        self._file = self._path.open("ab", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file.write(f"boot {boot_id()}\n".encode())

    def leaving(self, attempt_id: UUID) -> None:
        self._file.write(f"{attempt_id}\n".encode())

    def close(self, *, keep: bool) -> None:
        """Let go. A worker that left nothing open takes its file away."""
        if not keep:
            self._path.unlink(missing_ok=True)
        self._file.close()


def may_have_left(directory: Path, worker: str, attempt_id: UUID) -> bool:
    """Whether an attempt of a worker that is gone could have reached the provider."""
    try:
        with path_of(directory, worker).open("rb") as file:
            return not _is_dead(file) or not _proves_absence(file.read().decode("ascii", "replace"), attempt_id)
    except OSError:
        return True


def dead_workers(directory: Path) -> list[str]:
    """Workers whose file is there and whose lock is free."""
    found = []
    for path in directory.glob("*.wire"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if _is_dead(file):
                found.append(path.stem)
    return found


def remove(directory: Path, worker: str) -> None:
    """Forget a dead worker's file once all its attempts are settled."""
    path_of(directory, worker).unlink(missing_ok=True)


def boot_id() -> str:
    """Changes with every start of the machine; without it no file of an earlier process is trusted."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"unknown-{os.getpid()}"


def path_of(directory: Path, worker: str) -> Path:
    return directory / f"{worker}.wire"


def _is_dead(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _proves_absence(text: str, attempt_id: UUID) -> bool:
    lines = text.splitlines()
    return lines[:1] == [f"boot {boot_id()}"] and str(attempt_id) not in lines
