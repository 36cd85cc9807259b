"""What the decisions take and give: frozen, without any trace of where it was read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from butlers.channels.registry import written_names
from butlers.outbound.pacing import Pacing
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
    """Why a recipient does not get a message."""

    NO_CHANNEL = "no-channel"
    SENDER_PERMISSION = "sender-permission"
    RECIPIENT_PERMISSION = "recipient-permission"
    QUEUE_ERROR = "queue-error"  # the queue did not take it; the message is stored and is queued later
    THROTTLED = "throttled"  # there is no time for it before the horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A message that is sent again until its recipient acknowledges it."""

    every_seconds: float
    max_times: int  # after the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """How patiently, how fast and when not."""

    retry: RetryPolicy = RUNTIME_RETRY
    throttling: Throttling = field(default_factory=Throttling)  # for each recipient and channel, when it is due
    pacing: Pacing = field(default_factory=Pacing)  # of the sender over all recipients, when it is scheduled
    quiet_hours: QuietHours = field(default_factory=QuietHours)
    urgent_passes_quiet_hours: bool = False
    digest_seconds: int | None = None  # collect it with others for so long; None: it goes alone
    repeat: Repeat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What the decisions need to know of a message; its text is not among it."""

    id: UUID
    sender_id: str
    event: str  # the row of the notification matrix
    organization_id: str | None = None
    priority: Priority = Priority.NORMAL
    policy: DeliveryPolicy = field(default_factory=DeliveryPolicy)
    not_after: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mute:
    """A person's "not now": snooze of one event type, or do not disturb at all."""

    until: datetime
    event: str | None = None  # None: every event type


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What a person, an organization or the system has said about notifications."""

    matrix: Mapping[str, Opinions] = field(default_factory=dict)  # event -> opinions
    quiet_hours: QuietHours = field(default_factory=QuietHours)
    mutes: tuple[Mute, ...] = ()
    digests: Mapping[str, int] = field(default_factory=dict)  # event -> seconds that messages are collected

    def opinions(self, event: str) -> Opinions:
        """Those on the event type; where they say nothing, those on `*`."""
        every, own = self.matrix.get("*"), self.matrix.get(event, {})
        return {**every, **own} if every else own

    def muted_until(self, event: str, now: datetime) -> datetime | None:
        """The end of the mute that holds now for an event type."""
        ends = (mute.until for mute in self.mutes if mute.event in (None, event) and mute.until > now)
        return max(ends, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemDefaults:
    """What holds where no person and no organization says anything."""

    channels: tuple[str, ...] = field(default_factory=written_names)  # enabled; the order decides between equals
    preferences: Preferences = field(default_factory=Preferences)
    critical_events: frozenset[str] = frozenset()  # pass quiet hours, mutes and digests, but no opt-out


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """A person as stored: two equal ones get the same decision, whatever their ids."""

    id: str
    preferences: str | None  # the document as text, None when there is none
    permissions: frozenset[str]
    reachable: frozenset[str] | None = None  # channels on which an address is known; None: not known here
    preferred: str | None = None  # the channel that the contact names as usual
    failed: frozenset[str] = frozenset()  # channels that this message was tried on in vain


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    recipient_id: str
    channel: str
    scheduled_at: datetime
    detail: str = ""  # the rule that chose the channel, and what was bypassed


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    recipient_id: str
    reason: BlockedReason
    detail: str


Outcome = Queued | Blocked


def dedupe_key(message_id: UUID, recipient_id: str) -> str:
    """Names one message to one person, from the queue to the provider."""
    return f"{message_id}:{recipient_id}"


def dedupe_keys(message_id: UUID, recipient_ids: Iterable[str]) -> dict[str, str]:
    """The same for many, by recipient."""
    prefix = dedupe_key(message_id, "")
    return {one: prefix + one for one in recipient_ids}
