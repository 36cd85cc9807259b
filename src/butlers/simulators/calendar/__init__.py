"""A Google Calendar API that lives on this machine: one calendar, its token endpoint, and a hand to move it.

It refuses what Google refuses, in Google's words, forgets nothing across a crash when it is given a journal, and fails
on demand. What it does not do: repeated events, attendees' answers, watches, sync tokens, more than one calendar.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.clock import Clock
from butlers.simulators import CALENDAR
from butlers.simulators.calendar.api import ROOT, ApiError, Calendar, CalendarApi
from butlers.simulators.engine import Body, application, control_routes, invalid, listen_as, parsed_body, serving
from butlers.simulators.journal import Journal

DEFAULT_PORT = CALENDAR.doors[0].usual
CLIENT_ID, CLIENT_SECRET, REFRESH_TOKEN = CALENDAR.credentials.values()


class EventRequest(Body):
    summary: Annotated[str, Field(min_length=1, max_length=1000)]
    start: dict[str, str]  # {"dateTime": ...} or {"date": ...}, as Google writes it
    end: dict[str, str]
    transparency: str = "opaque"


def _control_routes(world: Calendar, api: CalendarApi) -> list[Route]:
    async def add_event(request: Request) -> Any:
        body = await parsed_body(request, EventRequest)
        event = body.model_dump() | {"id": f"other{len(world.events):05d}", "status": "confirmed"}
        try:
            start, end = world.span(event)
        except (KeyError, TypeError, ValueError):
            raise invalid("start", "start and end must be as the API writes them") from None
        if start >= end:
            raise invalid("end", "must lie after start")
        return world.put(event)

    def requests(request: Request) -> Any:
        method = request.query_params.get("method")
        return {"requests": [record for record in api.log if method in (None, record["method"])]}

    def reset(_request: Request) -> Any:
        world.reset()
        api.log.clear()
        return {"reset": True}

    own = control_routes(
        ("POST", "/events", add_event),
        ("GET", "/events", lambda _request: {"events": list(world.events.values())}),
        ("GET", "/requests", requests),
        ("POST", "/reset", reset),
        below="/calendar",
    )
    return [*own, *world.faults.routes("/calendar")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarSimulator:
    origin: str
    port: int
    world: Calendar

    @property
    def base_url(self) -> str:
        return self.origin + ROOT

    @property
    def token_url(self) -> str:
        return f"{self.origin}/token"

    @property
    def control_url(self) -> str:
        return f"{self.origin}/control/calendar"


@contextlib.asynccontextmanager
async def serve_calendar(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    clock: Clock,
    journal_path: Path | None = None,
    time_zone: str = "Europe/Vienna",
) -> AsyncIterator[CalendarSimulator]:
    """Serve until the block ends; port 0 takes a free one. What was received by then is answered."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen_as("calendar simulator", host, port))
        journal = Journal(journal_path)
        held.callback(journal.close)
        world = Calendar(clock=clock, journal=journal, time_zone=time_zone)
        api = CalendarApi(world, client=CALENDAR.credentials)
        app = application([*_control_routes(world, api), *api.routes()], unavailable=_unavailable)
        async with serving(app, listener, stopping=[world.pauses.close]) as bound:
            yield CalendarSimulator(origin=f"http://{host}:{bound}", port=bound, world=world)


def _unavailable() -> Response:
    refused = ApiError(500, "backendError", "Backend Error")
    return JSONResponse(refused.to_wire(), status_code=refused.status)
