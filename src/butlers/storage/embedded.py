"""PostgreSQL 18 from the lock file, in the data directory, for everybody who has no server of their own.

    <data_dir>/postgres          the server's files (PGDATA) and its socket, made on first use
    <data_dir>/postgres.secret   the password of the role that the system logs in with (server_programs.py)
    <data_dir>/postgres.lock     held alone while the server is made, started or stopped
    <data_dir>/postgres.users    held together by every process that uses the server

Several processes may share one server. The first one starts it; the last one to leave stops it. "Last" is found by
trying to hold `postgres.users` alone, and the kernel frees the hold of a process that was killed, so there is no list
of users that could go stale. A server whose users were all killed keeps running, and the next comer adopts it. A
server that dies while it has users is started again by one of them (`revive`, called by `ServerWatch`).

The server listens on a Unix socket only, in its own folder: no port to collide with, nothing reachable from the
network, nothing in a folder of others. It runs with that folder as its working directory and calls it
`/proc/self/cwd`. So it needs no right to enter the folders above, and the length of their names does not matter.

Everything here blocks; async callers use `await asyncio.to_thread(server.start)`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from butlers.errors import ConfigurationError, InternalError
from butlers.storage import server_programs
from butlers.storage.files import FileLock, holding, make_private
from butlers.storage.server_process import PORT, SOCKET_NAME, ServerProcess, read_plain, remove_oldest
from butlers.storage.server_programs import HERE, ServerAccount, choose_account, run_program

_LONGEST_SOCKET_PATH = 100  # bytes; the kernel's limit is 104 or 108, depending on the system
_START_TIMEOUT = 60  # seconds; crash recovery after kill -9 is part of a start
_STOP_TIMEOUT = 60  # seconds
_RECOVERY_ATTEMPTS = 20  # starts after a crash, while processes of the dead server are still leaving
_RECOVERY_PAUSE = 0.25  # seconds between them
_PATIENCE_WITH_ORPHANS = 4  # failed starts after which the children of the dead server are ended
_POLL = 0.02  # seconds between two looks at a server that somebody else is starting

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_directories": HERE,
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgres-%Y%m%d-%H%M%S.log",  # a new one each day, or when it is large; see prune_logs
    "log_checkpoints": "off",  # a line every few minutes about nothing
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """One process's share in the server that lives in a data directory."""

    def __init__(
        self,
        data_dir: Path,
        *,
        durable: bool = True,
        max_connections: int = 200,
        log_bytes: int = 10 << 20,  # of one log file
        log_keep: int = 5,  # older log files
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._pgdata = self._data_dir / "postgres"
        self._secret_file = self._data_dir / server_programs.PASSWORD_FILE
        self._durable = durable  # False: faster, and a power cut may cost the data; for tests
        self._name = f"butlers-{hashlib.sha256(os.fsencode(self._pgdata)).hexdigest()[:16]}"
        self._settings = (
            _SETTINGS
            | {"max_connections": str(max_connections), "cluster_name": self._name}
            | {"log_rotation_size": f"{max(1, log_bytes >> 10)}kB"}
            | ({} if durable else _NOT_DURABLE)
        )
        self._log_keep = log_keep
        self._process = ServerProcess(pgdata=self._pgdata, mark=self._name)
        self._users = FileLock(self._data_dir / "postgres.users")
        self._lock_path = self._data_dir / "postgres.lock"
        self._folder: int | None = None  # an open descriptor of the server's folder, while we use the server
        self._secret = ""

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
        make_private(self._data_dir)
        with holding(self._lock_path):
            account = self._account()
            if not self._pgdata.exists():
                self._initialise(account)
            self._stop_outdated(account)
            if server_programs.read_secret(self._secret_file) is None:
                self._convert(account)
            if not self._adopt():
                self._launch(account)
            self.prune_logs()
            self._secret = server_programs.read_secret(self._secret_file) or ""
            self._folder = os.open(self._pgdata, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._users.share()

    def is_alive(self) -> bool:
        """Whether the server's process lives; it may still be starting."""
        return self._process.is_alive()

    def revive(self) -> bool:
        """Start the server again when it is dead; false when it lives, perhaps because another user was faster."""
        with holding(self._lock_path):
            if self._adopt():
                return False
            self._launch(self._account())
            return True

    def prune_logs(self) -> None:
        """Remove the oldest of the server's log files; it starts new ones and removes none."""
        with suppress(OSError):  # there is no folder yet, or none any more
            remove_oldest(self._pgdata / "log", "postgres-*.log", keep=1 + self._log_keep)

    def stop(self) -> bool:
        """Leave; true when nobody else uses the server, in which case it has been stopped."""
        if not self._data_dir.exists():
            return True
        with holding(self._lock_path):
            last = self._users.try_hold()
            try:
                if last and self._process.is_running():
                    self._shut_down(self._account())
            finally:
                self._users.release()
                self._close_folder()
        return last

    def uri(self, database: str = "postgres") -> str:
        """The address of one database on this server, with the password: good as long as this process uses it."""
        if self._folder is None:
            raise InternalError("the embedded server has no address before it is started")
        host = str(self._pgdata)
        if len(os.fsencode(self._pgdata / SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
            # Another name of the same folder, short enough for the kernel, for us and for processes we start.
            host = f"/proc/{os.getpid()}/fd/{self._folder}"
        role = f"{server_programs.ROLE}:{quote(self._secret, safe='')}"
        return f"postgresql://{role}@/{quote(database, safe='')}?host={quote(host, safe='')}&port={PORT}"

    def _account(self) -> ServerAccount:
        return choose_account(self._pgdata, source=str(self._data_dir))

    def _initialise(self, account: ServerAccount) -> None:
        # A crash half-way leaves only this folder, which the next start throws away.
        unfinished = self._data_dir / "postgres.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account.own(unfinished)
        # The built-in locale is the same on every machine, installed locales are not.
        options = ["--username=postgres", "--auth=reject", "--encoding=UTF8", "--no-locale"]
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options += [] if self._durable else ["--no-sync"]
        self._run(account, "initdb", f"--pgdata={HERE}", *options, folder=unfinished)
        self._give_password(account, unfinished)
        unfinished.rename(self._pgdata)

    def _give_password(self, account: ServerAccount, pgdata: Path) -> None:
        secret = secrets.token_urlsafe(32)
        unsafe = [] if self._durable else [f"-c{name}={value}" for name, value in _NOT_DURABLE.items()]
        self._check(server_programs.make_role(account, pgdata, secret, *unsafe))
        server_programs.write_secret(self._secret_file, secret)

    def _stop_outdated(self, account: ServerAccount) -> None:
        """A server that an earlier version left running had rights that it must not have: it is started anew."""
        if not self._process.is_running() or not self._process.is_outdated:
            return
        if not self._users.try_hold():
            raise self._failure("an earlier version of butlers is running here", "stop it, and start again")
        self._users.release()
        folder = self._process.socket_dir
        self._shut_down(account)
        if folder is not None and folder.name == self._name:
            shutil.rmtree(folder, ignore_errors=True)

    def _convert(self, account: ServerAccount) -> None:
        """Files without a password of ours: made by an earlier version, or the password was lost."""
        if self._process.is_running():
            raise self._failure(
                f"{self._secret_file.name} is missing, and the server runs", "put it back, or stop all butlers here"
            )
        self._process.disown(account)
        self._insist(lambda: self._give_password(account, self._pgdata))
        complaint = server_programs.hand_over(account, self._pgdata)
        if complaint is not None:
            self._secret_file.unlink()  # the next start tries again
        self._check(complaint)

    def _launch(self, account: ServerAccount) -> None:
        self._process.disown(account)
        server_programs.write_rules(account, self._pgdata)
        values = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in self._settings.items())
        options = (f"--timeout={_START_TIMEOUT}", "--log=start.log", f"--options={values}")
        self._insist(lambda: self._pg_ctl(account, "start", *options))

    def _insist(self, start: Callable[[], None]) -> None:
        # A server that was killed leaves its file of process ids, and for a moment its children, who hold on to the
        # shared memory: as long as they do, a new server refuses to start.
        attempts = _RECOVERY_ATTEMPTS if self._process.pid is not None else 1
        for attempt in range(1, attempts):
            try:
                return start()
            except ConfigurationError:
                if attempt >= _PATIENCE_WITH_ORPHANS and not self._process.is_alive():
                    self._process.end_orphans()
                time.sleep(_RECOVERY_PAUSE)
        return start()

    def _adopt(self) -> bool:
        """Use a server that already runs; wait for one that is still starting or recovering."""
        for _ in range(int(_START_TIMEOUT / _POLL)):
            if not self._process.is_running():
                return False
            if self._process.is_ready():
                return True
            time.sleep(_POLL)
        raise self._failure(f"a server is running but not ready after {_START_TIMEOUT} seconds")

    def _shut_down(self, account: ServerAccount) -> None:
        self._pg_ctl(account, "stop", f"--timeout={_STOP_TIMEOUT}", "--mode=fast")

    def _close_folder(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _pg_ctl(self, account: ServerAccount, action: str, *options: str) -> None:
        self._run(account, "pg_ctl", action, "--wait", f"--pgdata={HERE}", *options, folder=self._pgdata)

    def _run(self, account: ServerAccount, program: str, *arguments: str, folder: Path) -> None:
        self._check(run_program(account, program, *arguments, folder=folder)[0])

    def _check(self, complaint: str | None) -> None:
        if complaint is not None:
            raise self._failure(complaint + self._last_words() if "could not start server" in complaint else complaint)

    def _last_words(self) -> str:
        """What the server itself wrote before it gave up."""
        logs = [*(self._pgdata / "log").glob("*.log"), self._pgdata / "start.log"]
        with suppress(OSError):
            newest = max(logs, key=lambda log: log.lstat().st_mtime)
            lines = read_plain(newest, end=True).splitlines()[-20:]
            return "".join(f" | {line.strip()}" for line in lines if "FATAL:" in line)
        return ""

    def _failure(self, problem: str, remedy: str = "") -> ConfigurationError:
        other = f"see {self._pgdata / 'log'}, choose another data directory, or set DATABASE_URL"
        return ConfigurationError(problem, source=str(self._data_dir), key="postgres", remedy=remedy or other)
