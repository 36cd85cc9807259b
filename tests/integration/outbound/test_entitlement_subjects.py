"""Whose a grant is: the one who is meant, and nobody else; and grants that were stored by an earlier version."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import butlers.outbound
from butlers.butler.identity import Caller
from butlers.butler.toolbox import ToolBox
from butlers.contacts import MIGRATIONS as CONTACTS
from butlers.contacts.people import People
from butlers.errors import Conflict, NotFound, ValidationError
from butlers.operations.operation import Role
from butlers.outbound import MIGRATIONS, SCHEMA
from butlers.outbound.preference_tools import EntitlementTools
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet, migrate
from butlers.storage.queries import Queries
from tests.database import cloned_database, cloned_database_uri
from tests.integration.contacts.test_people import add
from tests.integration.outbound.given import Process, process

ANNA, OWNER = UUID("ABCDEF00-0000-7000-8000-000000000001"), UUID("ABCDEF00-0000-7000-8000-000000000002")
GONE = UUID("ABCDEF00-0000-7000-8000-000000000003")
DENIAL = "!messages:receive:*"


@pytest.fixture
async def one(postgres_server: EmbeddedPostgres) -> AsyncIterator[Process]:
    async with cloned_database_uri(postgres_server, [CONTACTS, MIGRATIONS]) as dsn, process(dsn, listens=False) as one:
        await add(one.database, OWNER, "Otto", is_owner=True)
        await add(one.database, ANNA, "Anna Schmidt", telegram="4711")
        for name in ("Sam", "sam"):
            await add(one.database, uuid4(), name)
        yield one


async def call(one: Process, operation: str, subject: str, **given: Any) -> dict[str, Any]:
    tools = EntitlementTools(
        people=People(database=one.database),
        stored=one.entitlements,
        effective=one.entitlements,
        names=lambda: {"finance", "crm", "owner"},
        report=lambda *_given, **_named: None,
    )
    caller = Caller(name="operator", role=Role.OPERATOR)
    return await ToolBox(tools.tools()).call(f"entitlements.{operation}", caller, {"subject": subject, **given})


async def subjects(one: Process) -> list[str]:
    rows = await one.database.fetch("SELECT subject_id FROM outbound.entitlements WHERE permission = $1", DENIAL)
    return [row["subject_id"] for row in rows]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *((text, str(ANNA)) for text in (str(ANNA).upper(), "telegram:4711", "anna schmidt", f" {ANNA}")),
        *((text, str(OWNER)) for text in ("owner", "Owner", "Otto")),
        *((text, text) for text in ("finance", "crm", "role:staff")),
    ],
)
async def test_a_grant_is_of_the_one_who_is_meant(one: Process, given: str, meant: str) -> None:
    assert await call(one, "grant", given, permission=DENIAL) == {"subject": meant, "changed": True}
    assert await subjects(one) == [meant]
    assert (await call(one, "list", given))["effective"].count(DENIAL) == 1
    assert (await call(one, "revoke", given, permission=DENIAL))["changed"] is True


@pytest.mark.parametrize(
    ("given", "error"),
    [(str(GONE), NotFound), ("Nobody", NotFound), ("Finance", NotFound), ("telegram:1", NotFound), ("SAM", Conflict)],
)
async def test_a_subject_that_nobody_is_is_refused(one: Process, given: str, error: type[ValidationError]) -> None:
    for operation in ("grant", "revoke"):
        with pytest.raises(error) as raised:
            await call(one, operation, given, permission=DENIAL)
        assert raised.value.fields[0].field == "subject"
    for operation in ("join", "leave"):
        with pytest.raises(error):
            await call(one, operation, given, role="staff")
    assert await subjects(one) == []


async def test_what_one_holds_who_is_gone_can_be_listed_and_taken_back(one: Process) -> None:
    for subject, given in ((str(GONE), str(GONE).upper()), ("an old caller", "an old caller")):
        await one.entitlements.grant(subject, DENIAL, changed_by="operator")
        assert DENIAL in (await call(one, "list", given))["effective"]
        assert (await call(one, "revoke", given, permission=DENIAL))["changed"] is True
    assert await subjects(one) == []


async def test_a_system_that_decided_by_its_own_grants_goes_on_so(empty_database: Database, tmp_path: Path) -> None:
    first = Path(butlers.outbound.__file__).parent / "migrations" / "0001_outbound.sql"
    shutil.copy(first, tmp_path)
    await migrate(empty_database, [MigrationSet(schema=SCHEMA, directory=tmp_path, component="outbound")])
    await empty_database.execute(
        "INSERT INTO outbound.entitlements (subject_id, permission, granted_at)"
        " VALUES ('anna', 'messages:receive:email', now())"
    )
    await migrate(empty_database, [MIGRATIONS])
    rows = await empty_database.fetch("SELECT subject_id, permission FROM outbound.entitlements")
    assert [tuple(row) for row in rows] == [("anna", "messages:receive:email")]


async def test_the_members_of_a_role_are_found_by_an_index(postgres_server: EmbeddedPostgres) -> None:
    async with cloned_database(postgres_server, [MIGRATIONS]) as database:
        await database.execute(
            "INSERT INTO outbound.memberships"
            " SELECT 'p' || n, 'r' || n % 500, '', now() FROM generate_series(1, 20000) AS n"
        )
        await database.execute("ANALYZE outbound.memberships")
        query = Queries.load("butlers.outbound", schema=SCHEMA).list_memberships
        plan = await database.fetch(f"EXPLAIN {query}", "role:r7", 500)
        assert "Seq Scan" not in "\n".join(row[0] for row in plan)
        assert {row["role"] for row in await database.fetch(query, "role:r7", 500)} == {"r7"}
        assert [row["role"] for row in await database.fetch(query, "p7", 500)] == ["r7"]
        assert await database.fetch(query, "user:r7", 500) == []
