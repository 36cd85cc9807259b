"""An append-only file of JSON lines: what the mail store did, in order.

A record is handed to the kernel with one `write` before anybody is told that the mail was accepted, so it survives a
`kill -9` of the simulator. It is not forced to disk: a simulator need not survive a power cut.

A process killed inside `write` may leave half a line at the end. That half line was never acknowledged, so opening
the file cuts it off. Damage anywhere else is not ours and stops the start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from butlers.errors import ConfigurationError


class Journal:
    """One open journal file, or none: without a path everything stays in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None if path is None else _open(path)

    def records(self) -> Iterator[dict[str, Any]]:
        """Everything written so far; a torn last line is cut off the file first."""
        if self._path is None or self._descriptor is None:
            return
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._descriptor, whole)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            yield self._decode(line, number)

    def append(self, record: dict[str, Any]) -> None:
        """Hand one record to the kernel."""
        if self._descriptor is None:
            return
        remaining = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]

    def clear(self) -> None:
        """Forget everything."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _decode(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ConfigurationError(
                "not a journal record",
                source=str(self._path),
                key=f"line {number}",
                remedy="move the file away to start with empty mailboxes",
            )
        return record


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
