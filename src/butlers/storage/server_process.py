"""What the files of a PostgreSQL server say about its process, and whether that is still true.

`postmaster.pid` names the process, its socket folder and its state. After a crash the file stays, and after a restart
of the machine or the container the number in it may belong to somebody else, so the file alone is never believed.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

PORT = 5432
SOCKET_NAME = f".s.PGSQL.{PORT}"

_NOBODYS_PID = 2**22  # one more than the largest process id there can be
_PROBE_TIMEOUT = 2.0  # seconds a server has to answer
_MAY_I_ENCRYPT = struct.pack("!ii", 8, 80877103)  # the protocol's SSLRequest: the shortest question there is


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
        return Path(lines[4]) if len(lines) > 4 else None

    def is_running(self) -> bool:
        """Whether there is a server, be it still starting or already stopping."""
        return self._answers() or self._is_ours()

    def is_ready(self) -> bool:
        """Whether there is a server that takes connections."""
        lines = self._lines()
        return len(lines) > 7 and lines[7].strip() == "ready" and self._answers()

    def disown(self) -> None:
        """Make PostgreSQL see that its last server is dead, also when the number lives on.

        It takes any process of that number for a server and would refuse to start: a stranger, or the dead server
        itself that nobody has fetched. The rest of the file stays, because PostgreSQL finds in it whether children of
        the dead server still use the shared memory.
        """
        lines = self._lines()
        if not lines or not _is_alive(int(lines[0])):
            return
        self._file.write_text("\n".join([str(_NOBODYS_PID), *lines[1:], ""]))
        if len(lines) > 4:
            (Path(lines[4]) / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)

    @property
    def _file(self) -> Path:
        return self.pgdata / "postmaster.pid"

    def _lines(self) -> list[str]:
        """Process id, data directory, start time, port, socket folder, address, shared memory, state."""
        try:
            return self._file.read_text().splitlines()
        except FileNotFoundError:
            return []

    def _answers(self) -> bool:
        socket_dir = self.socket_dir
        return socket_dir is not None and answers(socket_dir / SOCKET_NAME)

    def _is_ours(self) -> bool:
        pid = self.pid
        if pid is None or not _is_alive(pid):
            return False
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return not Path("/proc").is_dir()  # where there is no /proc, the number has to do


def answers(address: Path) -> bool:
    """Whether a server speaks on a socket; being let in is not enough, a dying one still lets us in."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT)
        try:
            probe.connect(str(address))
            probe.sendall(_MAY_I_ENCRYPT)
            return probe.recv(1) in (b"N", b"S")
        except OSError:
            return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
