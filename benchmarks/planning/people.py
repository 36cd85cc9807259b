"""People of every kind, for audiences: the same number always gives the same person."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

CHANNELS = ("telegram", "email", "sms", "push")
NOW = datetime(2026, 3, 28, 22, 30, 15, tzinfo=UTC)  # the night in which Europe's clocks go forward
SENDER, ORGANIZATION, EVENT = "campaigns", "acme", "invoice"
SENDER_PERMISSIONS = ("messages:send:telegram", "messages:send:email", "messages:*:sms")
SYSTEM = {"channels": list(CHANNELS), "notifications": {"matrix": {EVENT: {"email": True}}}}
ORGANIZATION_DEFAULTS = {"notifications": {"matrix": {EVENT: {"push": False, "sms": True}}}}
UNLIMITED = {"max_per_minute": None, "max_per_hour": None, "max_per_day": None}
TIGHT = {"max_per_minute": 30, "max_per_hour": 400, "max_per_day": None}

_ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Tokyo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "UTC",
)
_CLOCKS = ("00:00", "01:30", "02:00", "02:30", "06:45", "08:00", "12:00", "21:15", "22:00", "23:30")
_GRANTS = (
    ("messages:receive:*",),
    ("messages:receive:*",),
    ("messages:receive:email", "messages:receive:telegram"),
    ("messages:*:*",),
    ("messages:receive:sms",),
    ("messages:send:*",),
    (),
)


def person_id(number: int) -> str:
    return f"person-{number:08d}"


def grants(number: int) -> tuple[str, ...]:
    return random.Random(f"grants {number}").choice(_GRANTS)


def document(number: int) -> dict[str, Any] | None:
    """What the person has stored; one in ten has stored nothing."""
    chance = random.Random(f"document {number}")
    if chance.random() < 0.1:
        return None
    matrix = {event: _opinions(chance) for event in (EVENT, "other")}
    stored: dict[str, Any] = {"notifications": {"matrix": matrix}}
    windows = [_window(chance) for _ in range(chance.choice((0, 1, 1, 1, 2)))]
    if windows:
        stored["quietHours"] = windows[0] if len(windows) == 1 else windows
    return stored


def _opinions(chance: random.Random) -> dict[str, bool]:
    if chance.random() < 0.08:
        return dict.fromkeys(CHANNELS, False)
    return {channel: chance.random() < 0.6 for channel in CHANNELS if chance.random() < 0.5}


def _window(chance: random.Random) -> dict[str, Any]:
    start, end = chance.choice(_CLOCKS), chance.choice(_CLOCKS)
    days = sorted(chance.sample(range(1, 8), chance.randint(1, 7))) if chance.random() < 0.4 else []
    return {"start_time": start, "end_time": end, "timezone": chance.choice(_ZONES), "days_of_week": days}


def message(message_id: str, *, pacing: dict[str, Any], recipients: list[str] | None = None) -> str:
    quiet = {"start_time": "03:00", "end_time": "03:45", "timezone": "Europe/Berlin"}
    fields = {
        "id": message_id,
        "sender_id": SENDER,
        "organization_id": ORGANIZATION,
        "body": "The invoice for March is ready.",
        "metadata": {"event": EVENT},
        "delivery_policy": {"pacing": pacing, "quiet_hours": quiet},
    }
    return json.dumps(fields | ({"recipient_ids": recipients} if recipients else {}))
