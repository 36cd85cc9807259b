"""The states of deliveries, requests, approvals and backfill jobs are in one file each, and every place agrees."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import get_args

import pytest
import pytest_asyncio

from butlers.contracts import approval_state as approvals
from butlers.contracts import backfill_state as backfill
from butlers.contracts import delivery_state as deliveries
from butlers.contracts import message_state as messages
from butlers.contracts import request_state as requests
from butlers.daemon.settings import shipped_roster
from butlers.daemon.system import migration_sets
from butlers.messenger.deliveries import DELIVERY_CLAIMS
from butlers.messenger.tools.why import STANDINGS
from butlers.roster import load_roster
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.requests.inbox import MESSAGE_CLAIMS
from tests.architecture.source import PACKAGE
from tests.database import cloned_database

DELIVERY = frozenset(deliveries.DeliveryState)
REQUEST = frozenset(requests.RequestState)
# table -> column, every state, the groups that its indexes may name
TABLES: dict[str, tuple[str, frozenset[str], Mapping[str, frozenset[str]]]] = {
    "messenger.delivery_requests": ("status", DELIVERY, deliveries.GROUPS),
    "outbound.scheduled_messages": ("state", frozenset(messages.MessageState), messages.GROUPS),
    "switchboard.message_inbox": ("lifecycle_state", REQUEST, requests.GROUPS),
    "messenger.pending_actions": ("status", frozenset(approvals.STATUSES), approvals.GROUPS),
    "switchboard.backfill_jobs": ("status", frozenset(backfill.Status), backfill.GROUPS),
}
QUOTED = re.compile(r"'([a-z_]+)'")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    tables = migration_sets([*load_roster(shipped_roster()).values()])
    async with cloned_database(postgres_server, tables, max_size=1) as database:
        yield database


def lists_of(column: str, sql: str) -> Iterator[frozenset[str]]:
    """The states of each `column IN (...)`, as people write it and as PostgreSQL prints it."""
    written = re.findall(rf"\b{column}\s+IN\s*\(((?:\s*'[a-z_]+'\s*,?)+)\)", sql)
    printed = re.findall(rf"\b{column} = ANY \(ARRAY\[([^\]]+)\]", sql)
    yield from (frozenset(QUOTED.findall(found)) for found in [*written, *printed])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("table", TABLES)
async def test_the_check_of_the_table_allows_every_state_and_no_other(database: Database, table: str) -> None:
    column, states, _ = TABLES[table]
    definitions = "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint WHERE conrelid = $1::text::regclass"
    rows = await database.fetch(definitions, table)
    checks = [found for row in rows for found in lists_of(column, row["text"])]
    assert states in checks


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("table", TABLES)
async def test_the_indexes_of_the_table_name_groups(database: Database, table: str) -> None:
    column, _, groups = TABLES[table]
    rows = await database.fetch(
        "SELECT pg_get_indexdef(indexrelid) AS text FROM pg_index WHERE indrelid = $1::text::regclass", table
    )
    named = {found for row in rows for found in lists_of(column, row["text"])}
    assert named <= set(groups.values())


@pytest.mark.parametrize(
    ("folder", "column", "groups"),
    [
        ("messenger", "status", {**deliveries.GROUPS, **{f"approval {k}": v for k, v in approvals.GROUPS.items()}}),
        ("switchboard", "lifecycle_state", requests.GROUPS),
        ("butler/approvals", "status", approvals.GROUPS),
        ("switchboard/connectors", "status", backfill.GROUPS),
        ("outbound", "state", messages.GROUPS),
    ],
)
def test_queries_name_groups(folder: str, column: str, groups: dict[str, Collection[str]]) -> None:
    known = [frozenset(group) for group in groups.values()]
    for path in sorted((PACKAGE / folder).rglob("queries.sql")):
        for found in lists_of(column, path.read_text(encoding="utf-8")):
            assert found in known, f"{path}: {sorted(found)} is no group of states"


def test_the_wire_names_the_same_states() -> None:
    assert frozenset(get_args(deliveries.DeliveryStatus)) == DELIVERY


@pytest.mark.parametrize(
    ("states", "transitions"),
    [
        (DELIVERY, deliveries.TRANSITIONS),
        (REQUEST, requests.TRANSITIONS),
        (frozenset(messages.MessageState), messages.TRANSITIONS),
        (frozenset(approvals.STATUSES), approvals.TRANSITIONS),
    ],
)
def test_every_state_has_its_transitions(states: frozenset[str], transitions: dict[str, frozenset[str]]) -> None:
    assert frozenset(transitions) == states
    assert frozenset().union(*transitions.values()) <= states


def test_a_delivery_is_open_parked_or_ended() -> None:
    assert sorted([*deliveries.UNENDED, *deliveries.ENDED]) == sorted(DELIVERY)
    assert sorted([*requests.OPEN, *requests.ENDED]) == sorted(REQUEST)
    assert sorted([*messages.OPEN, *messages.ENDED]) == sorted(messages.MessageState)
    assert sorted([*backfill.OPEN, *backfill.NEEDS_PERSON, *backfill.ENDED]) == sorted(backfill.Status)


def test_every_state_of_a_delivery_is_explained() -> None:
    assert frozenset(STANDINGS) == DELIVERY


def test_a_claim_moves_a_row_as_the_states_allow() -> None:
    for waiting in deliveries.WAITING:
        assert DELIVERY_CLAIMS.held in deliveries.TRANSITIONS[waiting]
        assert f"'{waiting}'" in DELIVERY_CLAIMS.waiting
    assert MESSAGE_CLAIMS.held in requests.TRANSITIONS[requests.RequestState.ACCEPTED]
