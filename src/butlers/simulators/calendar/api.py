"""The calendar and its doors, `/token` and `/calendar/v3`.

    fault -> token known? -> the method itself -> answer, or drop

Every call is written to the request log once, with how it ended. One change is one journal line; a deleted event stays,
cancelled. Events are kept as Google writes them; an event's ETag is the number of its last change.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.clock import Clock
from butlers.simulators.engine import DroppedConnection, Fault, Faults, Pauses, decoded
from butlers.simulators.journal import Entry, Journal

ROOT = "/calendar/v3"
MAX_REQUESTS = 1000  # requests remembered

_ID = re.compile(r"[a-v0-9]{5,1024}")
_MOST_RESULTS = 2500
ANY_METHOD = "*"
OAUTH = "oauth"  # the reason of refusals by the token endpoint, which have a form of their own
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
        if self.reason == OAUTH:
            return {"error": self.message}
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


_REFUSALS = {
    FaultKind.EXPIRED_TOKEN: (401, "authError", "Invalid Credentials"),
    FaultKind.TOO_MANY_REQUESTS: (429, "rateLimitExceeded", "Too Many Requests"),
    FaultKind.RATE_LIMITED: (403, "rateLimitExceeded", "Rate Limit Exceeded"),
    FaultKind.QUOTA_EXCEEDED: (403, "quotaExceeded", "Calendar usage limits exceeded."),
    FaultKind.FORBIDDEN: (403, "forbidden", "Forbidden"),
    FaultKind.SERVER_ERROR: (500, "backendError", "Backend Error"),
}


class CalendarFault(Fault):
    method: str  # one of METHODS, or "*"
    kind: Annotated[FaultKind, Field(strict=False)]
    retry_after: Annotated[int, Field(ge=0, le=86_400)] = 1  # seconds, for too_many_requests
    status: Annotated[int, Field(ge=500, le=599)] = 500  # for server_error

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in (ANY_METHOD, *METHODS):
            raise ValueError("is not a method of this simulator")
        return method

    def as_error(self) -> ApiError | None:
        if self.kind not in _REFUSALS:
            return None
        status, reason, message = _REFUSALS[self.kind]
        waits = self.retry_after if self.kind is FaultKind.TOO_MANY_REQUESTS else None
        is_server_error = self.kind is FaultKind.SERVER_ERROR
        return ApiError(self.status if is_server_error else status, reason, message, retry_after=waits)


Event = dict[str, Any]


class Calendar:
    def __init__(self, *, clock: Clock, journal: Journal, time_zone: str) -> None:
        self.clock = clock
        self.time_zone = time_zone
        self.pauses = Pauses(clock)
        self.events: dict[str, Event] = {}
        self.faults = Faults(CalendarFault, self._commit)
        self._changes = 0  # of events; gives ETags
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

    # --- memory ------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        self._commit({"change": "reset"})

    def _commit(self, *changes: Entry) -> None:
        for change in changes:
            self._journal.append(change)
            self._apply(change)

    def _apply(self, change: Entry) -> None:
        if self.faults.apply(change):
            return
        if change["change"] == "reset":
            self.events.clear()
        else:
            event = change["event"]
            self.events[event["id"]] = event
            self._changes = int(event["etag"].strip('"'))


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


class CalendarApi:
    def __init__(self, world: Calendar, *, client: Mapping[str, str]) -> None:
        self._world = world
        self._client = client  # what the token endpoint wants to see
        self._tokens = Tokens(world.clock)
        self.log: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS)

    def routes(self) -> list[Route]:
        events = f"{ROOT}/calendars/{{calendar}}/events"
        table: tuple[tuple[str, str, str, Callable[[Request, Any], Any]], ...] = (
            ("POST", "/token", "token", self._token),
            ("GET", f"{ROOT}/calendars/{{calendar}}", "calendars.get", self._calendar),
            ("POST", f"{ROOT}/freeBusy", "freebusy.query", self._free_busy),
            ("GET", events, "events.list", self._list),
            ("POST", events, "events.insert", self._insert),
            ("GET", f"{events}/{{id}}", "events.get", self._present),
            ("PATCH", f"{events}/{{id}}", "events.patch", self._patch),
            ("DELETE", f"{events}/{{id}}", "events.delete", self._delete),
        )
        return [self._route(*row) for row in table]

    def _route(self, verb: str, path: str, name: str, method: Callable[[Request, Any], Any]) -> Route:
        async def answer(request: Request) -> Response:
            struck = self._world.faults.take(lambda fault: fault.method in (ANY_METHOD, name), only_oldest=True)
            fault = struck[0] if struck else None
            if fault and fault.kind is FaultKind.DELAY:
                await self._world.pauses.sleep(fault.seconds)
            if fault and fault.kind is FaultKind.DROP_BEFORE:
                return self._noted(name, request, DroppedConnection(), None)
            response = await self._answer(name, method, request, fault)
            if fault and fault.kind is FaultKind.DROP_AFTER:
                return self._noted(name, request, DroppedConnection(), None)
            return self._noted(name, request, response, response.status_code)

        return Route(path, answer, methods=[verb])

    def _noted(self, name: str, request: Request, response: Response, status: int | None) -> Response:
        event_id = request.path_params.get("id")
        self.log.append({"method": name, "event_id": event_id, "status": status, "query": dict(request.query_params)})
        return response

    async def _answer(self, name: str, method: Any, request: Request, fault: CalendarFault | None) -> Response:
        try:
            if fault and (refused := fault.as_error()):
                raise refused
            if name == "token":
                return JSONResponse(self._token(request, await _form(request)))
            self._tokens.check(request.headers.get("authorization", ""))
            if request.path_params.get("calendar", "primary") != "primary":
                raise ApiError(404, "notFound", "Not Found")
            if fault and fault.kind is FaultKind.CHANGED_MEANWHILE and (event := self._known(request)):
                self._world.put(event)
            found = method(request, await _body(request))
            return Response(status_code=204) if found is None else JSONResponse(found)
        except ApiError as error:
            return JSONResponse(error.to_wire(), status_code=error.status, headers=error.headers)

    # --- methods -----------------------------------------------------------------------------------------------------

    def _token(self, _request: Request, form: dict[str, Any]) -> dict[str, Any]:
        if form.get("grant_type") != "refresh_token":
            raise ApiError(400, OAUTH, "unsupported_grant_type")
        for field, problem in (("client_id", "invalid_client"), ("client_secret", "invalid_client")):
            if form.get(field) != self._client[field]:
                raise ApiError(400, OAUTH, problem)
        if form.get("refresh_token") != self._client["refresh_token"]:
            raise ApiError(400, OAUTH, "invalid_grant")
        life = int(self._tokens.LIFE.total_seconds())
        return {"access_token": self._tokens.issue(), "expires_in": life, "token_type": "Bearer"}

    def _calendar(self, _request: Request, _body: Any) -> dict[str, Any]:
        return {"kind": "calendar#calendar", "id": "primary", "timeZone": self._world.time_zone}

    def _free_busy(self, _request: Request, body: dict[str, Any]) -> dict[str, Any]:
        busy = self._world.busy(_instant(body.get("timeMin")), _instant(body.get("timeMax")))
        taken = [{"start": start.isoformat(), "end": end.isoformat()} for start, end in busy]
        unknown = {"errors": [{"domain": "global", "reason": "notFound"}], "busy": []}
        names = [str(item.get("id")) for item in body.get("items", [])]
        return {"calendars": {name: {"busy": taken} if name == "primary" else unknown for name in names}}

    def _list(self, request: Request, _body: Any) -> dict[str, Any]:
        query = request.query_params
        if query.get("orderBy") == "startTime" and query.get("singleEvents") != "true":
            raise ApiError(400, "invalid", "The requested ordering is not available for the particular query.")
        found = sorted(self._matching(query), key=lambda event: (self._world.span(event)[0], event["id"]))
        first, size = _number(query, "pageToken", 0), min(_number(query, "maxResults", 250), _MOST_RESULTS)
        more = {"nextPageToken": str(first + size)} if first + size < len(found) else {}
        page = found[first : first + size]
        return {"kind": "calendar#events", "timeZone": self._world.time_zone, "items": page, **more}

    def _matching(self, query: Any) -> list[Event]:
        after = _instant(query["timeMin"]) if "timeMin" in query else None
        before = _instant(query["timeMax"]) if "timeMax" in query else None
        words = query.get("q", "").lower()

        def fits(event: Event) -> bool:
            start, end = self._world.span(event)
            text = " ".join(str(event.get(name, "")) for name in ("summary", "description", "location")).lower()
            there = event["status"] != "cancelled" or query.get("showDeleted") == "true"
            return there and words in text and (after is None or end > after) and (before is None or start < before)

        return [event for event in self._world.events.values() if fits(event)]

    def _insert(self, _request: Request, body: dict[str, Any]) -> Event:
        event_id = body.get("id") or f"sim{len(self._world.events):05d}"
        if not isinstance(event_id, str) or not _ID.fullmatch(event_id):
            raise ApiError(400, "invalid", "Invalid resource id value.")
        if event_id in self._world.events:
            raise ApiError(409, "duplicate", "The requested identifier already exists.")
        return self._world.put(self._checked({"status": "confirmed"} | body | {"id": event_id}))

    def _patch(self, request: Request, body: dict[str, Any]) -> Event:
        event = self._present(request)
        _check_etag(request, event)
        return self._world.put(self._checked(_merged(event, body) | {"id": event["id"]}))

    def _delete(self, request: Request, _body: Any) -> None:
        event = self._present(request)
        if event["status"] == "cancelled":
            raise ApiError(410, "deleted", "Resource has been deleted")
        _check_etag(request, event)
        self._world.put(event | {"status": "cancelled"})

    # --- what they share ---------------------------------------------------------------------------------------------

    def _known(self, request: Request) -> Event | None:
        return self._world.events.get(request.path_params.get("id", ""))

    def _present(self, request: Request, _body: Any = None) -> Event:
        event = self._known(request)
        if event is None:
            raise ApiError(404, "notFound", "Not Found")
        return event

    def _checked(self, event: Event) -> Event:
        try:
            start, end = self._world.span(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ApiError(400, "required", "Missing end time.") from None
        if not start < end or ("date" in event["start"]) != ("date" in event["end"]):
            raise ApiError(400, "timeRangeEmpty", "The specified time range is empty.")
        return event


async def _form(request: Request) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode(errors="replace")))


async def _body(request: Request) -> dict[str, Any]:
    content = await request.body()
    try:
        body = decoded(content) if content else {}
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ApiError(400, "parseError", "Parse Error")
    return body


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A patch: objects are merged, null takes away, the rest replaces."""
    merged = dict(old)
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = _merged(old.get(name, {}), value)
        else:
            merged[name] = value
    return merged


def _check_etag(request: Request, event: Event) -> None:
    if request.headers.get("if-match", event["etag"]) not in (event["etag"], "*"):
        raise ApiError(412, "conditionNotMet", "Precondition Failed")


def _instant(text: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ApiError(400, "badRequest", "Bad Request") from None
    if moment.tzinfo is None:
        raise ApiError(400, "badRequest", "Bad Request")
    return moment


def _number(query: Any, name: str, default: int) -> int:
    given = query.get(name, str(default))
    if not given.isascii() or not given.isdigit():
        raise ApiError(400, "invalid", f"Invalid value for: {name}")
    return int(given)
