"""A line of JSON for everything that happens to a message: ids and durations, never what it holds."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from pydantic_core import to_json

from butlers.clock import Clock
from butlers.telemetry import get_logger

WRITE_EVERY_S = 0.5
MOST_WAITING = 100_000  # lines; more are counted and left out
_LEFT_OUT = frozenset({"envelope", "partition"})
log = get_logger(__name__)


class EventLog:
    """Lines are written by a thread of their own: a slow disk holds up no message."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lines: list[bytes] = []
        self._left_out = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier events", daemon=True)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self._file is not None:
            self._file.close()

    def observe(self, event: str, stream: str, id: str, details: Mapping[str, Any]) -> None:
        if len(self._lines) >= MOST_WAITING:
            self._left_out += 1
            return
        shown = {name: value for name, value in details.items() if name not in _LEFT_OUT}
        at = self._clock.now().isoformat()
        self._lines.append(to_json({"at": at, "event": event, "stream": stream, "id": id, **shown}) + b"\n")

    def _run(self) -> None:
        while not self._ending.wait(WRITE_EVERY_S):
            self._write()
        self._write()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        left_out, self._left_out = self._left_out, 0
        if left_out:
            lines.append(to_json({"event": "left_out", "count": left_out}) + b"\n")
        try:
            if lines and self._file is not None:
                self._file.write(b"".join(lines))
                self._file.flush()
        except OSError as error:
            log.warning("the courier's event log cannot be written", error=error)
