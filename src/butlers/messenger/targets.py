"""Where a delivery goes (seed 001 section 6.2).

    send     contact_id (primary identifier first)  >  explicit recipient  >  the owner
    reply    the conversation the request came from; an explicit recipient must agree with it

There is no default beyond these: without a target the request is refused.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from butlers.contacts import Contact
from butlers.contracts.envelope import invalid
from butlers.contracts.notify import NotifyEnvelope


class AddressBook(Protocol):
    async def identifier(self, contact_id: UUID, channel: str) -> str | None: ...

    async def owner(self) -> Contact | None: ...


async def resolve_target(notify: NotifyEnvelope, contacts: AddressBook) -> str:
    if notify.delivery.intent != "send":
        return _reply_target(notify)
    channel = notify.delivery.channel
    if notify.contact_id is not None:
        return await _contact_target(notify.contact_id, channel, contacts)
    if notify.delivery.recipient is not None:
        return notify.delivery.recipient.strip()
    return await _owner_target(channel, contacts)


def _reply_target(notify: NotifyEnvelope) -> str:
    context, delivery = notify.request_context, notify.delivery
    if context is None or context.source_channel != delivery.channel:
        raise invalid("delivery.channel", "a reply leaves by the channel the request came from")
    # A conversation is answered where it takes place; mail goes back to the person.
    lineage = context.source_sender_identity if delivery.channel == "email" else context.source_thread_identity
    if lineage is None:
        raise invalid("request_context.source_thread_identity", "is required to answer")
    if delivery.recipient is not None and delivery.recipient.strip() != lineage.strip():
        raise invalid("delivery.recipient", "does not agree with the conversation that is answered")
    return lineage.strip()


async def _contact_target(contact_id: UUID, channel: str, contacts: AddressBook) -> str:
    identifier = await contacts.identifier(contact_id, channel)
    if identifier is None:
        raise invalid("contact_id", f"this contact has no {channel} identifier")
    return identifier


async def _owner_target(channel: str, contacts: AddressBook) -> str:
    owner = await contacts.owner()
    identifier = await contacts.identifier(owner.id, channel) if owner else None
    if identifier is None:
        raise invalid("delivery.recipient", f"is required: no owner with a {channel} identifier is configured")
    return identifier
