"""The time range of an operation that takes `since` and `until`."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import Field

from butlers.contracts.envelope import Timestamp, Value, invalid

USUAL = timedelta(days=1)
LONGEST = timedelta(days=31)  # percentiles are taken over every single row


class TimeRangeArguments(Value):
    since: Timestamp | None = Field(
        default=None, description="the beginning: RFC 3339 with an offset; absent: a day before until"
    )
    until: Timestamp | None = Field(default=None, description="the end: RFC 3339 with an offset; absent: now")

    def between(self, now: datetime) -> tuple[datetime, datetime]:
        """The last day, unless said otherwise."""
        until = self.until or now
        since = self.since or _earlier(until)
        if since >= until:
            raise invalid("since", "must be before until")
        if until - since > LONGEST:
            raise invalid("since", f"must be at most {LONGEST.days} days before until")
        return since, until


def _earlier(until: datetime) -> datetime:
    try:
        return until - USUAL
    except OverflowError:
        raise invalid("until", "lies too early") from None
