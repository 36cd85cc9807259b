"""Where a delivery goes (seed 001 section 6.2), with an address book written by hand."""

from __future__ import annotations

from uuid import UUID

import pytest

from butlers.contracts.notify import NotifyEnvelope
from butlers.errors import ValidationError
from butlers.messenger.preparation import Resolved, resolve_target

from .given import ANNA, LINEAGE, MAIL_LINEAGE, OWNER, AddressBook, notify


async def target(envelope: NotifyEnvelope, book: AddressBook | None = None) -> str:
    resolution = await resolve_target(envelope, book or AddressBook())
    assert isinstance(resolution, Resolved)
    assert resolution.how
    return resolution.target


async def refused_field(envelope: NotifyEnvelope, book: AddressBook | None = None) -> str:
    with pytest.raises(ValidationError) as caught:
        await resolve_target(envelope, book or AddressBook())
    (field,) = caught.value.fields
    return field.field


async def test_a_contact_comes_before_an_explicit_recipient() -> None:
    assert await target(notify(contact_id=str(ANNA), recipient="8")) == "7"


async def test_a_contact_is_looked_up_for_the_channel_that_is_used() -> None:
    book = AddressBook()
    assert await target(notify(contact_id=str(ANNA), channel="email"), book) == "anna@a.example"
    assert book.asked == [(ANNA, "email")]


async def test_a_contact_without_an_address_is_missing_one_and_nobody_else_gets_it() -> None:
    book = AddressBook()
    envelope = notify(contact_id=str(OWNER), channel="email", recipient="somebody@b.example")
    resolution = await resolve_target(envelope, book)
    assert resolution is None
    assert book.asked == [(OWNER, "email")]


async def test_a_contact_nobody_knows_is_a_mistake_and_not_a_missing_address() -> None:
    envelope = notify(contact_id=str(UUID(int=9)), recipient="8")
    assert await refused_field(envelope) == "contact_id"


async def test_an_explicit_recipient_is_taken_as_it_is_but_for_spaces() -> None:
    book = AddressBook()
    assert await target(notify(recipient=" 8 "), book) == "8"
    resolution = await resolve_target(notify(channel="email", recipient=" Ben@B.example "), book)
    assert isinstance(resolution, Resolved)
    assert (resolution.target, resolution.address) == ("ben@b.example", "Ben@B.example")
    assert book.asked == []


async def test_without_either_it_goes_to_the_owner() -> None:
    assert await target(notify()) == "1000"


@pytest.mark.parametrize(("channel", "owner"), [("telegram", False), ("email", True)])
async def test_without_an_owner_for_the_channel_it_is_refused(channel: str, owner: bool) -> None:
    assert await refused_field(notify(channel=channel), AddressBook(owner=owner)) == "delivery.recipient"


@pytest.mark.parametrize("intent", ["reply", "react"])
async def test_an_answer_goes_to_the_conversation(intent: str) -> None:
    book = AddressBook()
    assert await target(notify(intent=intent, request_context=LINEAGE), book) == "42"
    assert book.asked == []


@pytest.mark.parametrize("intent", ["reply", "react"])
async def test_an_answer_goes_to_the_conversation_whatever_contact_is_named(intent: str) -> None:
    book = AddressBook()
    assert await target(notify(intent=intent, contact_id=str(ANNA)), book) == "42"
    assert book.asked == []


async def test_a_mail_is_answered_to_its_sender() -> None:
    assert await target(notify(intent="reply", channel="email", request_context=MAIL_LINEAGE)) == "ben@b.example"


async def test_an_answer_never_leaves_by_another_channel() -> None:
    envelope = notify(intent="reply", channel="email", request_context=LINEAGE)
    assert await refused_field(envelope) == "delivery.channel"


async def test_an_answer_may_name_its_recipient_if_it_is_the_same() -> None:
    assert await target(notify(intent="reply", recipient="42", request_context=LINEAGE)) == "42"
    envelope = notify(intent="reply", recipient="43", request_context=LINEAGE)
    assert await refused_field(envelope) == "delivery.recipient"
