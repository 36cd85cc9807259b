"""The four service level indicators of seed 003 over a stretch of time, read from the tables when asked.

    accept       from a message's arrival to the durable accept
    completion   from the accept to the end of the request, the whole fanout included
    routes       the share of dispatches to butlers that succeeded
    interactive  from PROGRESS to PARSED or ERRORED, where somebody waits

A rate or percentile over nothing is None: unknown is never shown as zero, nor as perfect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from butlers.channels.registry import reacting_names
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.switchboard.service_levels.accept_times import AcceptTimes

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevels:
    database: Database
    queries: Queries
    accept_times: AcceptTimes

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
