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
from typing import Any

from butlers.errors import ConfigurationError

Entry = dict[str, Any]


class Journal:
    """One file, held by one process at a time; without a path, a simulator that may forget."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            remedy = "stop it, or give this one a path of its own"
            raise self._mistake("another simulator is using this journal", "journal", remedy) from None
        with path.open("rb") as lines:  # bytes of whole lines; what lies beyond was never acknowledged
            self._whole = sum(len(line) for line in lines if line.endswith(b"\n"))

    def replay(self, apply: Callable[[Entry], None]) -> None:
        """Hand over everything written so far, oldest first."""
        if self._path is None:
            return
        self._cut()
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    apply(json.loads(line))
                except (ValueError, LookupError, TypeError, AttributeError) as problem:
                    remedy = "move the file away to start anew"
                    what = "is not a line of this simulator's journal"
                    raise self._mistake(what, f"line {number}", remedy) from problem

    def append(self, entry: Entry) -> None:
        """Keep one entry; on return it survives the process. On OSError nothing of it was kept."""
        if self._path is None:
            return
        line = left = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        self._cut()
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self._cut()
            raise
        self._whole += len(line)

    def close(self) -> None:
        if self._path is not None:
            os.close(self._fd)

    def _cut(self) -> None:
        if os.fstat(self._fd).st_size > self._whole:
            os.ftruncate(self._fd, self._whole)

    def _mistake(self, problem: str, key: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(problem, source=str(self._path), key=key, remedy=remedy)
