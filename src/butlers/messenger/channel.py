"""The port to the outside world. Adapters are in `channels/`.

An adapter makes one attempt and tells how it ended and how sure it is. It calls `leaving()` immediately before the
first byte that the provider could act on: everything that fails earlier was certainly not sent, everything that fails
later without an answer may have been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from butlers.errors import ClassifiedError


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
    target: str  # the channel's own address
    message: str
    subject: str | None = None
    emoji: str | None = None
    source_event: Mapping[str, Any] = field(default_factory=dict)  # the message that is answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    provider_delivery_id: str
    response: Mapping[str, Any] = field(default_factory=dict)  # redacted


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """The attempt failed, with a place in the taxonomy and a degree of certainty."""

    error: ClassifiedError
    certainty: Certainty = Certainty.NOT_SENT
    answered: bool = False  # the provider refused, rather than failing to answer
    response: Mapping[str, Any] = field(default_factory=dict)


AttemptResult = Sent | NotSent
Leaving = Callable[[], None]


class Channel(Protocol):
    name: str

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, leaving: Leaving) -> AttemptResult:
        """Make one attempt. Never raises for what a provider or the network does."""

    async def close(self) -> None:
        """Give connections back."""
