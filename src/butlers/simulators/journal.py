"""A simulator's memory across restarts: one JSON line for each accepted change, in the order of acceptance.

    accepted  =  the whole line, newline included, is with the operating system

A line is written before anybody is answered, so `kill -9` loses nothing that was acknowledged; it is not forced to
disk, because a simulator need not survive a power cut. Two things can leave half a line:

    killed within a write     it is the last line; the next start cuts it off
    the write itself fails    (full disk) the caller is refused and the half line is cut off at once, or, should that
                              fail too, before the next line is written

Either way it was never acknowledged, and it never ends up in the middle. A bad line anywhere else is not ours, and
stops the start.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from butlers.errors import ConfigurationError

Entry = dict[str, Any]


class Journal(Protocol):
    def replay(self, apply: Callable[[Entry], None]) -> None:
        """Everything written so far, oldest first."""

    def append(self, entry: Entry) -> None:
        """Keep one entry; on return it survives the process. On OSError nothing of it was kept."""

    def close(self) -> None:
        """Let go of the file."""


class MemoryJournal:
    """For a simulator that may forget."""

    def replay(self, apply: Callable[[Entry], None]) -> None:
        pass

    def append(self, entry: Entry) -> None:
        pass

    def close(self) -> None:
        pass


class FileJournal:
    """One file, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock()
        self._whole = _end_of_last_line(path)  # bytes of whole lines; what lies beyond was never acknowledged

    def replay(self, apply: Callable[[Entry], None]) -> None:
        self._cut()
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                self._apply(apply, line, number)

    def append(self, entry: Entry) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        self._cut()
        try:
            _write_all(self._fd, line)
        except OSError:
            self._cut()
            raise
        self._whole += len(line)

    def close(self) -> None:
        os.close(self._fd)

    def _cut(self) -> None:
        if os.fstat(self._fd).st_size > self._whole:
            os.ftruncate(self._fd, self._whole)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise ConfigurationError(
                "another simulator is using this journal",
                source=str(self._path),
                key="journal",
                remedy="stop it, or give this one a path of its own",
            ) from None

    def _apply(self, apply: Callable[[Entry], None], line: bytes, number: int) -> None:
        try:
            apply(json.loads(line))
        except (ValueError, LookupError, TypeError, AttributeError) as problem:
            raise ConfigurationError(
                "is not a line of this simulator's journal",
                source=str(self._path),
                key=f"line {number}",
                remedy="move the file away to start anew",
            ) from problem


def open_journal(path: Path | None) -> Journal:
    return MemoryJournal() if path is None else FileJournal(path)


def _end_of_last_line(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(len(line) for line in lines if line.endswith(b"\n"))


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
