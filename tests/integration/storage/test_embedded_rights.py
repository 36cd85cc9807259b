"""Who may do what at the embedded server: one role with a password, no capability, nothing outside the database."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from butlers.errors import ConfigurationError
from butlers.storage import server_programs
from butlers.storage.address import with_database
from butlers.storage.database import Database, create_database_if_missing
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.files import FileLock
from butlers.storage.server_process import ServerProcess
from butlers.storage.server_programs import ServerAccount, choose_account

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another account")

# What an intruder with the server's account would try; says what came of it.
INTRUDER = """
import asyncio, asyncpg, sys
from pathlib import Path
folder, users = sys.argv[1], ("postgres", "butlers")
async def login(user):
    try:
        await asyncpg.connect(user=user, database="postgres", host=folder, port=5432, password=None, timeout=10)
        return "let in"
    except Exception as error:
        return type(error).__name__
def read(path):
    try:
        return Path(path).read_text()[:20]
    except OSError as error:
        return type(error).__name__
for user in users:
    print(user, asyncio.run(login(user)))
for path in ("/etc/shadow", f"{sys.argv[2]}/postgres.secret"):
    print(path, read(path))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(tmp_path, durable=False)
    made.start()
    yield made
    made.stop()


async def refusal(server: EmbeddedPostgres, statement: str) -> str:
    connection = await asyncpg.connect(server.uri())
    try:
        await connection.execute(statement)
    except asyncpg.PostgresError as error:
        return type(error).__name__
    finally:
        await connection.close()
    return "done"


async def test_the_system_logs_in_with_a_role_that_is_no_superuser(server: EmbeddedPostgres):
    connection = await asyncpg.connect(server.uri())
    rights = "rolsuper, rolcreaterole, rolreplication, rolbypassrls"
    row = await connection.fetchrow(f"select {rights} from pg_roles where rolname = current_user")
    members = await connection.fetchval("select count(*) from pg_auth_members where member = current_user::regrole")
    await connection.close()

    assert row is not None
    assert (set(row.values()), members) == ({False}, 0)


@pytest.mark.parametrize(
    "statement",
    [
        "select pg_read_file('/etc/shadow')",
        "select pg_ls_dir('/')",
        "create table stolen (line text); copy stolen from '/etc/passwd'",
        "copy (select 1) to program 'id'",
        "select lo_import('/etc/passwd')",
        "alter system set log_statement = 'all'",
        "set session authorization postgres",
        "alter role butlers superuser",
        "load '/tmp/nothing.so'",
    ],
)
async def test_nothing_outside_the_database_can_be_reached_by_sql(server: EmbeddedPostgres, statement: str):
    assert await refusal(server, statement) == "InsufficientPrivilegeError"


async def test_a_wrong_password_and_other_users_are_refused(server: EmbeddedPostgres):
    address = server.uri().rpartition("@")[2]
    for who in ("butlers", "butlers:wrong", "postgres", "postgres:postgres", "root"):
        with pytest.raises((asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError)):
            await asyncpg.connect(f"postgresql://{who}@{address}", password="" if ":" not in who else None)


def test_the_password_is_random_private_and_in_no_process(server: EmbeddedPostgres, tmp_path: Path):
    file = tmp_path / "postgres.secret"
    secret = file.read_text().strip()

    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == (0o600, os.geteuid())
    assert len(secret) >= 40
    assert secret in server.uri()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        assert secret.encode() not in told, process
    logs = "".join(log.read_text() for log in [*(server.pgdata / "log").iterdir(), server.pgdata / "start.log"])
    assert secret not in logs


def test_the_servers_environment_holds_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BUTLER_TELEGRAM_TOKEN", "1234:do-not-tell")
    server = EmbeddedPostgres(tmp_path, durable=False)
    server.start()
    try:
        assert b"do-not-tell" not in Path(f"/proc/{server.pid}/environ").read_bytes()
    finally:
        server.stop()


@only_root
def test_the_server_has_no_capability_and_no_group_of_ours(tmp_path: Path):
    groups = os.getgroups()
    os.setgroups([0, 4])
    server = EmbeddedPostgres(tmp_path, durable=False)
    try:
        server.start()
        lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    finally:
        os.setgroups(groups)
        server.stop()

    assert {status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert set(status["Uid"].split()) == {str(server.pgdata.stat().st_uid)}
    assert status["Groups"].split() == []


@only_root
def test_the_servers_account_reads_nothing_of_ours_and_gets_no_login(server: EmbeddedPostgres, tmp_path: Path):
    account = choose_account(server.pgdata, source="test")
    assert account.uid != 0
    try:
        tried = subprocess.run(
            [sys.executable, "-c", INTRUDER, f"/proc/{server.pid}/cwd", str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            **account.process_options(),
        )
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("the server's account cannot reach this Python")
    answers = dict(line.split(" ", 1) for line in tried.stdout.splitlines())

    assert answers == {
        "postgres": "InvalidAuthorizationSpecificationError",
        "butlers": "InvalidPasswordError",
        "/etc/shadow": "PermissionError",
        f"{tmp_path}/postgres.secret": "PermissionError",
    }


@only_root
def test_a_link_in_the_servers_folder_does_not_lead_roots_hand(server: EmbeddedPostgres, tmp_path: Path):
    """The server's account owns the folder and might put links into it."""
    server.stop()
    precious = tmp_path / "precious"
    precious.write_text("1\nkept\n")
    for name in ("postmaster.pid", "pg_hba.conf"):
        (server.pgdata / name).unlink(missing_ok=True)
        (server.pgdata / name).symlink_to(precious)
    with pytest.raises(OSError, match=r"Too many levels of symbolic links|symbolic"):
        server.start()
    (server.pgdata / "postmaster.pid").unlink()

    server.start()
    assert precious.read_text() == "1\nkept\n"
    assert not (server.pgdata / "pg_hba.conf").is_symlink()


def test_a_folder_with_content_that_others_may_enter_is_refused(tmp_path: Path):
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    (open_folder / "letter").touch()
    open_folder.chmod(0o750)

    with pytest.raises(ConfigurationError, match=f"other users may enter this folder.*chmod 700 {open_folder}"):
        EmbeddedPostgres(open_folder, durable=False).start()
    assert [path.name for path in open_folder.iterdir()] == ["letter"]


def test_a_folder_with_nothing_but_settings_is_made_private(tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "butlers.toml").touch()
    empty.chmod(0o755)
    server = EmbeddedPostgres(empty, durable=False)
    server.start()
    server.stop()

    assert stat.S_IMODE(empty.stat().st_mode) == 0o700


# --- clusters of earlier versions -----------------------------------------------------------------------------------


class EarlierServer:
    """A server as version 0.1 made it: no passwords, and a superuser that owns everything."""

    def __init__(self, data_dir: Path) -> None:
        self.pgdata = data_dir / "postgres"
        self.mark = EmbeddedPostgres(data_dir)._name
        self.pgdata.mkdir(mode=0o700)
        self.account: ServerAccount = choose_account(self.pgdata, source="test")
        self.account.own(self.pgdata)
        self._run("initdb", "--pgdata=/proc/self/cwd", "--username=postgres", "--auth=trust", "--no-sync")
        self.sockets = Path("/tmp") / f"earlier-{os.getpid()}-{self.mark[-6:]}"
        self.sockets.mkdir(mode=0o700)
        self.account.own(self.sockets)

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.sockets} -c cluster_name={self.mark}"
        self._run("pg_ctl", "start", "--wait", "--pgdata=/proc/self/cwd", "--log=start.log", f"--options={options}")
        # It was started with the full name of its folder, which its file of process ids then held.
        lines = (self.pgdata / "postmaster.pid").read_text().splitlines()
        text = "\n".join([lines[0], str(self.pgdata), *lines[2:], ""])
        server_programs.write_as(self.account, self.pgdata, "postmaster.pid", text)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--pgdata=/proc/self/cwd")

    def uri(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.sockets}&port=5432"

    def remove(self) -> None:
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        complaint, _ = server_programs.run_program(self.account, program, *arguments, folder=self.pgdata)
        assert complaint is None, complaint


@pytest.fixture
async def earlier(tmp_path: Path) -> Any:
    made = EarlierServer(tmp_path)
    made.start()
    await create_database_if_missing(made.uri("postgres"), "butlers")
    connection = await asyncpg.connect(made.uri("butlers"))
    await connection.execute(
        """
        create schema ledger; create type ledger.mood as enum ('good');
        create table ledger.notes (id bigint generated always as identity, text text, mood ledger.mood)
            partition by range (id);
        create table ledger.notes_1 partition of ledger.notes for values from (1) to (100);
        create sequence ledger.free; create view ledger.short as select text from ledger.notes;
        create function ledger.one() returns int language sql return 1;
        insert into ledger.notes (text, mood) values ('kept', 'good');
        """
    )
    await connection.close()
    yield made
    made.remove()


async def as_converted(tmp_path: Path) -> list[Any]:
    server = EmbeddedPostgres(tmp_path, durable=False)
    server.start()
    try:
        async with await Database.connect(with_database(server.uri(), "butlers"), max_size=1) as database:
            # What a migration does to tables of an earlier version, as their owner.
            await database.execute("alter table ledger.notes add column more text")
            await database.execute("create index on ledger.notes (text); alter type ledger.mood add value 'bad'")
            await database.execute("alter sequence ledger.free increment by 2; drop view ledger.short")
            await database.execute("drop function ledger.one(); create schema another")
            await database.execute("insert into ledger.notes (text) values ('new')")
            superuser = await database.fetchval("select rolsuper from pg_roles where rolname = current_user")
            assert superuser is False
            return [row["text"] for row in await database.fetch("select text from ledger.notes order by id")]
    finally:
        server.stop()


async def test_the_files_of_an_earlier_version_are_converted_with_their_data(earlier: EarlierServer, tmp_path: Path):
    earlier.stop()
    assert await as_converted(tmp_path) == ["kept", "new"]


async def test_a_server_that_an_earlier_version_left_running_is_replaced(earlier: EarlierServer, tmp_path: Path):
    before = ServerProcess(pgdata=earlier.pgdata, mark=earlier.mark).pid
    assert await as_converted(tmp_path) == ["kept", "new"]
    assert before is not None
    assert not Path(f"/proc/{before}/cwd").exists()


async def test_a_server_that_an_earlier_version_still_uses_is_left_alone(earlier: EarlierServer, tmp_path: Path):
    user = FileLock(tmp_path / "postgres.users")
    user.share()
    with pytest.raises(ConfigurationError, match="an earlier version of butlers is running here"):
        EmbeddedPostgres(tmp_path, durable=False).start()
    connection = await asyncpg.connect(earlier.uri("butlers"))
    assert await connection.fetchval("select text from ledger.notes") == "kept"
    await connection.close()
    user.release()
    earlier.stop()


async def test_a_lost_password_is_replaced_at_the_next_start(server: EmbeddedPostgres, tmp_path: Path):
    await create_database_if_missing(server.uri(), "butlers")
    first = server.uri()
    server.stop()
    (tmp_path / "postgres.secret").unlink()

    server.start()
    assert server.uri() != first
    assert not await create_database_if_missing(server.uri(), "butlers")
