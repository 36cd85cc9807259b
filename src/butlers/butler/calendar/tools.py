"""The calendar's tools. A time that is taken is never overwritten silently: the caller hears what is in the way.

Google offers no "create unless taken", so between the look and the write somebody else may take the time. Within one
process a lock closes that gap; across processes the later event stands beside the earlier one, and both are visible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from butlers.butler.calendar.arguments import (
    CreateArguments,
    DeleteArguments,
    EventArguments,
    EventDeleted,
    EventList,
    EventResult,
    EventWritten,
    FreeSlots,
    FreeSlotsArguments,
    ListArguments,
    UpdateArguments,
)
from butlers.butler.calendar.events import (
    Event,
    Policy,
    Slot,
    WorkingHours,
    busy_of,
    decide,
    event_id_of,
    free_gaps,
    is_cancelled,
    moment_to_patch,
    moment_to_wire,
    search_window,
    shown,
    shown_busy,
    shown_slot,
    slot_between,
    slot_of,
    takes_time,
)
from butlers.butler.calendar.google import GoogleCalendar, same_request
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool, tool, tools_of
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.errors import TargetUnavailable
from butlers.operations.operation import CHANGES_OUTSIDE, READS_OUTSIDE, SENDS
from butlers.telemetry import get_logger

log = get_logger("butlers.calendar")

_TEXTS = ("summary", "description", "location")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarPolicy:
    conflicts: Policy = "suggest"
    opens: time = time(8)
    closes: time = time(20)

    def hours(self, zone: ZoneInfo) -> WorkingHours:
        return WorkingHours(opens=self.opens, closes=self.closes, zone=zone)


class CalendarTools:
    def __init__(
        self,
        *,
        butler: str,
        calendar: GoogleCalendar | None,  # None: not connected
        missing: tuple[str, ...] = (),  # the variables that would connect it
        policy: CalendarPolicy,
        clock: Clock,
        new_id: Callable[[], UUID],
    ) -> None:
        self._butler = butler
        self._connected = calendar
        self._missing = missing
        self._policy = policy
        self._clock = clock
        self._new_id = new_id
        self._writing = asyncio.Lock()

    def tools(self) -> list[Tool]:
        return tools_of(self, owner=self._butler)

    @property
    def _calendar(self) -> GoogleCalendar:
        if self._connected is None:
            raise TargetUnavailable(f"the calendar is not connected: set {', '.join(self._missing)}", retryable=False)
        return self._connected

    @tool("calendar_list_events", "Events within a window, in order; pages by page_token.", EventList, READS_OUTSIDE)
    async def _list(self, _caller: Caller, arguments: ListArguments) -> dict[str, Any]:
        page = await self._calendar.list_events(
            arguments.window, limit=arguments.limit, page_token=arguments.page_token, query=arguments.query
        )
        return {"events": [shown(event) for event in page.events], "next_page_token": page.next_page_token}

    @tool("calendar_get_event", "One event.", EventResult, READS_OUTSIDE)
    async def _get(self, _caller: Caller, arguments: EventArguments) -> dict[str, Any]:
        return {"event": shown(await self._calendar.get(arguments.event_id))}

    @tool("calendar_find_free_slots", "Free times within the working hours.", FreeSlots, READS_OUTSIDE)
    async def _free(self, _caller: Caller, arguments: FreeSlotsArguments) -> dict[str, Any]:
        window, zone = arguments.window, await self._calendar.time_zone()
        busy = await self._calendar.free_busy(window)
        gaps = free_gaps(window, busy, hours=self._policy.hours(zone), now=self._clock.now())
        long_enough = [gap for gap in gaps if gap.length.total_seconds() >= arguments.duration_minutes * 60]
        return {
            "time_zone": zone.key,
            "slots": [shown_slot(gap, zone) for gap in long_enough[: arguments.limit]],
            "more": len(long_enough) > arguments.limit,
        }

    @tool("calendar_create_event", "Make an event; a taken time is answered with suggestions.", EventWritten, SENDS)
    async def _create(self, _caller: Caller, arguments: CreateArguments) -> dict[str, Any]:
        key, body = arguments.idempotency_key, _body(arguments)
        event_id = event_id_of(f"{self._butler}:{key}") if key else self._new_id().hex
        async with self._writing:
            if key and (known := await self._calendar.find(event_id)):
                return {"status": "exists", "event": shown(same_request(known, body))}
            slot = slot_between(arguments.start, arguments.end, await self._calendar.time_zone())
            if arguments.takes_time and (refused := await self._refusal(slot, arguments.allow_conflict)):
                return refused
            event, new = await self._calendar.insert(event_id, body)
        log.info("calendar event created", butler=self._butler, duplicate=not new)
        return {"status": "created" if new else "exists", "event": shown(event)}

    @tool("calendar_update_event", "Change an event; moved to a taken time, it stays.", EventWritten, CHANGES_OUTSIDE)
    async def _update(self, _caller: Caller, arguments: UpdateArguments) -> dict[str, Any]:
        async with self._writing:
            present = await self._calendar.get(arguments.event_id)
            if is_cancelled(present):
                raise invalid("event_id", "the event has been deleted")
            slot = await self._newly_taken(present, arguments)
            if slot and (refused := await self._refusal(slot, arguments.allow_conflict, without=arguments.event_id)):
                return refused
            etag = arguments.etag or present["etag"]
            event = await self._calendar.patch(arguments.event_id, _changes(arguments), etag=etag)
        log.info("calendar event updated", butler=self._butler)
        return {"status": "updated", "event": shown(event)}

    @tool("calendar_delete_event", "Delete an event.", EventDeleted, CHANGES_OUTSIDE)
    async def _delete(self, _caller: Caller, arguments: DeleteArguments) -> dict[str, Any]:
        await self._calendar.delete(arguments.event_id, etag=arguments.etag)
        log.info("calendar event deleted", butler=self._butler)
        return {"status": "deleted", "event_id": arguments.event_id}

    async def _newly_taken(self, present: Event, arguments: UpdateArguments) -> Slot | None:
        """The time that a change would take up and that the event does not have yet."""
        took = takes_time(present)
        takes = took if arguments.busy is None else arguments.busy
        zone = await self._calendar.time_zone()
        if takes and arguments.start is not None and arguments.end is not None:
            return slot_between(arguments.start, arguments.end, zone)
        return slot_of(present, zone) if takes and not took else None

    async def _refusal(self, slot: Slot, allow: bool, *, without: str | None = None) -> dict[str, Any] | None:
        """What to answer instead of writing, if the time is taken."""
        policy: Policy = "allow" if allow else self._policy.conflicts
        if policy == "allow":
            return None
        zone = await self._calendar.time_zone()
        busy = busy_of(await self._calendar.all_events(search_window(slot)), zone, without=without)
        taken = decide(slot, busy, policy=policy, hours=self._policy.hours(zone), now=self._clock.now())
        if taken is None:
            return None
        return {
            "status": "conflict",
            "conflicts": [shown_busy(busy, zone) for busy in taken.conflicts],
            "suggestions": [shown_slot(slot, zone) for slot in taken.alternatives],
        }


def _body(arguments: CreateArguments) -> Event:
    texts = {name: value for name in _TEXTS if (value := getattr(arguments, name)) is not None}
    return texts | {
        "start": moment_to_wire(arguments.start, arguments.time_zone),
        "end": moment_to_wire(arguments.end, arguments.time_zone),
        "transparency": _transparency(arguments.takes_time),
    }


def _changes(arguments: UpdateArguments) -> Event:
    changes: Event = {name: value for name in _TEXTS if (value := getattr(arguments, name)) is not None}
    for name, moment in (("start", arguments.start), ("end", arguments.end)):
        if moment is not None:
            changes[name] = moment_to_patch(moment, arguments.time_zone)
    if arguments.busy is not None:
        changes["transparency"] = _transparency(arguments.busy)
    return changes


def _transparency(busy: bool) -> str:
    return "opaque" if busy else "transparent"
