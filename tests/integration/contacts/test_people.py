"""References to people: ids, the owner, addresses and names, in one query, with errors that name every wrong one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from butlers.contacts import MIGRATIONS
from butlers.contacts.people import MOST_REFERENCES, People, PersonRecord, read_reference
from butlers.errors import Conflict, NotFound, ValidationError
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
ANNA, OWNER, FIRST_SAM, SECOND_SAM = (UUID(int=number) for number in range(1, 5))


@pytest.fixture
async def database(postgres_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    async with cloned_database(postgres_server, [MIGRATIONS]) as database:
        await add(database, OWNER, "Otto", is_owner=True, telegram="99")
        await add(database, ANNA, "Anna Schmidt", telegram="4711", email="Anna@example.org")
        await database.execute(
            "update shared.contacts set timezone = 'Europe/Berlin', locale = 'de' where id = $1", ANNA
        )
        await add(database, FIRST_SAM, "Sam")
        await add(database, SECOND_SAM, "sam")
        yield database


async def add(database: Database, contact: UUID, name: str, *, is_owner: bool = False, **identities: str) -> None:
    await database.execute(
        "insert into shared.contacts (id, name, is_owner, preferred_channel, created_at, updated_at)"
        " values ($1, $2, $3, $4, $5, $5)",
        contact, name, is_owner, next(iter(identities), None), NOW,
    )  # fmt: skip
    for channel, value in identities.items():
        await database.execute(
            "insert into shared.contact_info (id, contact_id, type, value, created_at) values ($1, $2, $3, $4, $5)",
            uuid4(), contact, channel, value, NOW,
        )  # fmt: skip


async def test_every_way_to_name_a_person_finds_the_same_one(database: Database) -> None:
    ways = [str(ANNA), str(ANNA).upper(), "telegram:4711", "email:anna@EXAMPLE.org", "anna schmidt", " Anna Schmidt "]
    people = await People(database=database).resolve_people([*ways, "owner"])
    assert {way: people[way].id for way in ways} == dict.fromkeys(ways, ANNA)
    assert people["owner"].id == OWNER
    assert people["telegram:4711"] == PersonRecord(
        id=ANNA,
        name="Anna Schmidt",
        timezone="Europe/Berlin",
        locale="de",
        preferred_channel="telegram",
        channels=frozenset({"telegram", "email"}),
    )


async def test_a_credential_is_no_address(database: Database) -> None:
    await database.execute("update shared.contact_info set secured = true where contact_id = $1", ANNA)
    people = People(database=database)
    with pytest.raises(NotFound):
        await people.resolve_people(["telegram:4711"])
    assert (await people.resolve_people([str(ANNA)]))[str(ANNA)].channels == frozenset()


@pytest.mark.parametrize(
    ("reference", "error", "word"),
    [
        ("Nobody", NotFound, "names no contact"),
        (str(UUID(int=77)), NotFound, "names no contact"),
        ("telegram:1", NotFound, "names no contact"),
        ("pigeon:4711", NotFound, "names no contact"),  # no such channel, so it is a name
        ("Sam", Conflict, "names several contacts"),
        ("", ValidationError, "must be text"),
        ("telegram:", ValidationError, "must be text"),
        ("a\x00b", ValidationError, "must be text"),
        ("a" * 513, ValidationError, "must be text"),
    ],
)
async def test_a_wrong_reference_is_refused(
    database: Database, reference: str, error: type[ValidationError], word: str
) -> None:
    with pytest.raises(error) as raised:
        await People(database=database).resolve_people([reference])
    assert type(raised.value) is error
    assert raised.value.fields[0].field == "person"
    assert word in raised.value.fields[0].error


async def test_all_wrong_references_are_named_at_once_and_the_known_ones_can_still_be_had(database: Database) -> None:
    people = People(database=database)
    references = ["owner", "Nobody", "Sam", "telegram:4711"]
    with pytest.raises(ValidationError) as raised:
        await people.resolve_people(references, field="recipients")
    assert [field.field for field in raised.value.fields] == ["recipients[1]", "recipients[2]"]
    found = await people.find_people(references)
    assert {text: person.id for text, person in found.people.items()} == {"owner": OWNER, "telegram:4711": ANNA}
    assert {text: type(problem) for text, problem in found.problems.items()} == {"Nobody": NotFound, "Sam": Conflict}


async def test_a_thousand_references_and_no_more_than_allowed(database: Database) -> None:
    people = People(database=database)
    found = await people.find_people(["owner", *(f"telegram:{number}" for number in range(1_000))])
    assert len(found.people) == 2 and len(found.problems) == 999  # the owner is telegram:99, too
    with pytest.raises(ValidationError):
        await people.find_people(str(number) for number in range(MOST_REFERENCES + 1))


def test_a_name_with_a_colon_is_a_name() -> None:
    reference = read_reference("Dr: Anna")
    assert reference is not None and reference.name == "Dr: Anna"
