"""Where a delivery goes (seed 001 section 6.2), with an address book written by hand."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butlers.contacts import Contact
from butlers.contracts.notify import NotifyEnvelope
from butlers.errors import ValidationError
from butlers.messenger.targets import resolve_target

ANNA, OWNER = UUID(int=1), UUID(int=2)
LINEAGE = {
    "request_id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "source_channel": "telegram",
    "source_endpoint_identity": "bot",
    "source_sender_identity": "anna",
    "source_thread_identity": " 42 ",
}


class Book:
    """An address book that remembers what it was asked."""

    def __init__(self, *, owner: bool = True) -> None:
        self._owner = owner
        self.asked: list[tuple[UUID, str]] = []
        self._known = {(ANNA, "telegram"): "7", (ANNA, "email"): "anna@a.example", (OWNER, "telegram"): "1000"}

    async def identifier(self, contact_id: UUID, channel: str) -> str | None:
        self.asked.append((contact_id, channel))
        return self._known.get((contact_id, channel))

    async def owner(self) -> Contact | None:
        return Contact(id=OWNER, name="Owner", preferred_channel=None, timezone=None) if self._owner else None


def notify(*, intent: str = "send", channel: str = "telegram", **changes: Any) -> NotifyEnvelope:
    recipient = changes.pop("recipient", None)
    delivery = {"intent": intent, "channel": channel, "message": "hello", "recipient": recipient}
    if intent == "react":
        delivery["emoji"] = "👍"
    document = {"schema_version": "notify.v1", "origin_butler": "general", "delivery": delivery}
    return NotifyEnvelope.parse(document | changes)


async def refused_field(envelope: NotifyEnvelope, book: Book) -> str:
    with pytest.raises(ValidationError) as caught:
        await resolve_target(envelope, book)
    (field,) = caught.value.fields
    return field.field


async def test_a_contact_comes_before_an_explicit_recipient() -> None:
    assert await resolve_target(notify(contact_id=str(ANNA), recipient="8"), Book()) == "7"


async def test_a_contact_is_looked_up_for_the_channel_that_is_used() -> None:
    book = Book()
    assert await resolve_target(notify(contact_id=str(ANNA), channel="email"), book) == "anna@a.example"
    assert book.asked == [(ANNA, "email")]


async def test_a_contact_without_an_address_is_refused_and_nobody_else_gets_it() -> None:
    envelope = notify(contact_id=str(OWNER), channel="email", recipient="somebody@b.example")
    assert await refused_field(envelope, Book()) == "contact_id"


async def test_an_explicit_recipient_is_taken_as_it_is_but_for_spaces() -> None:
    book = Book()
    assert await resolve_target(notify(recipient=" 8 "), book) == "8"
    assert book.asked == []


async def test_without_either_it_goes_to_the_owner() -> None:
    assert await resolve_target(notify(), Book()) == "1000"


@pytest.mark.parametrize(("channel", "owner"), [("telegram", False), ("email", True)])
async def test_without_an_owner_for_the_channel_it_is_refused(channel: str, owner: bool) -> None:
    assert await refused_field(notify(channel=channel), Book(owner=owner)) == "delivery.recipient"


@pytest.mark.parametrize("intent", ["reply", "react"])
async def test_an_answer_goes_to_the_conversation(intent: str) -> None:
    book = Book()
    assert await resolve_target(notify(intent=intent, request_context=LINEAGE), book) == "42"
    assert book.asked == []


async def test_a_mail_is_answered_to_its_sender() -> None:
    context = LINEAGE | {"source_channel": "email", "source_sender_identity": "ben@b.example"}
    assert await resolve_target(notify(intent="reply", channel="email", request_context=context), Book()) == (
        "ben@b.example"
    )


async def test_an_answer_never_leaves_by_another_channel() -> None:
    envelope = notify(intent="reply", channel="email", request_context=LINEAGE)
    assert await refused_field(envelope, Book()) == "delivery.channel"


async def test_an_answer_may_name_its_recipient_if_it_is_the_same() -> None:
    assert await resolve_target(notify(intent="reply", recipient="42", request_context=LINEAGE), Book()) == "42"
    envelope = notify(intent="reply", recipient="43", request_context=LINEAGE)
    assert await refused_field(envelope, Book()) == "delivery.recipient"
