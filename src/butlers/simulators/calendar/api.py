"""The doors of the calendar: `/token` and `/calendar/v3`.

    fault -> token known? -> the method itself -> answer, or drop

Every call is written to the request log once, with how it ended.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.simulators.calendar.world import ApiError, Calendar, Event, Fault, FaultKind, Tokens
from butlers.simulators.connection import DroppedConnection
from butlers.simulators.control import decoded

ROOT = "/calendar/v3"
KEPT = 1000  # requests remembered

_ID = re.compile(r"[a-v0-9]{5,1024}")
_MOST_RESULTS = 2500


class CalendarApi:
    def __init__(self, world: Calendar, *, client: dict[str, str]) -> None:
        self._world = world
        self._client = client  # what the token endpoint wants to see
        self._tokens = Tokens(world.clock)
        self.log: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def routes(self) -> list[Route]:
        events = f"{ROOT}/calendars/{{calendar}}/events"
        table: tuple[tuple[str, str, str, Callable[[Request, Any], Any]], ...] = (
            ("POST", "/token", "token", self._token),
            ("GET", f"{ROOT}/calendars/{{calendar}}", "calendars.get", self._calendar),
            ("POST", f"{ROOT}/freeBusy", "freebusy.query", self._free_busy),
            ("GET", events, "events.list", self._list),
            ("POST", events, "events.insert", self._insert),
            ("GET", f"{events}/{{id}}", "events.get", self._get),
            ("PATCH", f"{events}/{{id}}", "events.patch", self._patch),
            ("DELETE", f"{events}/{{id}}", "events.delete", self._delete),
        )
        return [self._route(*row) for row in table]

    def _route(self, verb: str, path: str, name: str, method: Callable[[Request, Any], Any]) -> Route:
        async def answer(request: Request) -> Response:
            fault = self._world.use_fault(name)
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

    async def _answer(self, name: str, method: Any, request: Request, fault: Fault | None) -> Response:
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
        except OAuthError as error:
            return JSONResponse({"error": error.args[0]}, status_code=400)

    # --- methods -----------------------------------------------------------------------------------------------------

    def _token(self, _request: Request, form: dict[str, Any]) -> dict[str, Any]:
        if form.get("grant_type") != "refresh_token":
            raise OAuthError("unsupported_grant_type")
        for field, problem in (("client_id", "invalid_client"), ("client_secret", "invalid_client")):
            if form.get(field) != self._client[field]:
                raise OAuthError(problem)
        if form.get("refresh_token") != self._client["refresh_token"]:
            raise OAuthError("invalid_grant")
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
        found = sorted(self._wanted(query), key=lambda event: (self._world.span(event)[0], event["id"]))
        first, size = _number(query, "pageToken", 0), min(_number(query, "maxResults", 250), _MOST_RESULTS)
        more = {"nextPageToken": str(first + size)} if first + size < len(found) else {}
        page = found[first : first + size]
        return {"kind": "calendar#events", "timeZone": self._world.time_zone, "items": page, **more}

    def _wanted(self, query: Any) -> list[Event]:
        after = _instant(query["timeMin"]) if "timeMin" in query else None
        before = _instant(query["timeMax"]) if "timeMax" in query else None
        words = query.get("q", "").lower()

        def fits(event: Event) -> bool:
            start, end = self._world.span(event)
            text = " ".join(str(event.get(name, "")) for name in ("summary", "description", "location")).lower()
            there = event["status"] != "cancelled" or query.get("showDeleted") == "true"
            return there and words in text and (after is None or end > after) and (before is None or start < before)

        return [event for event in self._world.events.values() if fits(event)]

    def _get(self, request: Request, _body: Any) -> Event:
        return self._present(request)

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

    def _present(self, request: Request) -> Event:
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


class OAuthError(Exception):
    """A refusal of the token endpoint."""


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
