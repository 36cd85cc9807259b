"""PostgreSQL 18 from the lock file, in the data directory, for everybody who has no server of their own.

    <data_dir>/postgres          the server's files (PGDATA), made by initdb on first use
    <data_dir>/postgres.lock     held alone while the server is made, started or stopped
    <data_dir>/postgres.users    held together by every process that uses the server

Several processes may share one server. Whoever comes first starts it; whoever leaves last stops it. "Last" is found
by trying to hold `postgres.users` alone, and the kernel frees the hold of a process that was killed, so there is no
list of users that could go stale. A server whose users were all killed keeps running, and the next comer adopts it.

The server listens on a Unix socket only: no port to collide with, nothing reachable from the network, and the
folder's permissions are the access control.

Everything here blocks; async callers use `await asyncio.to_thread(server.start)`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from butlers.errors import ConfigurationError, InternalError
from butlers.storage.file_lock import FileLock, holding
from butlers.storage.server_account import ServerAccount, choose_account
from butlers.storage.server_process import PORT, SOCKET_NAME, ServerProcess
from butlers.storage.server_programs import run_program

_LONGEST_SOCKET_PATH = 100  # bytes; the kernel's limit is 104 or 108, depending on the system
_START_TIMEOUT = 60  # seconds; crash recovery after kill -9 is part of a start
_STOP_TIMEOUT = 60  # seconds
_RECOVERY_ATTEMPTS = 20  # starts after a crash, while processes of the dead server are still leaving
_RECOVERY_PAUSE = 0.25  # seconds between them
_POLL = 0.02  # seconds between two looks at a server that somebody else is starting

_SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgres-%a.log",  # one file per weekday, so that a week of log is kept
    "log_truncate_on_rotation": "on",
    "log_rotation_size": "0",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """One process's share in the server that lives in a data directory."""

    def __init__(self, data_dir: Path, *, durable: bool = True, max_connections: int = 200) -> None:
        self._data_dir = data_dir.absolute()
        self._pgdata = self._data_dir / "postgres"
        self._durable = durable  # False: faster, and a power cut may cost the data; for tests
        self._settings = _SETTINGS | {"max_connections": str(max_connections)}
        self._name = f"butlers-{hashlib.sha256(os.fsencode(self._pgdata)).hexdigest()[:16]}"
        self._process = ServerProcess(pgdata=self._pgdata, mark=self._name)
        self._users = FileLock(self._data_dir / "postgres.users")
        self._lock_path = self._data_dir / "postgres.lock"
        self._socket_dir: Path | None = None

    @property
    def pgdata(self) -> Path:
        return self._pgdata

    @property
    def pid(self) -> int | None:
        """The server's process id, if its files name one."""
        return self._process.pid

    def start(self) -> None:
        """Make the server's files if there are none, start it if it does not run, and count as a user of it."""
        if self._users.held:
            return
        self._data_dir.mkdir(parents=True, exist_ok=True)
        with holding(self._lock_path):
            account = choose_account(self._pgdata, source=str(self._data_dir))
            if not self._pgdata.exists():
                self._initialise(account)
            if not self._adopt():
                self._launch(account)
            self._users.share()

    def stop(self) -> bool:
        """Leave; true when nobody else uses the server, in which case it has been stopped."""
        if not self._data_dir.exists():
            return True
        with holding(self._lock_path):
            last = self._users.try_hold()
            try:
                if last and self._process.is_running():
                    self._shut_down()
            finally:
                self._users.release()
        return last

    def uri(self, database: str = "postgres") -> str:
        """The address of one database on this server, in the form every PostgreSQL client understands."""
        if self._socket_dir is None:
            raise InternalError("the embedded server has no address before it is started")
        host = quote(str(self._socket_dir), safe="")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={PORT}"

    def _initialise(self, account: ServerAccount) -> None:
        # A crash half-way leaves only this folder, which the next start throws away.
        unfinished = self._data_dir / "postgres.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account.own(unfinished)
        # The built-in locale is the same on every machine, installed locales are not.
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"]
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options += [] if self._durable else ["--no-sync"]
        self._run(account, "initdb", "--pgdata", str(unfinished), *options)
        log = unfinished / "log"
        log.mkdir(mode=0o700)
        account.own(log)
        unfinished.rename(self._pgdata)

    def _launch(self, account: ServerAccount) -> None:
        self._process.disown()
        socket_dir = self._prepare_socket_dir(account)
        settings = (
            self._settings
            | ({} if self._durable else _NOT_DURABLE)
            | {
                "port": str(PORT),
                "unix_socket_directories": '"' + str(socket_dir).replace('"', '""') + '"',
                "cluster_name": self._name,
            }
        )
        values = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
        log = f"--log={self._pgdata.name}/log/start.log"
        options = (f"--timeout={_START_TIMEOUT}", log, f"--options={values}")
        self._insist(lambda: self._pg_ctl(account, "start", *options))
        self._socket_dir = socket_dir

    def _insist(self, start: Callable[[], None]) -> None:
        # A server that was killed leaves its file of process ids, and for a moment its children, who hold on to the
        # shared memory: as long as they do, a new server refuses to start.
        attempts = _RECOVERY_ATTEMPTS if self._process.pid is not None else 1
        for _ in range(attempts - 1):
            try:
                return start()
            except ConfigurationError:
                time.sleep(_RECOVERY_PAUSE)
        return start()

    def _adopt(self) -> bool:
        """Use a server that already runs; wait for one that is still starting or recovering."""
        for _ in range(int(_START_TIMEOUT / _POLL)):
            if not self._process.is_running():
                return False
            if self._process.is_ready():
                # Its first owner may have had another temporary directory than we have.
                self._socket_dir = self._process.socket_dir
                return True
            time.sleep(_POLL)
        raise self._failure(f"a server is running but not ready after {_START_TIMEOUT} seconds")

    def _shut_down(self) -> None:
        account = choose_account(self._pgdata, source=str(self._data_dir))
        socket_dir = self._process.socket_dir
        self._pg_ctl(account, "stop", f"--timeout={_STOP_TIMEOUT}", "--mode=fast")
        if socket_dir is not None and socket_dir.name == self._name:
            shutil.rmtree(socket_dir, ignore_errors=True)

    def _prepare_socket_dir(self, account: ServerAccount) -> Path:
        if _fits(self._pgdata):
            return self._pgdata
        roomy = Path(tempfile.gettempdir()) / self._name
        short = roomy if _fits(roomy) else Path("/tmp") / self._name  # noqa: S108
        try:
            short.mkdir(mode=0o700)
            account.own(short)
        except FileExistsError:
            self._check_private(short, account)
        return short

    def _check_private(self, folder: Path, account: ServerAccount) -> None:
        # Anybody may write to the temporary directory: a folder that is not ours could be a trap.
        status = folder.lstat()
        if not folder.is_dir() or folder.is_symlink() or status.st_uid not in (account.uid, os.geteuid()):
            raise self._failure(f"{folder}, where the server's socket belongs, is somebody else's")
        folder.chmod(0o700)
        account.own(folder)

    def _pg_ctl(self, account: ServerAccount, action: str, *options: str) -> None:
        # The relative path is on purpose: pg_ctl hands it to a shell, which would read a `$` in the full one.
        self._run(account, "pg_ctl", action, "--wait", f"--pgdata={self._pgdata.name}", *options)

    def _run(self, account: ServerAccount, program: str, *arguments: str) -> None:
        complaint = run_program(account, program, *arguments, folder=self._data_dir)
        if complaint is not None:
            raise self._failure(complaint + self._last_words() if "could not start server" in complaint else complaint)

    def _last_words(self) -> str:
        """What the server itself wrote before it gave up."""
        newest = max((self._pgdata / "log").glob("*.log"), key=lambda log: log.stat().st_mtime, default=None)
        text = newest.read_text(errors="replace") if newest else ""
        return "".join(f" | {line.strip()}" for line in text.splitlines()[-20:] if "FATAL:" in line)

    def _failure(self, problem: str) -> ConfigurationError:
        return ConfigurationError(
            problem,
            source=str(self._data_dir),
            key="postgres",
            remedy=f"see {self._pgdata / 'log'}, choose another data directory, or set DATABASE_URL",
        )


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / SOCKET_NAME)) <= _LONGEST_SOCKET_PATH
