"""Where Spark puts what does not fit into memory: a folder for each process, swept by a later one if it was killed.

A folder's lock is held as long as its process lives. What nobody holds was left behind. Names are drawn, because two
containers that share a disk may give the same number to their processes; and nobody ever waits for a lock.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from butlers.storage.locks import FileLock

_LOCK = ".lock"  # beside the folder, so that removing the folder leaves nothing


def own_folder(root: Path) -> Path:
    """A folder of this process, until it ends; those of processes that are gone are removed."""
    root.mkdir(parents=True, exist_ok=True)
    for left in root.glob(f"*{_LOCK}"):
        with suppress(OSError):  # another user's, or a file system without locks: not ours to judge
            _sweep(left)
    mine = root / uuid4().hex
    with suppress(OSError):
        FileLock(mine.with_suffix(_LOCK)).try_hold()  # and never released: the kernel does that
    mine.mkdir()
    return mine


def _sweep(path: Path) -> None:
    lock = FileLock(path)
    if lock.try_hold():
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        path.unlink(missing_ok=True)
        lock.release()
