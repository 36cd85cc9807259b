"""Where Spark puts what does not fit into memory: a folder for each process, swept by a later one if it was killed.

A folder's lock is held as long as its process lives. What nobody holds was left behind.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from butlers.storage.file_lock import FileLock, holding

_LOCKS = ".lock"  # beside the folder, so that removing the folder leaves nothing
_held: dict[Path, FileLock] = {}


def own_folder(root: Path) -> Path:
    """This process's folder; those of processes that are gone are removed."""
    mine = root / str(os.getpid())
    root.mkdir(parents=True, exist_ok=True)
    with holding(root / "sweeping"):
        for lock in root.glob(f"*{_LOCKS}"):
            _sweep(lock)
        mine.mkdir(exist_ok=True)
        if mine not in _held:
            _held[mine] = FileLock(mine.with_suffix(_LOCKS))
            _held[mine].hold()
    return mine


def _sweep(path: Path) -> None:
    folder, lock = path.with_suffix(""), FileLock(path)
    if folder in _held or not lock.try_hold():
        return
    shutil.rmtree(folder, ignore_errors=True)
    path.unlink(missing_ok=True)
    lock.release()
