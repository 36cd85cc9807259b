"""The simulator as a server inside the current event loop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.clock import Clock
from butlers.serving.server import GuestServer
from butlers.simulators.calendar.api import ROOT, CalendarApi
from butlers.simulators.calendar.control import ControlApi
from butlers.simulators.calendar.faults import ApiError
from butlers.simulators.calendar.world import World
from butlers.simulators.connection import DroppableHttpTools
from butlers.simulators.control import guarded
from butlers.simulators.credentials import CALENDAR_CLIENT_ID, CALENDAR_CLIENT_SECRET, CALENDAR_REFRESH_TOKEN
from butlers.simulators.journal import open_journal
from butlers.simulators.ports import listen_as

DEFAULT_PORT = 40183
CLIENT_ID = CALENDAR_CLIENT_ID
CLIENT_SECRET = CALENDAR_CLIENT_SECRET
REFRESH_TOKEN = CALENDAR_REFRESH_TOKEN

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarSimulator:
    """A running simulator."""

    origin: str
    port: int
    world: World

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
        world = World(clock=clock, journal=journal, time_zone=time_zone)
        api = CalendarApi(world, client=client)
        control = ControlApi(world, api.log)
        routes = [Route("/healthz", _healthy), *control.routes(), *api.routes()]
        app = Starlette(routes=routes, exception_handlers={OSError: _not_kept})
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


async def _not_kept(_request: Request, error: Exception) -> Response:
    """The journal could not be written: nothing was accepted, and the client is told so in the usual words."""
    _log.error("the journal could not be written: %s", error)
    refused = ApiError(500, "backendError", "Backend Error")
    return JSONResponse(refused.to_wire(), status_code=refused.status)
