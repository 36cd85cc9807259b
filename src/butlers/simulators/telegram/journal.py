"""The simulator's memory across restarts: one JSON line for each accepted change, in the order of acceptance.

A line is handed to the operating system before anybody is answered, so `kill -9` loses nothing that was
acknowledged. It can tear the last line; such a line was never acknowledged and is cut off at the next start.
A bad line anywhere else is not ours, and stops the start.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from butlers.errors import ConfigurationError

Entry = dict[str, Any]


class Journal(Protocol):
    def replay(self) -> Iterator[Entry]:
        """Everything written so far, oldest first."""

    def append(self, entry: Entry) -> None:
        """Keep one entry; on return it survives the process."""

    def close(self) -> None:
        """Let go of the file."""


class MemoryJournal:
    """For a simulator that may forget."""

    def replay(self) -> Iterator[Entry]:
        return iter(())

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

    def replay(self) -> Iterator[Entry]:
        good = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                yield self._parse(line, number)
                good += len(line)
        os.ftruncate(self._fd, good)

    def append(self, entry: Entry) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        before = os.fstat(self._fd).st_size
        try:
            _write_all(self._fd, line)
        except OSError:
            # Half a line in the middle would make the file unreadable for ever.
            os.ftruncate(self._fd, before)
            raise

    def close(self) -> None:
        os.close(self._fd)

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

    def _parse(self, line: bytes, number: int) -> Entry:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise ConfigurationError(
                "is not a line of a simulator's journal",
                source=str(self._path),
                key=f"line {number}",
                remedy="move the file away to start with an empty world",
            )
        return entry


def open_journal(path: Path | None) -> Journal:
    return MemoryJournal() if path is None else FileJournal(path)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
