"""How well Switchboard takes messages in and brings them to their end (seed 003, "SLO/SLI")."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.channels.registry import reacting_names
from butlers.clock import Clock
from butlers.operations.operation import TimeRangeArguments
from butlers.operations.routing import SERVICE_LEVELS
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.service_levels")


FLUSH_EVERY_S: Final = 5.0
KEPT: Final = timedelta(days=32)  # a little longer than the longest window

_Key = tuple[datetime, str, int]  # minute, channel, milliseconds


class AcceptTimes:
    def __init__(self, *, database: Database, schema: str, clock: Clock) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.requests.service_levels", schema=schema)
        self._clock = clock
        self._counts: Counter[_Key] = Counter()

    def note(self, received_at: datetime, channel: str, elapsed_ms: float) -> None:
        """One message was accepted; on the hot path, so it only counts."""
        self._counts[received_at.replace(second=0, microsecond=0), channel, rounded_up(elapsed_ms)] += 1

    async def flush(self) -> None:
        """Put the counts on record; those that could not be written come with the next."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        minutes, channels, times = zip(*counts, strict=True)
        values = (list(minutes), list(channels), list(times), [*counts.values()])
        try:
            await self._database.execute(self._queries.add_accept_times, *values)
        except Exception as error:
            self._counts.update(counts)
            log.warning("accept times were not written", error=error)

    async def run(self) -> None:
        """Flush until cancelled, and forget what is too old."""
        forget_at = self._clock.now()
        while True:
            await self._clock.sleep(FLUSH_EVERY_S)
            await self.flush()
            if self._clock.now() >= forget_at:
                forget_at = self._clock.now() + timedelta(hours=1)
                await self._forget()

    async def _forget(self) -> None:
        try:
            await self._database.execute(self._queries.forget_accept_times, self._clock.now() - KEPT)
        except Exception as error:
            log.warning("old accept times were not removed", error=error)


def rounded_up(milliseconds: float) -> int:
    """Whole milliseconds, at most two digits of them."""
    whole = max(0, math.ceil(milliseconds))
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevels:
    database: Database
    queries: Queries
    accept_times: AcceptTimes
    clock: Clock

    def tools(self) -> list[Tool]:
        return [Tool.of(SERVICE_LEVELS, self._answer)]

    async def _answer(self, _caller: Caller, given: TimeRangeArguments) -> dict[str, Any]:
        return wire(await self.slis(*given.between(self.clock.now())))

    async def slis(self, since: datetime, until: datetime) -> dict[str, Any]:
        """All four of [since, until), from one snapshot; the accepts are those of whole minutes."""
        await self.accept_times.flush()
        async with self.database.transaction(isolation="repeatable_read") as snapshot:
            routes = await _rows(snapshot, self.queries.routes, since, until)
            errors = await _rows(snapshot, self.queries.route_errors, since, until)
            return {
                "window": {"since": since, "until": until},
                "accept": await _rows(snapshot, self.queries.accept_times, since, until),
                "completion": await _rows(snapshot, self.queries.completions, since, until),
                "routes": route_success(routes, errors),
                "interactive": await _rows(snapshot, self.queries.interactive, since, until, sorted(reacting_names())),
            }


def route_success(routes: Sequence[Row], errors: Iterable[Row]) -> dict[str, Any]:
    """In all and per butler, with the classes of what failed."""
    by_class: dict[str, dict[str, int]] = {}
    for row in errors:
        by_class.setdefault(row["target_butler"], {})[row["error_class"]] = row["routes"]
    total, succeeded = sum(row["routes"] for row in routes), sum(row["succeeded"] for row in routes)
    return {
        "routes": total,
        "succeeded": succeeded,
        "success_rate": _rate(succeeded, total),
        "by_butler": [
            {
                **row,
                "success_rate": _rate(row["succeeded"], row["routes"]),
                "errors": by_class.get(row["target_butler"], {}),
            }
            for row in routes
        ],
    }


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


async def _rows(source: Executor, query: str, *values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in await source.fetch(query, *values)]
