"""What the files of a PostgreSQL server say about its process, and whether that is still true.

`postmaster.pid` names the process, its socket folder and its state. After a crash the file stays, and after a restart
of the machine or the container the number in it may belong to somebody else, so the file alone is never believed.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from butlers.clock import Clock
from butlers.storage.server_programs import HERE, ServerAccount, write_as

PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"

_NOBODYS_PID = 2**22  # one more than the largest process id there can be
_PROBE_TIMEOUT = 2.0  # seconds a server has to answer
_MAY_I_ENCRYPT = struct.pack("!ii", 8, 80877103)  # the protocol's SSLRequest: the shortest question there is
_LONGEST_FILE = 10_000  # bytes of a file of ours in the server's folder
_LOOK_EVERY_S = 0.2
_SETTLED_S = 30.0  # a server that lived this long is not in a loop of crashes
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 4.0  # after the death of a server that had started
_LONGEST_AFTER_FAILED_START_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """The process that the files in a data directory speak of."""

    pgdata: Path
    mark: str  # stands in the command line of our server and of no other process

    @property
    def pid(self) -> int | None:
        lines = self._lines()
        return int(lines[0]) if lines else None

    @property
    def socket_dir(self) -> Path | None:
        lines = self._lines()
        if len(lines) <= 4:
            return None
        return self.pgdata if lines[4] == HERE else Path(lines[4])

    @property
    def is_outdated(self) -> bool:
        """Whether an earlier version of this code started it: with a capability, and without passwords."""
        lines = self._lines()
        return len(lines) > 1 and lines[1] != HERE

    def is_running(self) -> bool:
        """Whether there is a server, be it still starting or already stopping."""
        return self._answers() or self.is_alive()

    def is_ready(self) -> bool:
        """Whether there is a server that takes connections."""
        lines = self._lines()
        return len(lines) > 7 and lines[7].strip() == "ready" and self._answers()

    def is_alive(self) -> bool:
        """Whether the process that the file names lives and is our server."""
        pid = self.pid
        if pid is None or not _is_alive(pid):
            return False
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return not Path("/proc").is_dir()  # where there is no /proc, the number has to do

    def disown(self, account: ServerAccount) -> None:
        """Make PostgreSQL see that its last server is dead, also when the number lives on.

        It takes any process of that number for a server and would refuse to start: a stranger, or the dead server
        itself that nobody has fetched. The rest of the file stays, because PostgreSQL finds in it whether children of
        the dead server still use the shared memory.
        """
        lines = self._lines()
        if not lines or not _is_alive(int(lines[0])):
            return
        write_as(account, self.pgdata, "postmaster.pid", "\n".join([str(_NOBODYS_PID), *lines[1:], ""]))
        (self.pgdata / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)

    def end_orphans(self) -> None:
        """End children of our dead server that have not noticed its death: they keep a new one from starting."""
        title = f"postgres: {self.mark}: ".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cmdline").read_bytes().startswith(title):
                    os.kill(int(process.name), signal.SIGKILL)

    def _lines(self) -> list[str]:
        """Process id, data directory, start time, port, socket folder, address, shared memory, state."""
        try:
            lines = read_plain(self.pgdata / "postmaster.pid").splitlines()
        except FileNotFoundError:
            return []
        return lines if lines and lines[0].strip().isdigit() else []

    def _answers(self) -> bool:
        socket_dir = self.socket_dir
        return socket_dir is not None and answers(socket_dir / SOCKET_NAME)


def read_plain(path: Path, *, end: bool = False) -> str:
    """The beginning or end of a file in a folder of the server's account, which might have put a link in its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_FILE) if end else 0)
        return file.read(_LONGEST_FILE).decode(errors="replace")


def remove_oldest(folder: Path, pattern: str, *, keep: int) -> None:
    """Remove the oldest files of a folder of the server's account, which might have put a link in its place."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        names = fnmatch.filter(os.listdir(descriptor), pattern)  # noqa: PTH208  a Path would follow the link
        written = {name: os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime for name in names}
        for old in sorted(names, key=written.__getitem__)[:-keep]:
            os.unlink(old, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def answers(address: Path) -> bool:
    """Whether a server speaks on a socket; being let in is not enough, a dying one still lets us in."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT)
        try:
            with _short(address) as name:
                probe.connect(name)
            probe.sendall(_MAY_I_ENCRYPT)
            return probe.recv(1) in (b"N", b"S")
        except OSError:
            return False


@contextmanager
def _short(address: Path) -> Iterator[str]:
    """A name of the socket that fits into the kernel's 108 bytes, however deep its folder lies."""
    folder = os.open(address.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{address.name}"
    finally:
        os.close(folder)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Server(Protocol):
    """What is watched: `EmbeddedPostgres`."""

    def is_alive(self) -> bool: ...

    def revive(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the watch last saw and did."""

    is_up: bool = True
    deaths: int = 0  # in a row, each soon after a start; 0 once a server has lived for a while
    restarts: int = 0  # that this process has made
    pause_s: float = 0.0  # until the next start, while it is down
    problem: Exception | None = None  # why the last start failed; of a server that is up, why the last look failed


def pause_before_restart(deaths: int, *, had_started: bool) -> float:
    """Seconds to wait before a start: none after the first death, then doubling up to the longest."""
    longest = _LONGEST_PAUSE_S if had_started else _LONGEST_AFTER_FAILED_START_S
    return 0.0 if deaths <= 1 else float(min(_FIRST_PAUSE_S * 2 ** (deaths - 2), longest))


class ServerWatch:
    """One process's watch over the server it uses."""

    def __init__(self, server: Server, *, clock: Clock, report: Callable[[ServerState], None]) -> None:
        self._server = server
        self._clock = clock
        self._report = report  # called from the watch's thread at every change
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="database watch", daemon=True)
        self.state = ServerState()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; waits for a start that is under way."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        started_at = self._clock.monotonic()
        while not self._ended.wait(_LOOK_EVERY_S):
            try:
                if self._look(started_at):
                    started_at = self._clock.monotonic()
            except Exception as error:  # no file descriptor left, a folder not readable: the next look may succeed
                if type(error) is not type(self.state.problem):  # told once, not five times a second
                    self._change(problem=error)

    def _look(self, started_at: float) -> bool:
        """Look once and act on it; true when the server has come up just now."""
        is_alive = self._server.is_alive()
        if self.state.is_up and self.state.problem is not None:
            self.state = replace(self.state, problem=None)  # the look before failed, this one did not
        if not is_alive:
            return self._restart()
        if not self.state.is_up:  # our start failed, and it lives: another user started it, or it took longer
            self._change(is_up=True, pause_s=0.0, problem=None)
            return True
        if self.state.deaths and self._clock.monotonic() - started_at >= _SETTLED_S:
            self.state = replace(self.state, deaths=0)
        return False

    def _restart(self) -> bool:
        """Wait as long as a server that keeps dying deserves, then try once."""
        deaths = self.state.deaths + 1
        pause = pause_before_restart(deaths, had_started=self.state.is_up)
        self._change(is_up=False, deaths=deaths, pause_s=pause)
        if self._ended.wait(pause):
            return False
        try:
            ours = self._server.revive()
        except Exception as error:  # whatever it is, the watch goes on
            self._change(problem=error)
            return False
        self._change(is_up=True, restarts=self.state.restarts + ours, pause_s=0.0, problem=None)
        return True

    def _change(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        with suppress(Exception):  # a report that fails keeps nobody from starting the server
            self._report(self.state)
