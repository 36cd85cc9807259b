"""The log file: it is renamed when it is large, a few old ones are kept, and a line that repeats itself is counted.

    butlers.jsonl      written now, by every process of the data directory
    butlers.jsonl.1    before that; .2, .3, ... are older, and the oldest is removed

Several processes write to one file (`butlers up` and `butlers run ROLE`). The one that finds it too large renames it
under a lock on the folder; the others see before their next line that the name belongs to another file, and open that.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from logging.handlers import WatchedFileHandler
from pathlib import Path

QUIET_S = 600.0  # a warning or an error that says the same again is written once in this time
_REMEMBERED = 1_000  # different lines


class RotatingFile(WatchedFileHandler):
    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        super().__init__(path, encoding="utf-8")
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep  # old files, beside the one that is written

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # a file that cannot be put aside is written to all the same
            if self.stream is not None and os.fstat(self.stream.fileno()).st_size >= self._max_bytes:
                self._rotate()
        super().emit(record)  # which opens the file anew when the name belongs to another one

    def _rotate(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.stat().st_size < self._max_bytes:
                return  # another process was quicker
            for number in range(self._keep, 0, -1):
                younger = self._old(number - 1) if number > 1 else self._path
                with suppress(FileNotFoundError):
                    younger.replace(self._old(number))
        finally:
            os.close(folder)

    def _old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class Repeats:
    """A filter that lets a failure's line pass when it begins and rarely while it lasts.

    `same` gives what two lines are compared by. A line that passes after some were held back says how many
    (`record.repeats`).
    """

    def __init__(self, same: Callable[[logging.LogRecord], Hashable], *, quiet_s: float = QUIET_S) -> None:
        self._same = same
        self._quiet_s = quiet_s
        self._written: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()  # when, and held back since

    def __call__(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = self._same(record)
        written_at, held_back = self._written.pop(key, (None, 0))
        if written_at is not None and 0 <= record.created - written_at < self._quiet_s:
            self._written[key] = (written_at, held_back + 1)
            return False
        self._written[key] = (record.created, 0)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        record.repeats = held_back
        return True
