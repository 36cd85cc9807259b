"""How much memory this process and all that it started hold at their most, from /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_S = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Peak:
    """In megabytes, of the JVM and of the Python workers below it."""

    def __init__(self) -> None:
        self.mb = 0.0

    def look(self) -> None:
        held = sum(_resident(process) for process in descendants(os.getpid()))
        self.mb = max(self.mb, round(held / 1e6, 1))


@contextmanager
def watching(peak: Peak) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            peak.look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        peak.look()


def descendants(process: int) -> Iterator[int]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:
            continue  # it ended
        for child in map(int, found):
            yield child
            yield from descendants(child)


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0
