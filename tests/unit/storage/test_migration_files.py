"""Reading a folder of migrations."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from butlers.errors import ConfigurationError
from butlers.storage.migrations import MigrationSet


def write(folder: Path, *names: str) -> MigrationSet:
    for name in names:
        (folder / name).write_text(f"select '{name}';")
    return MigrationSet(schema="finance", directory=folder)


def test_files_come_in_the_order_of_their_numbers(tmp_path: Path):
    migrations = write(tmp_path, "0002_b.sql", "0001_a.sql", "0003_c.sql", "readme.md").load()

    assert [migration.name for migration in migrations] == ["0001_a", "0002_b", "0003_c"]


def test_the_checksum_follows_the_text(tmp_path: Path):
    (before,) = write(tmp_path, "0001_a.sql").load()
    (tmp_path / "0001_a.sql").write_text("select 2;")
    (after,) = MigrationSet(schema="finance", directory=tmp_path).load()

    assert before.checksum != after.checksum


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["0001_a.sql", "0003_c.sql"], "0003: 0002 should come here"),
        (["0002_b.sql"], "0002: 0001 should come here"),
        (["0001_a.sql", "0001_b.sql"], "0001: 0002 should come here"),
        (["1_a.sql"], "1_a.sql: this is not the name of a migration"),
        (["0001-a.sql"], "0001-a.sql: this is not the name of a migration"),
    ],
)
def test_holes_repetitions_and_odd_names_are_refused(tmp_path: Path, names: list[str], problem: str):
    with pytest.raises(ConfigurationError, match=problem):
        write(tmp_path, *names).load()


def test_files_may_lie_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "package_with_migrations" / "migrations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    write(folder, "0001_a.sql")
    monkeypatch.syspath_prepend(tmp_path)

    try:
        (migration,) = MigrationSet(schema="finance", package="package_with_migrations").load()
    finally:
        sys.modules.pop("package_with_migrations", None)
    assert migration.name == "0001_a"


def test_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        MigrationSet(schema="finance", directory=tmp_path / "nowhere").load()
