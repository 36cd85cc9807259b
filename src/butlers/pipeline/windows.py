"""The stretch of time a job works on: said by whoever starts it, never "today"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

from butlers.contracts.envelope import invalid

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    start: datetime  # in UTC, included
    end: datetime  # in UTC, not included

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise invalid("to", "must be later than from")

    @classmethod
    def parse(cls, start: str | None, end: str | None) -> Self:
        """From what a person typed: RFC 3339 with an offset, or a day in UTC."""
        return cls(start=_moment("from", start), end=_moment("to", end))

    @classmethod
    def until(cls, end: datetime) -> Self:
        """All that there was: of a job that takes no window."""
        return cls(start=BEGINNING, end=end)

    def days(self) -> Iterator[date]:
        """Every day in UTC that it touches."""
        day = self.start.date()
        while datetime(day.year, day.month, day.day, tzinfo=UTC) < self.end:
            yield day
            day += timedelta(days=1)


def _moment(field: str, text: str | None) -> datetime:
    if text is None:
        raise invalid(field, "is missing: this job needs a window, say --from and --to")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(field, "must be a day (2026-03-01) or an RFC 3339 timestamp") from None
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    if len(text) == len("2026-03-01"):
        return moment.replace(tzinfo=UTC)
    raise invalid(field, "must carry a UTC offset")
