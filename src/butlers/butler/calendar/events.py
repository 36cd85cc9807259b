"""Events as Google writes them and as the tools show them, and what to do about a time that is taken. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

Policy = Literal["suggest", "reject", "allow"]

SUGGESTIONS = 3
SEARCH = timedelta(days=7)  # how far from the wanted time a suggestion may lie, either way
_QUARTER_S = 900
# Private properties of an event: fingerprints of the wish it came from and of the last change we made.
REQUESTED = "butlers_wish"
CHANGE = "butlers_change"


@dataclass(frozen=True, slots=True)
class Slot:
    """From `start` up to and without `end`, both in UTC."""

    start: datetime
    end: datetime

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    def overlaps(self, other: Slot) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A time that is taken, and by what."""

    slot: Slot
    event_id: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingHours:
    opens: time
    closes: time  # later than `opens`
    zone: ZoneInfo  # the calendar's

    def on(self, day: date) -> Slot:
        return Slot(self._instant(day, self.opens), self._instant(day, self.closes))

    def _instant(self, day: date, at: time) -> datetime:
        return datetime.combine(day, at, tzinfo=self.zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Taken:
    """What is in the way of a time, and free times instead."""

    conflicts: tuple[Busy, ...]
    alternatives: tuple[Slot, ...] = ()  # as long as the wanted one, nearest first, none overlaps another


def decide(
    requested: Slot, busy: Sequence[Busy], *, policy: Policy, hours: WorkingHours, now: datetime
) -> Taken | None:
    """None: nothing stands against it."""
    conflicts = tuple(taken for taken in busy if taken.slot.overlaps(requested))
    if not conflicts or policy == "allow":
        return None
    if policy == "reject":
        return Taken(conflicts)
    return Taken(conflicts, _alternatives(requested, [taken.slot for taken in busy], hours, now))


def search_window(slot: Slot) -> Slot:
    """What must be known of the calendar to decide about a slot."""
    return Slot(slot.start - SEARCH, slot.end + SEARCH)


def free_gaps(window: Slot, busy: Iterable[Slot], *, hours: WorkingHours, now: datetime) -> Iterator[Slot]:
    """The free stretches of the working hours within a window, from now on, in order."""
    taken = sorted(busy, key=lambda slot: slot.start)
    since = max(window.start, now)
    for day in _days(window, hours.zone):
        open_hours = hours.on(day)
        yield from _without(Slot(max(open_hours.start, since), min(open_hours.end, window.end)), taken)


def _alternatives(requested: Slot, busy: list[Slot], hours: WorkingHours, now: datetime) -> tuple[Slot, ...]:
    gaps = free_gaps(search_window(requested), busy, hours=hours, now=now)
    fitting = (slot for gap in gaps for slot in _quarter_hours(gap, requested.length))
    chosen: list[Slot] = []
    for slot in sorted(fitting, key=lambda slot: (abs(slot.start - requested.start), slot.start)):
        if not any(slot.overlaps(other) for other in chosen):
            chosen.append(slot)
        if len(chosen) == SUGGESTIONS:
            break
    return tuple(chosen)


def _quarter_hours(gap: Slot, length: timedelta) -> Iterator[Slot]:
    """Every slot of this length in the gap that starts on a quarter hour."""
    seconds = -(-gap.start.timestamp() // _QUARTER_S) * _QUARTER_S
    start = datetime.fromtimestamp(seconds, UTC)
    while start + length <= gap.end:
        yield Slot(start, start + length)
        start += timedelta(seconds=_QUARTER_S)


def _days(window: Slot, zone: ZoneInfo) -> Iterator[date]:
    day, last = window.start.astimezone(zone).date(), window.end.astimezone(zone).date()
    while day <= last:
        yield day
        day += timedelta(days=1)


def _without(slot: Slot, taken: list[Slot]) -> Iterator[Slot]:
    """The slot minus what is taken; `taken` is sorted by start and may overlap itself."""
    start = slot.start
    for other in taken:
        if other.end <= start:
            continue
        if other.start >= slot.end:
            break
        if other.start > start:
            yield Slot(start, other.start)
        start = other.end
    if start < slot.end:
        yield Slot(start, slot.end)


Event = dict[str, Any]
Moment = datetime | date


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
