"""Every named query is used, every used name exists, and PostgreSQL accepts every one against the real tables."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import asyncpg
import pytest

from butlers.butler.approvals.runner import ACTION_CLAIMS
from butlers.butler.memory.episodes import EPISODE_CLAIMS
from butlers.butler.route_inbox import ROUTE_CLAIMS
from butlers.daemon.settings import shipped_roster
from butlers.daemon.system import migration_sets
from butlers.messenger.deliveries import DELIVERY_CLAIMS
from butlers.outbound.postgres_queue import QUEUE_CLAIMS
from butlers.roster import load_roster
from butlers.storage.database import Executor
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.queries import Queries
from butlers.switchboard.requests.inbox import MESSAGE_CLAIMS
from butlers.webhooks.deliveries import WEBHOOK_CLAIMS
from tests.architecture.source import PACKAGE, last_name, source_files
from tests.database import cloned_database

# Where each file's queries run: the schema of one butler that uses them.
SCHEMAS = {
    "butler/approvals/queries.sql": "messenger",
    "butler/memory/queries.sql": "switchboard",
    "butler/queries.sql": "general",
    "butler/specialist/queries.sql": "general",
    "contacts/queries.sql": "shared",
    "channels/email/mailbox/queries.sql": "messenger",
    "messenger/parking.sql": "messenger",
    "messenger/queries.sql": "messenger",
    "messenger/receipts.sql": "messenger",
    "messenger/release.sql": "messenger",
    "messenger/service_levels.sql": "messenger",
    "messenger/tools/queries.sql": "messenger",
    "messenger/upkeep.sql": "messenger",
    "outbound/history.sql": "outbound",
    "outbound/postgres_queue.sql": "outbound",
    "outbound/postgres_records.sql": "outbound",
    "outbound/queries.sql": "outbound",
    "outbound/templates/queries.sql": "outbound",
    "pipeline/queries.sql": "pipeline",
    "switchboard/extraction/queries.sql": "switchboard",
    "switchboard/connectors/queries.sql": "switchboard",
    "switchboard/connectors/statistics.sql": "switchboard",
    "switchboard/registry.sql": "switchboard",
    "switchboard/senders.sql": "switchboard",
    "switchboard/operators/queries.sql": "switchboard",
    "switchboard/queries.sql": "switchboard",
    "switchboard/routing/queries.sql": "switchboard",
    "webhooks/queries.sql": "webhooks",
}

# The tables whose claims a file's queries speak of, in the words of `storage/claims.py`.
CLAIM_TABLES = {
    "butler/approvals/queries.sql": ACTION_CLAIMS,
    "butler/queries.sql": ROUTE_CLAIMS,
    "messenger/queries.sql": DELIVERY_CLAIMS,
    "outbound/postgres_queue.sql": QUEUE_CLAIMS,
    "switchboard/queries.sql": MESSAGE_CLAIMS,
    "butler/memory/queries.sql": EPISODE_CLAIMS,
    "webhooks/queries.sql": WEBHOOK_CLAIMS,
}


def query_files() -> set[str]:
    paths = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.sql") if path.parent.name != "migrations")
    return {path.as_posix() for path in paths}


@cache
def load(path: str) -> Queries:
    text, schema = (PACKAGE / path).read_text(encoding="utf-8"), SCHEMAS[path]
    filled = CLAIM_TABLES[path].fill(text, schema) if path in CLAIM_TABLES else text
    return Queries.parse(filled, source=path, schema=schema)


@cache
def used_names(tree: ast.AST) -> set[str]:
    """`claim_due` of `self._queries.claim_due` and of `queries["claim_due"]`."""
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and last_name(node.value).lower().endswith("queries")
    }
    keys = {
        str(node.slice.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and last_name(node.value).lower().endswith("queries")
        and isinstance(node.slice, ast.Constant)
    }
    return attributes | keys


@cache
def owners(path: str) -> set[str]:
    """The files that a source file's queries come from: its own, and the nearest `queries.sql` above it."""
    own = Path(path).with_suffix(".sql").as_posix()
    folders = [Path(known).parent for known in SCHEMAS if known.endswith("queries.sql")]
    above = [folder for folder in folders if Path(path).is_relative_to(folder)]
    nearest = max(above, key=lambda folder: len(folder.parts), default=None)
    return ({own} & SCHEMAS.keys()) | ({f"{nearest.as_posix()}/queries.sql"} if nearest else set())


def names_used_from(query_file: str) -> set[str]:
    """Used by the modules that own the file, or by those that own none: the daemon's composition uses them all."""
    users = [file for file in source_files() if query_file in (found := owners(file.path)) or not found]
    return set().union(*(used_names(file.tree) for file in users)) - set(dir(Queries))


def test_every_query_file_is_known_here() -> None:
    assert query_files() == SCHEMAS.keys()


@pytest.mark.parametrize("path", sorted(SCHEMAS))
def test_every_query_is_used(path: str) -> None:
    assert set(load(path)) - names_used_from(path) == set()


def test_every_used_query_exists() -> None:
    everything = {name for path in SCHEMAS for name in load(path)}
    for file in source_files():
        known = set().union(*map(load, found)) if (found := owners(file.path)) else everything
        assert used_names(file.tree) - set(dir(Queries)) <= known, file.path


async def test_every_query_fits_the_tables(postgres_server: EmbeddedPostgres) -> None:
    tables = migration_sets([*load_roster(shipped_roster()).values()])
    async with cloned_database(postgres_server, tables, max_size=1) as database, database.connection() as connection:
        refused = [
            f"{path}: {name}: {problem}"
            for path in SCHEMAS
            for name, text in load(path).items()
            if (problem := await _refusal(connection, text))
        ]
    assert refused == []


async def _refusal(connection: Executor, text: str) -> str | None:
    try:
        await connection.prepare(text)
    except asyncpg.PostgresError as error:
        return str(error)
    return None


def test_the_check_sees_both_ways_to_use_a_query() -> None:
    code = 'self._queries.one\nroute_queries["two"]\nother.three'
    assert used_names(ast.parse(code)) == {"one", "two"}
