"""The port to the outside world. Each channel's folder has an adapter; other packages may bring more by entry point.

An adapter makes one attempt and tells how it ended and how sure it is. It says `wire.leaving(part)` immediately before
the first byte that the provider could act on: everything that fails earlier was certainly not sent, everything that
fails later without an answer may have been.

A message may need several parts. Parts before the last are put on record with `wire.part_sent` as they come through;
`Sent` is about the last one. An attempt that comes after a failure finds them in `Outgoing.parts_sent` and goes on
behind them, so nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import UUID

from butlers.errors import ClassifiedError, ValidationError


class Certainty(StrEnum):
    SENT = "sent"
    NOT_SENT = "not_sent"
    UNCERTAIN = "uncertain"  # the bytes left and no answer came


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message, ready to leave."""

    delivery_id: UUID
    idempotency_key: str
    intent: str  # send | reply | react
    target: str  # the channel's own address, canonical
    message: str
    address: str | None = None  # the target as it was given, where that is known
    subject: str | None = None
    emoji: str | None = None
    html: str | None = None  # the same message as HTML, on channels that show it
    unsubscribe_url: str | None = None
    source_event: Mapping[str, Any] = field(default_factory=dict)  # the message that is answered
    parts_sent: Mapping[int, str] = field(default_factory=dict)  # part -> what the provider calls it

    @property
    def as_given(self) -> str:
        """The address in the spelling it was given in, for whom capitals might matter."""
        return self.address or self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """The provider asks to wait, with this one recipient or with everybody."""

    scope: Literal["target", "channel"]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    provider_delivery_id: str  # of the last part
    part: int = 1  # its number
    response: Mapping[str, Any] = field(default_factory=dict)  # redacted
    moved_to: str | None = None  # the recipient's new address, when the provider named one


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """The attempt failed, with a place in the taxonomy and a degree of certainty."""

    error: ClassifiedError
    certainty: Certainty = Certainty.NOT_SENT
    answered: bool = False  # the provider refused, rather than failing to answer
    response: Mapping[str, Any] = field(default_factory=dict)
    throttle: Throttle | None = None
    recipient_gone: bool = False  # blocked us or is no more: not to be tried again
    moved_to: str | None = None
    asked: bool = True  # False: it ended before the provider was asked, which then is not to blame


AttemptResult = Sent | NotSent


class Wire(Protocol):
    """Whom an adapter tells what happens while it happens."""

    def leaving(self, part: int = 1) -> None:
        """The next byte could be acted on. Returns when that is on record."""

    async def part_sent(self, part: int, provider_delivery_id: str) -> None:
        """A part that is not the last came through. Returns when that is durable."""


class Adapter(Protocol):
    name: str  # telegram, email, sms, chat
    identity_scope: str  # bot | user
    resumes: bool  # goes on behind the parts on record; False: a message is one part

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        """Make one attempt. Never raises for what a provider or the network does."""

    async def find(self, outgoing: Outgoing) -> str | None:
        """What the provider calls the message of an uncertain attempt, when it certainly has it."""

    async def close(self) -> None:
        """Give connections back."""


@runtime_checkable
class Probes(Protocol):
    """A channel that can ask its provider whether it knows us, without sending anything."""

    async def probe(self, *, timeout_s: float) -> None:
        """Raises a ClassifiedError that says what is wrong, and in its `remedy` what to do."""


@runtime_checkable
class CountsParts(Protocol):
    """A channel that resumes and can tell how long a message is, so that the confirmation of its last part ends it."""

    def count_parts(self, outgoing: Outgoing) -> int:
        """Raises ValidationError for what could never be sent."""


@runtime_checkable
class Foresees(Protocol):
    """A channel that can say beforehand what its attempts refuse without asking the provider. Not every one can."""

    def problem(self, outgoing: Outgoing) -> ValidationError | None:
        """Why this message could never leave; None when only the provider can tell."""
