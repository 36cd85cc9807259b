"""The tables of a schema, built step by step from numbered SQL files.

    migrations/0001_deliveries.sql      {schema} stands for the quoted schema name
    migrations/0002_receipts.sql

What has been applied stands in `<schema>.schema_migrations`. One schema may take files from several places (what
every butler has, and what this butler adds); each place is a component with numbers of its own.

Each file runs in a transaction of its own together with its record, so it is applied wholly or not at all. Every such
transaction first takes one advisory lock and then looks again at what is applied, so any number of processes may
migrate at once. A file that was changed after it was applied, a hole in the numbers, and a database that is newer
than the program stop the start: guessing would cost data.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import asyncpg

from butlers.errors import ConfigurationError
from butlers.storage import address as refusals
from butlers.storage.database import Database, Executor
from butlers.storage.queries import fill_schema

_FILE_NAME = re.compile(r"\b(?P<version>\d{4})_(?P<title>[a-z0-9_]+)\.sql")
_LOCK = int.from_bytes(hashlib.sha256(b"butlers migrations").digest()[:8], signed=True)
_PATIENCE = 3600.0  # seconds; a migration may rewrite a large table, or wait for another process that does
_SCHEMA_EXISTS = "select to_regnamespace(quote_ident($1)) is not null"
_CREATE_RECORDS = """
create table if not exists {schema}.schema_migrations (
    component  text        not null,
    version    integer     not null,
    title      text        not null,
    checksum   text        not null,
    applied_at timestamptz not null default now(),
    primary key (component, version)
);
"""
_SELECT_RECORDS = """
select version, checksum from {schema}.schema_migrations where component = $1 order by version
"""
_INSERT_RECORD = """
insert into {schema}.schema_migrations (component, version, title, checksum) values ($1, $2, $3, $4)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationSet:
    """Where the migrations of one component of a schema lie."""

    schema: str
    package: str | None = None  # a package whose folder `directory` holds the files ...
    directory: str | Path = "migrations"  # ... or, without a package, a path
    component: str = "main"

    def load(self) -> tuple[Migration, ...]:
        """The files in order, without a hole."""
        migrations = tuple(sorted(self._read(), key=lambda migration: migration.version))
        for expected, migration in enumerate(migrations, start=1):
            if migration.version != expected:
                raise self.mistake(
                    f"{migration.version:04d}",
                    f"{expected:04d} should come here",
                    "number the files 0001, 0002, ... without holes or repetitions",
                )
        return migrations

    def mistake(self, key: str, problem: str, remedy: str) -> ConfigurationError:
        place = f"{self.package}/{self.directory}" if self.package else str(self.directory)
        return ConfigurationError(problem, source=f"{place} (schema {self.schema})", key=key, remedy=remedy)

    def _read(self) -> Iterator[Migration]:
        for file in self._folder().iterdir():
            if not file.name.endswith(".sql"):
                continue
            matched = _FILE_NAME.fullmatch(file.name)
            if matched is None:
                raise self.mistake(file.name, "this is not the name of a migration", "use NNNN_title.sql")
            text = file.read_text(encoding="utf-8")
            yield Migration(version=int(matched["version"]), title=matched["title"], text=text)

    def _folder(self) -> Traversable:
        folder = resources.files(self.package) / str(self.directory) if self.package else Path(self.directory)
        if not folder.is_dir():
            raise self.mistake("directory", "there is no such folder", "create it, or correct the migration set")
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step."""

    version: int
    title: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def name(self) -> str:
        return f"{self.version:04d}_{self.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMigration:
    """What one call of `migrate` did."""

    schema: str
    component: str
    version: int
    title: str


async def migrate(database: Database, sets: Sequence[MigrationSet]) -> tuple[AppliedMigration, ...]:
    """Bring every schema up to date, in the order of the sets; returns the steps that this call made."""
    loaded = [(migration_set, migration_set.load()) for migration_set in sets]
    applied: list[AppliedMigration] = []
    for migration_set, migrations in loaded:
        try:
            applied += await _migrate_one(database, migration_set, migrations)
        except asyncpg.InsufficientPrivilegeError as error:
            raise await _missing_right(database, migration_set.schema) from error
    return tuple(applied)


async def _migrate_one(
    database: Database, migration_set: MigrationSet, migrations: Sequence[Migration]
) -> list[AppliedMigration]:
    recorded = await _prepare(database, migration_set, migrations)
    return [
        _record_of(migration_set, migration)
        for migration in migrations
        if migration.version not in recorded and await _apply(database, migration_set, migration)
    ]


async def _missing_right(database: Database, schema: str) -> ConfigurationError:
    role, name = (
        str(await database.fetchval("select current_user")),
        str(await database.fetchval("select current_database()")),
    )
    if await database.fetchval(_SCHEMA_EXISTS, schema):
        return refusals.may_not_change(role, name, schema)
    return refusals.may_not_create(role, name)


async def _prepare(
    database: Database, migration_set: MigrationSet, migrations: Sequence[Migration]
) -> Mapping[int, str]:
    async with database.transaction() as connection:
        await _take_turn(connection)
        # Not "if not exists": the server would ask for the right to create schemas, also where there is one.
        if not await connection.fetchval(_SCHEMA_EXISTS, migration_set.schema):
            await connection.execute(fill_schema("create schema {schema}", migration_set.schema))
        await connection.execute(fill_schema(_CREATE_RECORDS, migration_set.schema))
        recorded = await _recorded(connection, migration_set)
    _check_history(migration_set, migrations, recorded)
    return recorded


async def _apply(database: Database, migration_set: MigrationSet, migration: Migration) -> bool:
    async with database.transaction() as connection:
        await _take_turn(connection)
        recorded = await _recorded(connection, migration_set)
        if migration.version in recorded:
            return False
        await _run(connection, migration_set, migration)
        insert = fill_schema(_INSERT_RECORD, migration_set.schema)
        values = (migration_set.component, migration.version, migration.title, migration.checksum)
        await connection.execute(insert, *values)
    return True


async def _run(connection: Executor, migration_set: MigrationSet, migration: Migration) -> None:
    try:
        await connection.execute(fill_schema(migration.text, migration_set.schema), timeout=_PATIENCE)
    except asyncpg.InsufficientPrivilegeError:
        raise  # nothing is wrong with the file
    except asyncpg.PostgresError as error:
        raise migration_set.mistake(
            migration.name, f"the server refuses it: {error}", "correct the file; nothing of it was applied"
        ) from error


async def _take_turn(connection: Executor) -> None:
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK, timeout=_PATIENCE)


async def _recorded(connection: Executor, migration_set: MigrationSet) -> dict[int, str]:
    rows = await connection.fetch(fill_schema(_SELECT_RECORDS, migration_set.schema), migration_set.component)
    return {row["version"]: row["checksum"] for row in rows}


def _check_history(migration_set: MigrationSet, migrations: Sequence[Migration], recorded: Mapping[int, str]) -> None:
    known = {migration.version: migration for migration in migrations}
    for version, checksum in recorded.items():
        migration = known.get(version)
        if migration is None:
            raise migration_set.mistake(
                f"{version:04d}", "the database has it and the program does not", "start a newer program"
            )
        if migration.checksum != checksum:
            raise migration_set.mistake(
                migration.name,
                "the file was changed after it was applied",
                "restore the file and put the change into a new one",
            )
    if recorded and max(recorded) != len(recorded):
        raise migration_set.mistake(
            "schema_migrations", "the record of applied migrations has holes", "restore the database's record"
        )


def _record_of(migration_set: MigrationSet, migration: Migration) -> AppliedMigration:
    return AppliedMigration(
        schema=migration_set.schema,
        component=migration_set.component,
        version=migration.version,
        title=migration.title,
    )
