"""Events as Google writes them, and as the tools show them.

A moment is a datetime with an offset, or a date for an event that lasts whole days; the end is always exclusive.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from typing import Any
from zoneinfo import ZoneInfo

from butlers.butler.calendar.conflicts import Busy, Slot

Event = dict[str, Any]
Moment = datetime | date

# Private properties of an event: fingerprints of the wish it came from and of the last change we made.
WISH = "butlers_wish"
CHANGE = "butlers_change"


def event_id_of(key: str) -> str:
    """The id that belongs to an idempotency key; Google takes a-v and 0-9 only."""
    return base64.b32hexencode(hashlib.sha256(key.encode()).digest()).decode().rstrip("=").lower()


def fingerprint(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def marked(body: Event, name: str, mark: str) -> Event:
    return body | {"extendedProperties": {"private": {name: mark}}}


def mark_of(event: Event, name: str) -> Any:
    return event.get("extendedProperties", {}).get("private", {}).get(name)


def moment_to_wire(moment: Moment, time_zone: str | None = None) -> dict[str, Any]:
    if not isinstance(moment, datetime):
        return {"date": moment.isoformat()}
    return {"dateTime": moment.isoformat(), **({"timeZone": time_zone} if time_zone else {})}


def moment_to_patch(moment: Moment, time_zone: str | None = None) -> dict[str, Any]:
    """A null takes a field away, so that a timed event can become one of whole days and back."""
    return {"date": None, "dateTime": None, "timeZone": None} | moment_to_wire(moment, time_zone)


def slot_between(start: Moment, end: Moment, zone: ZoneInfo) -> Slot:
    """The instants between two moments; a day begins at midnight where the calendar is."""
    return Slot(_instant(start, zone), _instant(end, zone))


def slot_of(event: Event, zone: ZoneInfo) -> Slot:
    return slot_between(_moment(event["start"]), _moment(event["end"]), zone)


def is_cancelled(event: Event) -> bool:
    """Deleted; Google still shows it to whoever knows its id."""
    return event.get("status") == "cancelled"


def takes_time(event: Event) -> bool:
    """Whether somebody who wants the same time is in its way: not cancelled, not shown as free, not declined."""
    declined = any(a.get("self") and a.get("responseStatus") == "declined" for a in event.get("attendees", ()))
    free = declined or is_cancelled(event) or event.get("transparency") == "transparent"
    return not free and "start" in event


def busy_of(events: Iterable[Event], zone: ZoneInfo, *, without: str | None = None) -> list[Busy]:
    return [
        Busy(slot=slot_of(event, zone), event_id=event["id"], summary=event.get("summary"))
        for event in events
        if takes_time(event) and event["id"] != without
    ]


def shown(event: Event) -> dict[str, Any]:
    """An event as the tools answer it."""
    start, end = event.get("start", {}), event.get("end", {})
    return {
        "event_id": event["id"],
        "etag": event.get("etag"),
        "status": event.get("status", "confirmed"),
        "summary": event.get("summary"),
        "description": event.get("description"),
        "location": event.get("location"),
        "start": start.get("dateTime") or start.get("date"),
        "end": end.get("dateTime") or end.get("date"),
        "time_zone": start.get("timeZone"),
        "all_day": "date" in start,
        "busy": takes_time(event),
        "attendees": [attendee.get("email") for attendee in event.get("attendees", ())],
    }


def shown_slot(slot: Slot, zone: ZoneInfo) -> dict[str, str]:
    return {"start": slot.start.astimezone(zone).isoformat(), "end": slot.end.astimezone(zone).isoformat()}


def shown_busy(busy: Busy, zone: ZoneInfo) -> dict[str, Any]:
    return shown_slot(busy.slot, zone) | {"event_id": busy.event_id, "summary": busy.summary}


def _moment(wire: dict[str, str]) -> Moment:
    if "dateTime" in wire:
        return datetime.fromisoformat(wire["dateTime"])
    return date.fromisoformat(wire["date"])


def _instant(moment: Moment, zone: ZoneInfo) -> datetime:
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time(), tzinfo=zone)
    return moment.astimezone(UTC)
