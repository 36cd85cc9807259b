"""Files that processes share: locks on them, and the folder that only its owner may look into.

The kernel gives a lock back when its holder dies, however it dies, so no lock here can be left behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from butlers.errors import ConfigurationError

_SUFFIX = ".alive"
SOURCE = "--data-dir"
_SETTINGS_FILE = "butlers.toml"  # an operator may put it there before the first start


class FileLock:
    """One holder of a lock on a file: shared with others, or exclusive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def share(self) -> None:
        """Hold the lock together with others; waits for an exclusive holder to leave."""
        self._lock(fcntl.LOCK_SH)

    def hold(self) -> None:
        """Hold the lock alone; waits for all others to leave."""
        self._lock(fcntl.LOCK_EX)

    def try_hold(self) -> bool:
        """Hold the lock alone if that is possible at once; a shared hold is given up either way."""
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        return True

    def release(self) -> None:
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        # Said aloud, because a forked child may still have the same open file, and closing ours would not be enough.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _lock(self, operation: int) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, operation)


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Do something while no other process does."""
    lock = FileLock(path)
    lock.hold()
    try:
        yield
    finally:
        lock.release()


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


def make_private(folder: Path) -> None:
    """Make a folder for its owner alone. One with content that others may enter is refused, not changed."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_open(folder) and not is_used(folder):
            folder.chmod(0o700)
        open_to_others = is_open(folder)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be created: {error.strerror}",
            source=SOURCE,
            key=str(folder),
            remedy="choose a folder that you may write to",
        ) from None
    if open_to_others:
        raise ConfigurationError(
            "other users may enter this folder, and it would hold passwords and messages",
            source=SOURCE,
            key=str(folder),
            remedy=f"run: chmod 700 {folder}",
        )


def is_open(folder: Path) -> bool:
    """Whether users other than the owner may enter, list or write a folder."""
    return bool(folder.stat().st_mode & 0o077)


def is_used(folder: Path) -> bool:
    """Whether a folder holds more than the settings: then somebody may rely on its permissions."""
    return any(path.name != _SETTINGS_FILE for path in folder.iterdir())
