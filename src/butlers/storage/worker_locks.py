"""Who is alive, told by locks on files.

A worker holds a lock on a file of its name for as long as it lives, and the kernel frees the lock however the process
ended. So whoever starts next knows at once whose work was left behind, instead of waiting for leases to run out. The
locks are local: processes that share only a database learn of each other's death by the lease.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from butlers.storage.file_lock import FileLock

_SUFFIX = ".alive"


class WorkerLock:
    """One worker's sign of life."""

    def __init__(self, directory: Path, worker: str) -> None:
        self._path = directory / f"{worker}{_SUFFIX}"
        self._draft = directory / f"{worker}.new"
        self._lock = FileLock(self._draft)

    def hold(self) -> None:
        """Say that the worker lives."""
        self._draft.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It gets its name when it is locked: a file that is there and free is always a dead worker's.
        self._lock.hold()
        self._draft.replace(self._path)

    def release(self) -> None:
        """The worker ends and leaves nothing behind."""
        self._path.unlink(missing_ok=True)
        self._lock.release()


def dead_workers(directory: Path) -> list[str]:
    """Workers that ended without releasing their lock."""
    return sorted(path.stem for path in directory.glob(f"*{_SUFFIX}") if _is_free(path))


def forget(directory: Path, worker: str) -> None:
    """What a dead worker left has been taken over."""
    (directory / f"{worker}{_SUFFIX}").unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    lock = FileLock(path)
    with suppress(OSError):
        try:
            return lock.try_hold()
        finally:
            lock.release()
    return False
