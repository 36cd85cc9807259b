"""Evidence of what left the machine, for the case that the process does not live to say so.

Before the first byte of a part leaves, the attempt's id and the part's number are appended to the worker's own file:
one write(2), which survives the death of the process (though not of the machine). After a crash

    the part is in the file      the bytes may have left       -> uncertain, unless its receipt is on record
    the part is not in the file  they certainly did not        -> not sent, safe to try again
    file is missing, the machine was rebooted, or its worker may still live
                                 nothing is known              -> uncertain

The worker holds a lock on its file for life; only when the lock is free is the absence of an id a proof.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterator
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
        self._write(f"boot {boot_id()}\n")

    def leaving(self, attempt_id: UUID, part: int = 1) -> None:
        # On a line of its own, also behind a mark that was cut short.
        self._write(f"\n{attempt_id} {part}\n")

    def _write(self, text: str) -> None:
        """All of it or an error: a full disk may take the beginning only, and half a mark proves nothing."""
        marked = text.encode()
        if self._file.write(marked) != len(marked):
            raise OSError(errno.ENOSPC, "the evidence was cut short", str(self._path))

    def close(self, *, keep: bool) -> None:
        """Let go. A worker that left nothing open takes its file away."""
        if not keep:
            self._path.unlink(missing_ok=True)
        self._file.close()


def in_doubt(
    directory: Path, worker: str, attempt_id: UUID, parts_sent: Collection[int], *, alive: bool = False
) -> int | None:
    """The part of a gone worker's attempt that could have reached the provider without our knowing; None: no part."""
    try:
        with path_of(directory, worker).open("rb") as file:
            dead, text = alive or _is_dead(file), file.read().decode("ascii", "replace")
    except OSError:
        dead, text = False, ""
    if not dead or text.splitlines()[:1] != [f"boot {boot_id()}"]:
        return max(parts_sent, default=0) + 1
    return next((part for part in _parts_left(text, attempt_id) if part not in parts_sent), None)


def dead_workers(directory: Path) -> list[str]:
    """Workers whose file is there and whose lock is free. An empty file belongs to one that is just starting; not even
    its lock is tried, since that would keep its owner from taking it.
    """
    found = []
    for path in directory.glob("*.wire"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if path.stat().st_size and _is_dead(file):
                found.append(path.stem)
    return found


def living_workers(directory: Path) -> list[str]:
    """Workers whose lock is held: whatever their leases say, they are at it."""
    dead = set(dead_workers(directory))
    return [path.stem for path in directory.glob("*.wire") if path.stem not in dead]


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
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask do not mislead each other
    except BlockingIOError:
        return False
    return True


def _parts_left(text: str, attempt_id: UUID) -> Iterator[int]:
    for line in text.splitlines():
        identity, _, part = line.partition(" ")
        if identity == str(attempt_id) and part.isdecimal():
            yield int(part)
