"""The control API, `/control/calendar/...`: be somebody else at the calendar, inject faults, read what happened."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field, field_validator
from starlette.requests import Request
from starlette.routing import Route

from butlers.simulators.calendar.faults import ANY_METHOD, METHODS, FaultKind
from butlers.simulators.calendar.world import World
from butlers.simulators.control import Body, Endpoint, control_route, invalid, parsed_body


class EventWish(Body):
    summary: Annotated[str, Field(min_length=1, max_length=1000)]
    start: dict[str, str]  # {"dateTime": ...} or {"date": ...}, as Google writes it
    end: dict[str, str]
    transparency: str = "opaque"


class FaultWish(Body):
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
    def __init__(self, world: World, log: deque[dict[str, Any]]) -> None:
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
        wish = await parsed_body(request, EventWish)
        event = wish.model_dump() | {"id": f"other{len(self._world.events):05d}", "status": "confirmed"}
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
        return asdict(self._world.add_fault(**(await parsed_body(request, FaultWish)).model_dump()))

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
