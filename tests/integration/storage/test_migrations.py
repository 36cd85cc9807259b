"""Migrations against a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from butlers.errors import ConfigurationError
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet, migrate
from tests.database import cloned_database, cloned_database_uri

FIRST = "create table {schema}.notes (id integer primary key);"
SECOND = "alter table {schema}.notes add column body text;\ncreate index on {schema}.notes (body);"


@pytest.fixture
def notes(tmp_path: Path) -> MigrationSet:
    (tmp_path / "0001_notes.sql").write_text(FIRST)
    (tmp_path / "0002_body.sql").write_text(SECOND)
    return MigrationSet(schema="finance", directory=tmp_path)


async def test_each_file_is_applied_once_and_recorded(empty_database: Database, notes: MigrationSet):
    applied = await migrate(empty_database, [notes])

    assert [(step.schema, step.version, step.title) for step in applied] == [
        ("finance", 1, "notes"),
        ("finance", 2, "body"),
    ]
    assert await migrate(empty_database, [notes]) == ()
    recorded = await empty_database.fetch("select version, title from finance.schema_migrations order by version")
    assert [tuple(row) for row in recorded] == [(1, "notes"), (2, "body")]
    await empty_database.execute("insert into finance.notes (id, body) values (1, 'x')")


async def test_one_directory_serves_many_schemas(empty_database: Database, notes: MigrationSet, tmp_path: Path):
    other = MigrationSet(schema='we"ird', directory=tmp_path)
    await migrate(empty_database, [notes, other])

    assert await empty_database.fetchval('select count(*) from "we""ird".notes') == 0
    assert await empty_database.fetchval("select count(*) from finance.notes") == 0


async def test_components_of_one_schema_count_for_themselves(
    empty_database: Database, notes: MigrationSet, tmp_path: Path
):
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "0001_receipts.sql").write_text("create table {schema}.receipts (id integer);")
    await migrate(empty_database, [notes])

    applied = await migrate(empty_database, [notes, MigrationSet(schema="finance", directory=extra, component="extra")])

    assert [(step.component, step.version) for step in applied] == [("extra", 1)]


async def test_a_changed_file_stops_the_start(empty_database: Database, notes: MigrationSet, tmp_path: Path):
    await migrate(empty_database, [notes])
    (tmp_path / "0001_notes.sql").write_text(FIRST + " -- innocent")

    with pytest.raises(ConfigurationError, match="0001_notes: the file was changed"):
        await migrate(empty_database, [notes])


async def test_a_database_newer_than_the_program_stops_the_start(
    empty_database: Database, notes: MigrationSet, tmp_path: Path
):
    await migrate(empty_database, [notes])
    (tmp_path / "0002_body.sql").unlink()

    with pytest.raises(ConfigurationError, match="0002: the database has it"):
        await migrate(empty_database, [notes])


async def test_a_failing_file_leaves_nothing_and_can_be_mended(
    empty_database: Database, notes: MigrationSet, tmp_path: Path
):
    third = tmp_path / "0003_broken.sql"
    third.write_text("create table {schema}.half (id integer); select no_such_column;")

    with pytest.raises(ConfigurationError, match="0003_broken: the server refuses it"):
        await migrate(empty_database, [notes])
    assert await empty_database.fetchval("select to_regclass('finance.half')") is None

    third.write_text("create table {schema}.half (id integer);")
    assert [step.version for step in await migrate(empty_database, [notes])] == [3]


async def test_many_processes_may_migrate_at_once(postgres_server: EmbeddedPostgres, notes: MigrationSet):
    async with cloned_database_uri(postgres_server) as uri:
        pools = [await Database.connect(uri, max_size=1) for _ in range(5)]
        try:
            results = await asyncio.gather(*(migrate(pool, [notes]) for pool in pools))
        finally:
            for pool in pools:
                await pool.close()

    assert sorted(step.version for result in results for step in result) == [1, 2]


async def test_a_clone_has_the_migrations_and_is_alone(postgres_server: EmbeddedPostgres, notes: MigrationSet):
    async with cloned_database(postgres_server, [notes]) as one, cloned_database(postgres_server, [notes]) as two:
        await one.execute("insert into finance.notes (id) values (1)")

        assert await one.fetchval("select count(*) from finance.notes") == 1
        assert await two.fetchval("select count(*) from finance.notes") == 0
