"""Messages, policies and preferences as they are written down: checked once, at the edge.

What people have stored about themselves may hold more than notifications, so a preference document may have fields that
are not read here; a message may not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfoNotFoundError

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from butlers.contracts.envelope import MAX_IDENTITY, Identity, Text, Timestamp, Value, field_errors
from butlers.errors import ValidationError
from butlers.outbound.pacing import Pacing
from butlers.outbound.quiet_hours import EVERY_DAY, QuietHours, QuietWindow, zone
from butlers.outbound.throttle import Throttling
from butlers.outbound.values import DeliveryPolicy, Message, Mute, Preferences, Priority, Repeat, SystemDefaults
from butlers.reliability.retry import RetryPolicy, Strategy

DEFAULT_EVENT = "message"  # the row of the matrix for a message that names none
MOST_RECIPIENTS = 10_000  # of one document; a call takes fewer (`service.py`), an audience goes through the pipeline
_CLOCK = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d")
_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DAYS = {name: number for number, name in enumerate(("mon", "tue", "wed", "thu", "fri", "sat", "sun"), start=1)}
_LONGEST_DELAY = 30 * 86_400
_Model = TypeVar("_Model", bound=BaseModel)


def _clock(text: str) -> str:
    if _CLOCK.fullmatch(text) is None:
        raise ValueError("must be a time of day, HH:MM")
    return text


def _zone(name: str) -> str:
    try:
        zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("is not a time zone of the IANA list") from None
    return name


def _day(value: Any) -> Any:
    if isinstance(value, str) and (number := _DAYS.get(value[:3].lower())):
        return number
    return value


def _channel(name: str) -> str:
    if _CHANNEL.fullmatch(name) is None:
        raise ValueError("must be the name of a channel")
    return name


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("must not name anything twice")
    return names


def _none_yet(attachments: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    if attachments:
        raise ValueError("cannot be sent: no channel takes attachments of a message yet")
    return attachments


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


Channel = Annotated[str, AfterValidator(_channel)]
Clock = Annotated[str, AfterValidator(_clock)]
Zone = Annotated[str, AfterValidator(_zone)]
Day = Annotated[int, Field(ge=1, le=7), BeforeValidator(_day)]
Delay = Annotated[float, Field(ge=0, le=_LONGEST_DELAY, allow_inf_nan=False)]
Limit = Annotated[int, Field(ge=1, le=1_000_000_000)]
Matrix = dict[str, dict[str, bool | None]]
DigestSeconds = Annotated[int, Field(ge=60, le=7 * 86_400)]


class QuietHoursDocument(Value):
    """One window; days 1 (Monday) to 7, or their names; none named means every day."""

    start_time: Clock
    end_time: Clock
    timezone: Zone
    days_of_week: Annotated[tuple[Day, ...], Field(strict=False)] = ()

    def window(self) -> QuietWindow:
        days = tuple(sorted(set(self.days_of_week) or EVERY_DAY))
        return QuietWindow(start=self.start_time, end=self.end_time, timezone=self.timezone, days=days)


# Not strict, here and for the days: what a validator of ours hands on is a list, and strictness wants a tuple.
QuietHoursList = Annotated[
    tuple[QuietHoursDocument, ...], Field(max_length=16, strict=False), BeforeValidator(_as_list)
]


def _quiet_hours(documents: tuple[QuietHoursDocument, ...] | None) -> QuietHours:
    return QuietHours(tuple(sorted({document.window() for document in documents or ()})))


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class NotificationsDocument(_Stored):
    matrix: Matrix = Field(default_factory=dict)
    digests: dict[str, DigestSeconds] = Field(default_factory=dict)  # event -> seconds


class MuteDocument(_Stored):
    until: Timestamp
    event: Identity | None = None

    def mute(self) -> Mute:
        return Mute(until=self.until.astimezone(UTC), event=self.event)


class PreferenceDocument(_Stored):
    """What a person or an organization has stored."""

    notifications: NotificationsDocument = NotificationsDocument()
    quiet_hours: QuietHoursList | None = Field(default=None, alias="quietHours")
    mutes: Annotated[tuple[MuteDocument, ...], Field(max_length=64)] = ()

    def preferences(self) -> Preferences:
        return Preferences(
            matrix={event: _opinions(row) for event, row in self.notifications.matrix.items()},
            quiet_hours=_quiet_hours(self.quiet_hours),
            mutes=tuple(mute.mute() for mute in self.mutes),
            digests=self.notifications.digests,
        )


def _opinions(row: Mapping[str, bool | None]) -> dict[str, bool]:
    return {channel: opinion for channel, opinion in row.items() if opinion is not None}


class SystemDefaultsDocument(PreferenceDocument):
    channels: Annotated[tuple[Channel, ...], Field(min_length=1), AfterValidator(_unique)] = SystemDefaults().channels
    critical_events: tuple[Identity, ...] = ()

    def defaults(self) -> SystemDefaults:
        return SystemDefaults(
            channels=self.channels, preferences=self.preferences(), critical_events=frozenset(self.critical_events)
        )


class RetryDocument(Value):
    max_attempts: int = Field(default=3, ge=0, le=10)
    backoff_strategy: Strategy = Strategy.EXPONENTIAL
    initial_delay_seconds: Delay = 60.0
    schedule_seconds: Annotated[tuple[Delay, ...], Field(max_length=10)] = ()  # custom only

    @model_validator(mode="after")
    def _custom_has_a_schedule(self) -> RetryDocument:
        if self.backoff_strategy is Strategy.CUSTOM and not self.schedule_seconds:
            raise ValueError("custom needs schedule_seconds")
        return self


class ThrottlingDocument(Value):
    max_per_minute: Limit | None = 60
    max_per_hour: Limit | None = 500
    max_per_day: Limit | None = 1_000


class PacingDocument(Value):
    max_per_minute: Limit | None = None
    max_per_hour: Limit | None = None
    max_per_day: Limit | None = None


class RepeatDocument(Value):
    """Send it again until the recipient acknowledges it."""

    every_seconds: Annotated[float, Field(ge=60, le=_LONGEST_DELAY, allow_inf_nan=False)]
    max_times: int = Field(default=3, ge=1, le=50)


class PolicyMetadata(Value):
    linear_increment_seconds: Delay = 60.0
    max_backoff_seconds: Delay = 1_800.0


class DeliveryPolicyDocument(Value):
    retry: RetryDocument = RetryDocument()
    throttling: ThrottlingDocument = Field(
        default=ThrottlingDocument(), description="limits for each recipient and channel"
    )
    pacing: PacingDocument = Field(default=PacingDocument(), description="limits of the sender over all recipients")
    quiet_hours: QuietHoursList | None = None
    urgent_passes_quiet_hours: bool = False
    digest_seconds: DigestSeconds | None = Field(
        default=None, description="collect it with others of its event type for so long"
    )
    repeat: RepeatDocument | None = Field(default=None, description="send it again until it is acknowledged")
    metadata: PolicyMetadata = PolicyMetadata()

    def policy(self) -> DeliveryPolicy:
        return DeliveryPolicy(
            retry=retry_policy(self.retry, self.metadata),
            throttling=Throttling(**self.throttling.model_dump()),
            pacing=Pacing(**self.pacing.model_dump()),
            quiet_hours=_quiet_hours(self.quiet_hours),
            urgent_passes_quiet_hours=self.urgent_passes_quiet_hours,
            digest_seconds=self.digest_seconds,
            repeat=Repeat(**self.repeat.model_dump()) if self.repeat else None,
        )


def retry_policy(retry: RetryDocument, metadata: PolicyMetadata) -> RetryPolicy:
    return RetryPolicy(
        strategy=retry.backoff_strategy,
        max_attempts=retry.max_attempts,
        initial_delay=retry.initial_delay_seconds,
        increment=metadata.linear_increment_seconds,
        max_delay=metadata.max_backoff_seconds,
        schedule=retry.schedule_seconds,
    )


class MessageDocument(Value):
    """What a caller hands in; `recipient_ids` stays empty when an audience file names them."""

    id: UUID
    sender_id: Identity
    organization_id: Identity | None = None
    recipient_ids: Annotated[tuple[Identity, ...], Field(max_length=MOST_RECIPIENTS), AfterValidator(_unique)] = ()
    event_type: Identity | None = None
    template_id: Identity | None = None
    template_version: int | None = None
    locale: Identity | None = None
    subject: Identity | None = None
    body: Text | None = None
    variables: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    priority: Priority = Priority.NORMAL
    delivery_policy: DeliveryPolicyDocument = DeliveryPolicyDocument()
    conversation_id: Identity | None = None
    attachments: Annotated[tuple[dict[str, Any], ...], AfterValidator(_none_yet)] = ()
    not_after: Timestamp | None = None

    @model_validator(mode="after")
    def _template_or_body(self) -> MessageDocument:
        if (self.template_id is None) == (self.body is None):
            raise ValueError("needs either template_id or body")
        named = self.metadata.get("event", "")
        if not isinstance(named, str) or len(named) > MAX_IDENTITY:
            raise ValueError(f"metadata.event must be a text of at most {MAX_IDENTITY} characters")
        return self

    @property
    def event(self) -> str:
        return self.event_type or self.metadata.get("event") or DEFAULT_EVENT

    def message(self) -> Message:
        return Message(
            id=self.id,
            sender_id=self.sender_id,
            event=self.event,
            organization_id=self.organization_id,
            priority=self.priority,
            policy=self.delivery_policy.policy(),
            not_after=self.not_after.astimezone(UTC) if self.not_after else None,
        )


Kind = Literal["message", "preferences", "defaults"]


def parse_document(model: type[_Model], data: str | bytes, *, kind: Kind) -> _Model:
    """The document, or a refusal that names every wrong field and no value."""
    try:
        return model.model_validate_json(data)
    except pydantic.ValidationError as error:
        fields = tuple(field_errors(error))
        first = fields[0]
        raise ValidationError(f"{kind}: {first.field or 'input'} {first.error}", fields=fields) from None


@lru_cache(maxsize=16_384)
def read_preferences(text: str | None) -> Preferences:
    """The preferences in a document, or a refusal."""
    return parse_document(PreferenceDocument, text, kind="preferences").preferences() if text else Preferences()


@lru_cache(maxsize=64)
def read_defaults(text: str | None) -> SystemDefaults:
    """The system's defaults in a document, or a refusal."""
    return parse_document(SystemDefaultsDocument, text, kind="defaults").defaults() if text else SystemDefaults()
