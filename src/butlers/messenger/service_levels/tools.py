"""The tool that shows the service levels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_jsonable_python

from butlers.butler.identity import Caller
from butlers.butler.surface import BUTLERS, Tool
from butlers.clock import Clock
from butlers.contracts.envelope import Timestamp, Value, invalid
from butlers.messenger.service_levels.levels import ServiceLevels

USUAL_WINDOW = timedelta(days=1)
LONGEST_WINDOW = timedelta(days=31)  # percentiles are taken over every single delivery


class ServiceLevelArguments(Value):
    since: Timestamp | None = None  # a day before `until`
    until: Timestamp | None = None  # now


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevelTools:
    """Builds `messenger_service_levels`."""

    levels: ServiceLevels
    clock: Clock

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="messenger_service_levels",
                description="How well deliveries go: success, p95, duplicates, rejections, dead letters, error budget.",
                arguments=ServiceLevelArguments,
                handler=self._service_levels,
                roles=BUTLERS,
            )
        ]

    async def _service_levels(self, _caller: Caller, arguments: ServiceLevelArguments) -> dict[str, Any]:
        since, until = window(arguments, self.clock.now())
        ready: dict[str, Any] = to_jsonable_python(await self.levels.slis(since, until))
        return ready


def window(arguments: ServiceLevelArguments, now: datetime) -> tuple[datetime, datetime]:
    """The stretch of time that is asked for: the last day, unless said otherwise."""
    until = arguments.until or now
    since = arguments.since or _earlier(until)
    if since >= until:
        raise invalid("since", "must be before until")
    if until - since > LONGEST_WINDOW:
        raise invalid("since", f"must be at most {LONGEST_WINDOW.days} days before until")
    return since, until


def _earlier(until: datetime) -> datetime:
    try:
        return until - USUAL_WINDOW
    except OverflowError:
        raise invalid("until", "lies too early") from None
