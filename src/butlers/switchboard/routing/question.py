"""What is to be routed: one message, and what is known of where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.butler.runtime import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuestion:
    text: str
    channel: str = "api"
    sender: str = ""
    endpoint: str = ""
    thread: str | None = None
    pinned_target: str | None = None
    policy_tier: str = "default"
    request_id: UUID | None = None  # none: nothing is stored, somebody only asks
    received_at: datetime | None = None
    raw_payload: Mapping[str, Any] | None = None
    history: Sequence[Turn] = ()  # what was said before, oldest first: context, never routed
