"""The calendar: its events, its journal and its time. One commit is one journal line; a deleted event stays, cancelled.

Events are kept as Google writes them. An event's ETag is the number of its last change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from butlers.clock import Clock
from butlers.simulators.connection import Pauses
from butlers.simulators.control import CountedFault, strike
from butlers.simulators.journal import Entry, Journal

ANY_METHOD = "*"
METHODS = (
    *("token", "calendars.get", "freebusy.query"),
    *(f"events.{action}" for action in ("list", "get", "insert", "patch", "delete")),
)


class ApiError(Exception):
    """A refusal, as Google words it."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def to_wire(self) -> dict[str, object]:
        listed = [{"domain": "calendar", "reason": self.reason, "message": self.message}]
        return {"error": {"code": self.status, "message": self.message, "errors": listed}}


class FaultKind(StrEnum):
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a kind of fault
    TOO_MANY_REQUESTS = "too_many_requests"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"
    FORBIDDEN = "forbidden"
    SERVER_ERROR = "server_error"
    DELAY = "delay"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"
    CHANGED_MEANWHILE = "changed_meanwhile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(CountedFault):
    fault_id: int
    method: str  # one of METHODS, or "*"
    kind: FaultKind
    seconds: float = 1.0  # for delay
    retry_after: int = 1  # seconds, for too_many_requests
    status: int = 500  # for server_error

    def hits(self, method: str) -> bool:
        return self.method in (ANY_METHOD, method)

    def as_error(self) -> ApiError | None:
        match self.kind:
            case FaultKind.EXPIRED_TOKEN:
                return ApiError(401, "authError", "Invalid Credentials")
            case FaultKind.TOO_MANY_REQUESTS:
                return ApiError(429, "rateLimitExceeded", "Too Many Requests", retry_after=self.retry_after)
            case FaultKind.RATE_LIMITED:
                return ApiError(403, "rateLimitExceeded", "Rate Limit Exceeded")
            case FaultKind.QUOTA_EXCEEDED:
                return ApiError(403, "quotaExceeded", "Calendar usage limits exceeded.")
            case FaultKind.FORBIDDEN:
                return ApiError(403, "forbidden", "Forbidden")
            case FaultKind.SERVER_ERROR:
                return ApiError(self.status, "backendError", "Backend Error")
        return None


Event = dict[str, Any]


class Calendar:
    def __init__(self, *, clock: Clock, journal: Journal, time_zone: str) -> None:
        self.clock = clock
        self.time_zone = time_zone
        self.pauses = Pauses(clock)
        self.events: dict[str, Event] = {}
        self.faults: dict[int, Fault] = {}
        self._changes = 0  # of events; gives ETags
        self._last_fault = 0
        self._journal = journal
        journal.replay(self._apply)

    # --- events ------------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> Event:
        """Keep an event as it is now, under a new ETag."""
        stamped = event | {
            "kind": "calendar#event",
            "start": self._local(event["start"]),
            "end": self._local(event["end"]),
            "etag": f'"{self._changes + 1}"',
            "updated": self.clock.now().isoformat(),
        }
        self._commit({"change": "event", "event": stamped})
        return stamped

    def span(self, event: Event) -> tuple[datetime, datetime]:
        return self.instant(event["start"]), self.instant(event["end"])

    def instant(self, moment: dict[str, str]) -> datetime:
        """The instant that a start or an end means."""
        if "date" in moment:
            midnight = datetime.combine(date.fromisoformat(moment["date"]), time())
            return midnight.replace(tzinfo=ZoneInfo(self.time_zone)).astimezone(UTC)
        given = datetime.fromisoformat(moment["dateTime"])
        if given.tzinfo is None:
            given = given.replace(tzinfo=ZoneInfo(moment["timeZone"]))
        return given.astimezone(UTC)

    def _local(self, moment: dict[str, str]) -> dict[str, str]:
        """As Google answers: with the offset that the calendar's time zone has then."""
        if "date" in moment:
            return moment
        local = self.instant(moment).astimezone(ZoneInfo(self.time_zone))
        return {"timeZone": self.time_zone} | moment | {"dateTime": local.isoformat()}

    def busy(self, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
        """The taken times within a window, joined where they touch."""
        joined: list[tuple[datetime, datetime]] = []
        for since, until in sorted(self._taken(start, end)):
            if joined and since <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(until, joined[-1][1]))
            else:
                joined.append((since, until))
        return joined

    def _taken(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        for event in self.events.values():
            since, until = self.span(event)
            takes = event["status"] != "cancelled" and event.get("transparency") != "transparent"
            if takes and since < end and until > start:
                yield max(since, start), min(until, end)

    # --- faults ------------------------------------------------------------------------------------------------------

    def add_fault(self, **body: Any) -> Fault:
        fault = Fault(fault_id=self._last_fault + 1, **body)
        self._commit({"change": "fault_added", "fault": asdict(fault)})
        return fault

    def clear_faults(self) -> None:
        self._commit({"change": "faults_cleared"})

    def use_fault(self, method: str) -> Fault | None:
        """The oldest fault this call meets; it counts as used."""
        chosen = next((fault for fault in self.faults.values() if fault.hits(method)), None)
        if chosen is not None and chosen.times is not None:
            self._commit({"change": "fault_used", "fault_id": chosen.fault_id})
        return chosen

    def reset(self) -> None:
        self._commit({"change": "reset"})

    # --- memory ------------------------------------------------------------------------------------------------------

    def _commit(self, change: Entry) -> None:
        self._journal.append(change)
        self._apply(change)

    def _apply(self, change: Entry) -> None:
        appliers: dict[str, Callable[[Entry], None]] = {
            "event": self._stored_event,
            "fault_added": self._fault_added,
            "fault_used": lambda change: strike(self.faults, change["fault_id"]),
            "faults_cleared": lambda _: self.faults.clear(),
            "reset": self._forgotten,
        }
        appliers[change["change"]](change)

    def _stored_event(self, change: Entry) -> None:
        event = change["event"]
        self.events[event["id"]] = event
        self._changes = int(event["etag"].strip('"'))

    def _forgotten(self, _change: Entry) -> None:
        self.events.clear()
        self.faults.clear()

    def _fault_added(self, change: Entry) -> None:
        fault = Fault(**change["fault"] | {"kind": FaultKind(change["fault"]["kind"])})
        self.faults[fault.fault_id] = fault
        self._last_fault = fault.fault_id


class Tokens:
    """Access tokens; forgotten at a restart, which to a client looks like an early expiry."""

    LIFE = timedelta(hours=1)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, datetime] = {}

    def issue(self) -> str:
        token = f"simulated-access-{len(self._until) + 1}"
        self._until[token] = self._clock.now() + self.LIFE
        return token

    def check(self, header: str) -> None:
        until = self._until.get(header.removeprefix("Bearer "))
        if until is None or self._clock.now() >= until:
            raise ApiError(401, "authError", "Invalid Credentials")
