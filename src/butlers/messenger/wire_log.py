"""Evidence of what left the machine, for the case that the process does not live to say so.

Before the first byte of a part leaves, the attempt's id and the part's number are appended to the worker's own file:
one write(2), which survives the death of the process (though not of the machine). After a crash

    the part is in the file      the bytes may have left       -> uncertain, unless its receipt is on record
    the part is not in the file  they certainly did not        -> not sent, safe to try again
    file is missing, the machine was rebooted, or its worker may still live
                                 nothing is known              -> uncertain

The worker holds a lock on its file for life; only when the lock is free is the absence of an id a proof.

A file that has grown long is replaced by one with the marks of the attempts that are not settled yet: written and
locked beside it, then renamed over it, so that whoever looks finds the one or the other, locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self
from uuid import UUID

LONGEST_FILE = 4_000_000  # bytes: some ninety thousand attempts
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class WireLog:
    """The file of one worker."""

    def __init__(self, directory: Path, worker: str, *, longest: int = LONGEST_FILE) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = path_of(directory, worker)
        self._longest = longest
        self._open: dict[UUID, list[int]] = {}  # parts that left, of attempts that are not settled
        self._file = self._locked(self._path)
        self._size = self._write(self._file, f"boot {boot_id()}\n")

    def leaving(self, attempt_id: UUID, part: int = 1) -> None:
        if self._file.closed:
            raise OSError(errno.EBADF, "the evidence is closed", str(self._path))
        if self._size > self._longest:
            self._begin_anew()
        # On a line of its own, also behind a mark that was cut short.
        self._size += self._write(self._file, f"\n{attempt_id} {part}\n")
        self._open.setdefault(attempt_id, []).append(part)

    def settled(self, attempt_id: UUID) -> None:
        """Its outcome is on record: its marks say nothing any more."""
        self._open.pop(attempt_id, None)

    def close(self, *, keep: bool) -> None:
        """Let go. A worker that left nothing open takes its file away."""
        if not keep:
            self._path.unlink(missing_ok=True)
        self._file.close()

    def _begin_anew(self) -> None:
        """Where that fails, the long file goes on, and it is tried again when it is twice as long."""
        fresh = self._path.with_suffix(".begun")
        marks = "".join(f"\n{attempt} {part}\n" for attempt, parts in self._open.items() for part in parts)
        try:
            fresh.unlink(missing_ok=True)
            file = self._locked(fresh)
            size = self._write(file, f"boot {boot_id()}\n{marks}")
            fresh.replace(self._path)
        except OSError:
            self._longest *= 2
            return
        self._file.close()
        self._file, self._size = file, size

    def _locked(self, path: Path) -> IO[bytes]:
        file = path.open("ab", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def _write(self, file: IO[bytes], text: str) -> int:
        """All of it or an error: a full disk may take the beginning only, and half a mark proves nothing."""
        marked = text.encode()
        if file.write(marked) != len(marked):
            raise OSError(errno.ENOSPC, "the evidence was cut short", str(self._path))
        return len(marked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a worker's file says of its attempts, read once."""

    marks: Mapping[str, Sequence[int]] | None  # attempt -> parts that may have left; None: nothing is known

    @classmethod
    def read(cls, directory: Path, worker: str, *, alive: bool = False) -> Self:
        """`alive`: it is our own file, which is proof for what nobody has in hand."""
        path = path_of(directory, worker)
        try:
            with path.open("rb") as file:
                dead, text = alive or _is_dead(file, path), file.read().decode("ascii", "replace")
        except OSError:
            dead, text = False, ""
        if not dead or text.splitlines()[:1] != [f"boot {boot_id()}"]:
            return cls(marks=None)
        return cls(marks=_marks(text))

    def in_doubt(self, attempt_id: UUID, parts_sent: Collection[int]) -> int | None:
        """The part of an attempt that could have reached the provider without our knowing; None: no part."""
        if self.marks is None:
            return max(parts_sent, default=0) + 1
        return next((part for part in self.marks.get(str(attempt_id), ()) if part not in parts_sent), None)


def dead_workers(directory: Path) -> list[str]:
    """Workers whose file is there and whose lock is free. An empty file belongs to one that is just starting; not even
    its lock is tried, since that would keep its owner from taking it.
    """
    found = []
    for path in directory.glob("*.wire"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if path.stat().st_size and _is_dead(file, path):
                found.append(path.stem)
    return found


def living_workers(directory: Path) -> list[str]:
    """Workers whose lock is held: whatever their leases say, they are at it."""
    dead = set(dead_workers(directory))
    return [path.stem for path in directory.glob("*.wire") if path.stem not in dead]


def remove(directory: Path, worker: str) -> None:
    """Forget a dead worker's file once all its attempts are settled."""
    path = path_of(directory, worker)
    path.with_suffix(".begun").unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def boot_id() -> str:
    """Changes with every start of the machine; without it no file of an earlier process is trusted."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"unknown-{os.getpid()}"


def path_of(directory: Path, worker: str) -> Path:
    return directory / f"{worker}.wire"


def _is_dead(file: IO[bytes], path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask do not mislead each other
    except BlockingIOError:
        return False
    # A file that was replaced in between is free because its owner goes on in another.
    return os.path.samestat(os.fstat(file.fileno()), path.stat())


def _marks(text: str) -> dict[str, list[int]]:
    marks = defaultdict(list)
    for line in text.splitlines():
        identity, _, part = line.partition(" ")
        if part.isdecimal():
            marks[identity].append(int(part))
    return dict(marks)
