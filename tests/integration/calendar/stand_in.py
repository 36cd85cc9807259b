"""A served stand-in, a client of it and a hand to move it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from butlers.butler.calendar import Credentials, GoogleCalendar
from butlers.clock import Clock, SystemClock
from butlers.reliability.retry import RetryPolicy
from butlers.simulators.calendar import (
    CLIENT_ID,
    CLIENT_SECRET,
    REFRESH_TOKEN,
    CalendarSimulator,
    serve_calendar,
)

QUICK = RetryPolicy(max_attempts=3, initial_delay=0.001, max_delay=0.01)
GOOD = Credentials(client_id=CLIENT_ID, client_secret=CLIENT_SECRET, refresh_token=REFRESH_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    simulator: CalendarSimulator
    calendar: GoogleCalendar
    http: httpx2.AsyncClient

    async def control(self, verb: str, path: str, body: Any = None) -> dict[str, Any]:
        response = await self.http.request(verb, f"{self.simulator.control_url}{path}", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def fault(self, method: str, kind: str, **more: Any) -> None:
        await self.control("POST", "/faults", {"method": method, "kind": kind, **more})

    async def statuses(self, method: str) -> list[int | None]:
        """How the calls of a method ended; None: no answer was given."""
        return [record["status"] for record in (await self.control("GET", f"/requests?method={method}"))["requests"]]

    async def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.control("GET", "/events"))["events"]
        return found


@contextlib.asynccontextmanager
async def stand_in(
    *,
    clock: Clock | None = None,
    journal: Path | None = None,
    credentials: Credentials = GOOD,
    timeout_s: float = 5.0,
    calendar_id: str = "primary",
) -> AsyncIterator[StandIn]:
    clock = clock or SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        simulator = await stack.enter_async_context(serve_calendar(port=0, clock=clock, journal_path=journal))
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=10, trust_env=False))
        calendar = GoogleCalendar(
            credentials=credentials,
            clock=clock,
            base_url=simulator.base_url,
            token_url=simulator.token_url,
            calendar_id=calendar_id,
            timeout_s=timeout_s,
            retry=QUICK,
        )
        stack.push_async_callback(calendar.close)
        yield StandIn(simulator=simulator, calendar=calendar, http=http)
