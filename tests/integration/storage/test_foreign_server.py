"""A server that is not ours, named by DATABASE_URL: what it refuses is told with the remedy, by both drivers."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.channels.email.simulator import ServerIdentity, self_signed
from butlers.clock import SystemClock
from butlers.daemon import machine_checks as machine
from butlers.daemon.machine_checks import Status
from butlers.daemon.system import migration_sets
from butlers.errors import ConfigurationError, ServiceDown
from butlers.pipeline.connection import connect
from butlers.storage.database import Database, create_database_if_missing, open_connection
from butlers.storage.migrations import MigrationSet, migrate
from tests.integration.processes.command import butlers
from tests.integration.storage.foreign_server import HOST, ForeignServer, behind_tls
from tests.ports import free_offset

RECORDS: list[MigrationSet] = migration_sets([])  # the contacts: what every system has
SCHEMAS = {migration_set.schema for migration_set in RECORDS}


@pytest.fixture(scope="module")
def foreign() -> Iterator[ForeignServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = ForeignServer(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
async def role(foreign: ForeignServer) -> str:
    """A role with a password and nothing else, and a database of the same name that another role owns."""
    name = f"ann_{uuid4().hex[:8]}"
    await foreign.administer(f"create role {name} login password 's3cret'; create database {name}")
    return name


async def told(dsn: str) -> list[ConfigurationError]:
    """What both drivers' users are told about an address that does not work."""
    found = []
    with pytest.raises(ConfigurationError) as refused:
        await open_connection(dsn, wait=0)
    found.append(refused.value)
    with pytest.raises(ConfigurationError) as refused:
        await asyncio.to_thread(connect, dsn)
    found.append(refused.value)
    assert not any("s3cret" in str(error) or "wr0ng" in str(error) for error in found)
    return found


async def test_a_wrong_password_names_the_role(foreign: ForeignServer, role: str):
    for error in await told(foreign.uri(role, role, password="wr0ng")):
        assert f"refuses this user or password (role {role})" in error.problem
        assert "percent-encoded" in error.remedy


async def test_a_role_that_is_not_let_in_is_told_of_pg_hba_conf(foreign: ForeignServer):
    await foreign.administer("create role shut_out login password 's3cret'")
    for error in await told(foreign.uri("shut_out", "postgres")):
        assert "pg_hba.conf" in error.remedy


async def test_a_missing_database_is_told_with_the_statement_that_makes_it(foreign: ForeignServer, role: str):
    for error in await told(foreign.uri(role, "no-where")):
        assert error.problem == "there is no such database"
        assert f'CREATE DATABASE "no-where" OWNER "{role}"' in error.remedy
    with pytest.raises(ConfigurationError, match="does not exist and this user may not create it") as refused:
        await create_database_if_missing(foreign.uri(role, "postgres"), "no-where")
    assert f'ALTER ROLE "{role}" CREATEDB' in refused.value.remedy


async def test_taken_connections_are_told_as_such(foreign: ForeignServer, role: str):
    await foreign.administer(f"alter role {role} connection limit 0")
    for error in await told(foreign.uri(role, role)):
        assert isinstance(error, ServiceDown)
        assert "connections" in error.problem
        assert "database_pool" in error.remedy


async def test_a_server_that_is_down_is_a_service_down(foreign: ForeignServer, role: str):
    for error in await told(foreign.uri(role, role, port=1)):
        assert isinstance(error, ServiceDown)
        assert "start the server" in error.remedy


async def test_a_role_without_create_is_told_the_grant_and_works_with_it(foreign: ForeignServer, role: str):
    dsn = foreign.uri(role, role)
    check = await machine.given_database(dsn, role, SCHEMAS)
    async with await Database.connect(dsn, max_size=1) as database:
        with pytest.raises(ConfigurationError, match=f"the role {role} may not create schemas in the") as refused:
            await migrate(database, RECORDS)
        grant = f'GRANT CREATE ON DATABASE "{role}" TO "{role}"'
        assert grant in refused.value.remedy
        assert (check.status, grant in check.remedy) == (Status.FAIL, True)

        await foreign.administer(grant)
        assert await migrate(database, RECORDS)
    assert (await machine.given_database(dsn, role, SCHEMAS)).status is Status.OK


async def test_schemas_that_were_made_for_the_role_are_enough(foreign: ForeignServer, role: str):
    for schema in SCHEMAS:
        await foreign.administer(f"create schema {schema} authorization {role}", database=role)
    assert (await machine.given_database(foreign.uri(role, role), role, SCHEMAS)).status is Status.OK
    async with await Database.connect(foreign.uri(role, role), max_size=1) as database:
        assert await migrate(database, RECORDS)


async def test_schemas_of_another_role_are_named(foreign: ForeignServer, role: str):
    for schema in SCHEMAS:
        await foreign.administer(f"create schema {schema}", database=role)
    check = await machine.given_database(foreign.uri(role, role), role, SCHEMAS)
    async with await Database.connect(foreign.uri(role, role), max_size=1) as database:
        with pytest.raises(ConfigurationError, match="which another role made") as refused:
            await migrate(database, RECORDS)
    assert f'OWNER TO "{role}"' in refused.value.remedy
    assert (check.status, check.remedy) == (Status.FAIL, refused.value.remedy)


async def test_commands_that_need_the_database_end_with_4_when_it_is_down(foreign: ForeignServer, tmp_path: Path):
    environment = {"DATABASE_URL": foreign.uri("ann", "butlers", port=1), "BUTLERS_SIMULATORS": "on"}
    folder = ("--data-dir", tmp_path / "data")
    with free_offset() as offset:
        for arguments in (["pipeline", "status"], ["up", "--port-offset", offset]):
            ended = await asyncio.to_thread(butlers, *arguments, *folder, environment=environment)
            assert ended.returncode == 4, ended.stderr
            [line] = [line for line in ended.stderr.splitlines() if "DATABASE_URL" in line]
            assert line.startswith(f"butlers: DATABASE_URL: {HOST}:1/butlers: no server answer")
            assert "s3cret" not in ended.stderr


# --- encryption ------------------------------------------------------------------------------------------------------


@pytest.fixture
def identity() -> ServerIdentity:
    return self_signed("db.example", now=SystemClock().now())


async def logged_in(dsn: str) -> None:
    """With both drivers."""
    await (await open_connection(dsn, wait=5)).close()
    (await asyncio.to_thread(connect, dsn)).close()


async def test_every_sslmode_is_honoured(foreign: ForeignServer, role: str, identity: ServerIdentity, tmp_path: Path):
    trusted = tmp_path / "root.crt"
    trusted.write_text(identity.certificate_pem)
    other = tmp_path / "other.crt"
    other.write_text(self_signed("db.example", now=SystemClock().now()).certificate_pem)
    async with behind_tls(foreign, identity.context) as port:

        def dsn(mode: str, **more: Any) -> str:
            return foreign.uri(role, role, port=port, sslmode=mode, **{key: str(value) for key, value in more.items()})

        await logged_in(dsn("require"))
        await logged_in(dsn("verify-ca", sslrootcert=trusted))
        await logged_in(dsn("verify-full", sslrootcert=trusted))
        for mode in ("verify-ca", "verify-full"):
            for error in await told(dsn(mode, sslrootcert=other)):
                assert "certificate is not trusted" in error.problem
                assert "sslrootcert=FILE" in error.remedy
        for error in await told(dsn("disable")):  # the relay hangs up
            assert isinstance(error, ServiceDown)


async def test_a_server_without_tls_is_not_spoken_to_in_clear(foreign: ForeignServer, role: str):
    await logged_in(foreign.uri(role, role, sslmode="disable"))
    for error in await told(foreign.uri(role, role, sslmode="require")):
        assert error.problem == "the server does not offer TLS, and sslmode=require demands it"


@pytest.mark.parametrize(
    ("parameters", "key", "words"),
    [
        ({"sslmode": "always"}, "sslmode", "use one of disable, allow, prefer, require, verify-ca, verify-full"),
        ({"sslmode": "verify-full", "sslrootcert": "/nonexistent.crt"}, "sslrootcert", "cannot be read"),
        ({"sslmode": "verify-full", "sslrootcert": "/etc/passwd"}, "sslrootcert", "holds no certificate"),
    ],
)
async def test_wrong_values_are_refused_with_a_sentence(
    foreign: ForeignServer, role: str, parameters: dict[str, Any], key: str, words: str
):
    for error in await told(foreign.uri(role, role, **parameters)):
        assert error.key == key
        assert words in str(error)


async def test_verification_without_a_root_certificate_says_which_file_is_missing(
    foreign: ForeignServer, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for error in await told(foreign.uri(role, role, sslmode="verify-full")):
        assert f"{tmp_path}/.postgresql/root.crt cannot be read" in error.problem
