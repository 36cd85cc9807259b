"""Values that tests of the core start from."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.channels.adapter import Outgoing
from butlers.contacts import Contact
from butlers.contracts.notify import NotifyEnvelope
from butlers.messenger.delivery import AdmissionRequest, ClaimedDelivery, NewDelivery
from butlers.reliability.error_budget import BudgetMode

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
REQUEST_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
ANNA, OWNER = UUID(int=1), UUID(int=2)
LINEAGE = {
    "request_id": REQUEST_ID,
    "source_channel": "telegram",
    "source_endpoint_identity": "bot",
    "source_sender_identity": "anna",
    "source_thread_identity": " 42 ",
}
MAIL_LINEAGE = LINEAGE | {
    "source_channel": "email",
    "source_sender_identity": "ben@b.example",
    "source_thread_identity": "<first@b.example>",
}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class AddressBook:
    """An address book that remembers what it was asked. The owner has no mail address."""

    def __init__(self, *, owner: bool = True) -> None:
        self._owner = owner
        self.asked: list[tuple[UUID, str]] = []
        self.known = {(ANNA, "telegram"): "7", (ANNA, "email"): "anna@a.example", (OWNER, "telegram"): "1000"}

    async def identifier(self, contact_id: UUID, channel: str) -> str | None:
        self.asked.append((contact_id, channel))
        return self.known.get((contact_id, channel))

    async def owner(self) -> Contact | None:
        return await self.get(OWNER) if self._owner else None

    async def get(self, contact_id: UUID) -> Contact | None:
        names = {ANNA: "Anna", OWNER: "Owner"}
        if contact_id not in names:
            return None
        return Contact(id=contact_id, name=names[contact_id], preferred_channel=None, timezone=None)


def notify(
    *,
    intent: str = "send",
    channel: str = "telegram",
    origin: str = "general",
    message: str = "hello",
    recipient: str | None = None,
    subject: str | None = None,
    **changes: Any,
) -> NotifyEnvelope:
    delivery = {"intent": intent, "channel": channel, "message": message, "recipient": recipient, "subject": subject}
    if intent == "react":
        delivery["emoji"] = "👍"
    if intent != "send":
        changes = {"request_context": MAIL_LINEAGE if channel == "email" else LINEAGE} | changes
    return NotifyEnvelope.parse(
        {"schema_version": "notify.v1", "origin_butler": origin, "delivery": delivery} | changes
    )


def new_delivery(identity: UUID = UUID(int=100), *, target: str | None = "7", **changes: Any) -> NewDelivery:
    """A delivery to chat 7; words that are not its own go into its envelope."""
    own = {name: changes.pop(name) for name in list(changes) if name in NewDelivery.__dataclass_fields__}
    envelope = own.pop("notify", None) or notify(**changes)
    values: dict[str, Any] = {
        "id": identity,
        "idempotency_key": f"key-{identity}",
        "notify": envelope,
        "target": target,
        "identity_scope": "bot",
        "message": envelope.delivery.message,
        "subject": envelope.delivery.subject,
        "ordering_key": f"{envelope.delivery.channel}:{target}",
        "source_event": None,
        "duplicate_detection": True,
    }
    return NewDelivery(**(values | own))


def claimed_delivery(**changes: Any) -> ClaimedDelivery:
    outgoing = Outgoing(delivery_id=UUID(int=100), idempotency_key="key", intent="send", target="7", message="hello")
    values: dict[str, Any] = {
        "id": UUID(int=100),
        "claim_token": UUID(int=200),
        "attempt_id": UUID(int=300),
        "attempt": 1,
        "channel": "telegram",
        "identity_scope": "bot",
        "origin_butler": "general",
        "request_id": None,
        "created_at": START,
        "not_after": None,
        "trace_context": {},
        "outgoing": outgoing,
        "generation": 0,
        "mode": BudgetMode.NORMAL,
        "in_doubt": False,
        "last_error_class": None,
    }
    return ClaimedDelivery(**(values | changes))


def request(
    *, channel: str = "telegram.bot", recipient: str = "7", origin: str = "general", intent: str = "send"
) -> AdmissionRequest:
    return AdmissionRequest(channel=channel, recipient=recipient, origin=origin, intent=intent)


class Row(dict[str, Any]):
    """A row of a table, as far as it is read."""


def row(values: Mapping[str, Any], **changes: Any) -> Any:
    return Row({**values, **changes})
