"""The simulator as a server inside the current event loop."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.clock import Clock
from butlers.serving.server import GuestServer
from butlers.simulators import CALENDAR
from butlers.simulators.calendar.api import ROOT, CalendarApi
from butlers.simulators.calendar.world import ANY_METHOD, METHODS, ApiError, Calendar, FaultKind
from butlers.simulators.connection import DroppableHttpTools, listen_as
from butlers.simulators.control import Body, Endpoint, control_route, guarded, invalid, parsed_body
from butlers.simulators.journal import open_journal


class EventRequest(Body):
    summary: Annotated[str, Field(min_length=1, max_length=1000)]
    start: dict[str, str]  # {"dateTime": ...} or {"date": ...}, as Google writes it
    end: dict[str, str]
    transparency: str = "opaque"


class FaultRequest(Body):
    method: str
    kind: Annotated[FaultKind, Field(strict=False)]
    times: Annotated[int, Field(ge=1)] | None = 1
    seconds: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 1.0
    retry_after: Annotated[int, Field(ge=0, le=86_400)] = 1
    status: Annotated[int, Field(ge=500, le=599)] = 500

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in (ANY_METHOD, *METHODS):
            raise ValueError("is not a method of this simulator")
        return method


class ControlApi:
    def __init__(self, world: Calendar, log: deque[dict[str, Any]]) -> None:
        self._world = world
        self._log = log

    def routes(self) -> list[Route]:
        table: tuple[tuple[str, str, Endpoint], ...] = (
            ("POST", "/events", self._add_event),
            ("GET", "/events", self._events),
            ("POST", "/faults", self._add_fault),
            ("GET", "/faults", self._faults),
            ("DELETE", "/faults", self._clear_faults),
            ("GET", "/requests", self._requests),
            ("POST", "/reset", self._reset),
        )
        return [control_route(verb, f"/calendar{path}", endpoint) for verb, path, endpoint in table]

    async def _add_event(self, request: Request) -> Any:
        body = await parsed_body(request, EventRequest)
        event = body.model_dump() | {"id": f"other{len(self._world.events):05d}", "status": "confirmed"}
        try:
            start, end = self._world.span(event)
        except (KeyError, TypeError, ValueError):
            raise invalid("start", "start and end must be as the API writes them") from None
        if start >= end:
            raise invalid("end", "must lie after start")
        return self._world.put(event)

    async def _events(self, _request: Request) -> Any:
        return {"events": list(self._world.events.values())}

    async def _add_fault(self, request: Request) -> Any:
        return asdict(self._world.add_fault(**(await parsed_body(request, FaultRequest)).model_dump()))

    async def _faults(self, _request: Request) -> Any:
        return {"faults": [asdict(fault) for fault in self._world.faults.values()]}

    async def _clear_faults(self, _request: Request) -> Any:
        self._world.clear_faults()
        return {"faults": []}

    async def _requests(self, request: Request) -> Any:
        method = request.query_params.get("method")
        return {"requests": [record for record in self._log if method in (None, record["method"])]}

    async def _reset(self, _request: Request) -> Any:
        self._world.reset()
        self._log.clear()
        return {"reset": True}


DEFAULT_PORT = 40183
CLIENT_ID, CLIENT_SECRET, REFRESH_TOKEN = CALENDAR.credentials.values()

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarSimulator:
    """A running simulator."""

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
    client = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "refresh_token": REFRESH_TOKEN}
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen_as("calendar simulator", host, port))
        journal = open_journal(journal_path)
        held.callback(journal.close)
        world = Calendar(clock=clock, journal=journal, time_zone=time_zone)
        api = CalendarApi(world, client=client)
        control = ControlApi(world, api.log)
        routes = [Route("/healthz", _healthy), *control.routes(), *api.routes()]
        app = Starlette(routes=routes, exception_handlers={OSError: _unavailable})
        server = GuestServer(guarded(app, host), http=DroppableHttpTools)
        try:
            await server.open(listener)
            bound = listener.getsockname()[1]
            yield CalendarSimulator(origin=f"http://{host}:{bound}", port=bound, world=world)
        finally:
            world.pauses.close()
            await server.close()


async def _healthy(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _unavailable(_request: Request, error: Exception) -> Response:
    """The journal could not be written: nothing was accepted, and the client is told so in the usual words."""
    _log.error("the journal could not be written: %s", error)
    refused = ApiError(500, "backendError", "Backend Error")
    return JSONResponse(refused.to_wire(), status_code=refused.status)
