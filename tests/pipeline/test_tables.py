"""Every table contract is the table that the migrations make."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark.sql.types import StructField, StructType

from butlers.errors import ConfigurationError
from butlers.messenger.deliveries import migrations as messenger_migrations
from butlers.outbound import MIGRATIONS as OUTBOUND
from butlers.pipeline import tables
from butlers.pipeline.connection import connect, transaction
from butlers.pipeline.lake.events import EVENTS
from butlers.pipeline.sources.predicates import real_columns
from butlers.pipeline.tables import MESSAGE_INBOX, TYPES, Table, columns
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet
from tests.database import cloned_database_uri

MIGRATIONS = (
    MigrationSet(schema="switchboard", package="butlers.switchboard", component="switchboard"),
    messenger_migrations("messenger"),
    OUTBOUND,
    MigrationSet(schema="pipeline", package="butlers.pipeline"),
)
_KEY = """
SELECT array_agg(attname::text ORDER BY attname) FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indpred IS NULL GROUP BY i.indexrelid
"""


def _contracts() -> Iterator[Table]:
    files = [importlib.import_module(f"{tables.__name__}.{file.name}") for file in _contract_files()]
    for file in (tables, *files):
        yield from (value for value in vars(file).values() if isinstance(value, Table))
    yield from (event.table for event in EVENTS.values())


def _contract_files() -> Iterator[pkgutil.ModuleInfo]:
    return pkgutil.iter_modules(tables.__path__)


async def test_every_contract_is_the_table_that_the_migrations_make(postgres_server: EmbeddedPostgres):
    contracts = list(_contracts())
    assert len(contracts) >= 5
    async with cloned_database_uri(postgres_server, MIGRATIONS) as dsn:
        with transaction(dsn) as cursor:
            for table in contracts:
                assert set(real_columns(cursor, table)) == set(table.columns.fieldNames())
                cursor.execute(_KEY, (table.qualified,))
                keys = [tuple(key) for (key,) in cursor.fetchall()]
                assert tuple(sorted(table.key)) in keys, f"{table} has no unique key {table.key}"
                assert table.time is None or table.time in table.columns.fieldNames()


async def test_a_table_unlike_its_contract_is_named(postgres_server: EmbeddedPostgres):
    async with cloned_database_uri(postgres_server, MIGRATIONS[:1]) as dsn:
        with transaction(dsn) as cursor:
            for wrong, problem in [
                (Table(schema="switchboard", name="nothing", columns=columns("a string"), key=("a",)), "no such table"),
                (replace(MESSAGE_INBOX, schema="elsewhere"), "no such table"),
                (_inbox_with(colour="string"), "there is no column colour"),
                (_inbox_with(received_at="bigint"), "the column received_at is timestamp with time zone, not bigint"),
            ]:
                with pytest.raises(ConfigurationError, match=problem):
                    real_columns(cursor, wrong)


@pytest.mark.parametrize(
    ("dsn", "problem"),
    [
        ("postgresql://ann:s3cret@127.0.0.1:1/books", "no server answers there"),
        ("postgresql://ann:s3cret%zz@127.0.0.1:1/books", "no server answers there"),
        ("host=127.0.0.1 password=s3cret", "the address cannot be read"),
    ],
)
def test_an_unusable_address_is_told_without_its_password(dsn: str, problem: str):
    with pytest.raises(ConfigurationError, match=problem) as caught:
        connect(dsn)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_server_tells_what_it_refuses(postgres_server: EmbeddedPostgres):
    with pytest.raises(ConfigurationError, match="there is no such database"):
        connect(postgres_server.uri("nowhere"))
    with pytest.raises(ConfigurationError, match="refuses this user or password") as caught:
        connect(f"postgresql://ann:s3cret@{postgres_server.uri().partition('@')[2]}")
    assert "s3cret" not in str(caught.value)


def _inbox_with(**changed: str) -> Table:
    kinds = {field.name: field.dataType for field in MESSAGE_INBOX.columns}
    kinds |= {name: TYPES[kind] for name, kind in changed.items()}
    return replace(MESSAGE_INBOX, columns=StructType([StructField(name, kind) for name, kind in kinds.items()]))
