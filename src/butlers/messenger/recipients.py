"""Who may be written to, and at which address (seed 001 section 6.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Protocol, Self
from uuid import UUID

from butlers.channels.channel import AnswersGo
from butlers.channels.registry import canonical_address, channel_of
from butlers.contacts import Contact
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyEnvelope


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientPolicy:
    """Patterns `channel:address`; deny wins, an empty allow list allows everybody."""

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientRule:
    rule: str  # suppressed | moved
    moved_to: str | None
    reason: str
    since: datetime


RecipientRules = Mapping[tuple[str, str], RecipientRule]  # (channel, target) -> rule


def not_permitted(policy: RecipientPolicy, *, channel: str, target: str) -> str | None:
    """Why the lists forbid this recipient, if they do."""
    address = f"{channel}:{target}".lower()
    if any(fnmatchcase(address, pattern.lower()) for pattern in policy.deny):
        return "is on the deny list"
    if policy.allow and not any(fnmatchcase(address, pattern.lower()) for pattern in policy.allow):
        return "is not on the allow list"
    return None


def suppressed(rule: RecipientRule | None, *, wrote_at: datetime | None) -> str | None:
    """Why this recipient is not written to any more, if so; `wrote_at`: when they wrote what is answered."""
    if rule is None or rule.rule != "suppressed":
        return None
    # Whoever blocked us and writes again is back.
    if wrote_at is not None and wrote_at > rule.since:
        return None
    return f"is suppressed since {rule.since:%Y-%m-%d}: {rule.reason}"


class AddressBook(Protocol):
    async def identifier(self, contact_id: UUID, channel: str) -> str | None: ...

    async def owner(self) -> Contact | None: ...

    async def get(self, contact_id: UUID) -> Contact | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    target: str  # canonical
    address: str  # as it was given
    how: str  # in plain words

    @classmethod
    def at(cls, channel: str, address: str, *, how: str) -> Self:
        return cls(target=canonical_address(channel, address), address=address.strip(), how=how)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIdentifier:
    contact: Contact


async def resolve_target(notify: NotifyEnvelope, contacts: AddressBook) -> Resolved | MissingIdentifier:
    if notify.delivery.intent != "send":
        return _reply_target(notify)
    channel = notify.delivery.channel
    if notify.contact_id is not None:
        return await _contact_target(notify.contact_id, channel, contacts)
    if notify.delivery.recipient is not None:
        return Resolved.at(channel, notify.delivery.recipient, how="the recipient was named")
    return await _owner_target(channel, contacts)


def _reply_target(notify: NotifyEnvelope) -> Resolved:
    context, delivery = notify.request_context, notify.delivery
    if context is None or context.source_channel != delivery.channel:
        raise invalid("delivery.channel", "a reply leaves by the channel the request came from")
    # A chat is answered where it takes place; a mail goes back to the person.
    to_sender = channel_of(delivery.channel).answers_go is AnswersGo.TO_SENDER
    lineage = context.source_sender_identity if to_sender else context.source_thread_identity
    if lineage is None:
        raise invalid("request_context.source_thread_identity", "is required to answer")
    answered = Resolved.at(delivery.channel, lineage, how="the conversation that is answered")
    if delivery.recipient is not None and canonical_address(delivery.channel, delivery.recipient) != answered.target:
        raise invalid("delivery.recipient", "does not agree with the conversation that is answered")
    return answered


async def _contact_target(contact_id: UUID, channel: str, contacts: AddressBook) -> Resolved | MissingIdentifier:
    identifier = await contacts.identifier(contact_id, channel)
    if identifier is not None:
        return Resolved.at(channel, identifier, how=f"the contact's {channel} identifier")
    contact = await contacts.get(contact_id)
    if contact is None:
        raise invalid("contact_id", "no such contact")
    return MissingIdentifier(contact=contact)


async def _owner_target(channel: str, contacts: AddressBook) -> Resolved:
    owner = await contacts.owner()
    identifier = await contacts.identifier(owner.id, channel) if owner else None
    if identifier is None:
        raise invalid("delivery.recipient", f"is required: no owner with a {channel} identifier is configured")
    return Resolved.at(channel, identifier, how="nobody was named, so it is for the owner")
