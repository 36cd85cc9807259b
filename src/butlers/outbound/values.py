"""What the decisions take and give: frozen, without any trace of where it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from butlers.channels.registry import written_names
from butlers.outbound.quiet_hours import QuietHours
from butlers.outbound.throttle import Throttling
from butlers.reliability.retry import RUNTIME_RETRY, RetryPolicy

Opinions = Mapping[str, bool]  # channel -> wanted or refused; an absent channel is no opinion


class Priority(StrEnum):
    URGENT = "urgent"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class BlockedReason(StrEnum):
    """Why nothing is scheduled for a recipient."""

    NO_CHANNEL = "no-channel"
    SENDER_PERMISSION = "sender-permission"
    RECIPIENT_PERMISSION = "recipient-permission"
    THROTTLED = "throttled"  # there is no time for it before the horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """How patiently, how fast and when not."""

    retry: RetryPolicy = RUNTIME_RETRY
    throttling: Throttling = field(default_factory=Throttling)
    quiet_hours: QuietHours = field(default_factory=QuietHours)
    urgent_passes_quiet_hours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What the decisions need to know of a message; its words are not among it."""

    id: UUID
    sender_id: str
    event: str  # the row of the notification matrix
    organization_id: str | None = None
    priority: Priority = Priority.NORMAL
    policy: DeliveryPolicy = field(default_factory=DeliveryPolicy)
    not_after: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What a person, an organization or the system has said about notifications."""

    matrix: Mapping[str, Opinions] = field(default_factory=dict)  # event -> opinions
    quiet_hours: QuietHours = field(default_factory=QuietHours)

    def opinions(self, event: str) -> Opinions:
        return self.matrix.get(event, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemDefaults:
    """What holds where nobody else has said anything."""

    channels: tuple[str, ...] = field(default_factory=written_names)  # enabled; the order decides between equals
    preferences: Preferences = field(default_factory=Preferences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """A person as stored: two equal ones get the same decision, whatever their ids."""

    id: str
    preferences: str | None  # the document as text, None when there is none
    permissions: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    recipient_id: str
    channel: str
    scheduled_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    recipient_id: str
    reason: BlockedReason
    detail: str


Outcome = Queued | Blocked


def dedupe_key(message_id: UUID, recipient_id: str) -> str:
    """Names one message to one person, from the queue to the provider."""
    return f"{message_id}:{recipient_id}"
