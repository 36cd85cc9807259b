"""What the calendar's tools take and answer."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Self
from zoneinfo import available_timezones

from pydantic import AfterValidator, Field, PlainValidator, StringConstraints, WithJsonSchema, model_validator

from butlers.butler.calendar.events import Moment, Slot
from butlers.contracts.envelope import Identity, Value
from butlers.operations.operation import Result, Row

LONGEST_WINDOW = timedelta(days=60)  # about what Google answers of free and busy times at once

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_FIRST_YEAR, _LAST_YEAR = 1970, 2199  # a week either way is still a date


def _instant(value: Any) -> datetime:
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("must be an RFC 3339 timestamp with an offset")
    moment = datetime.fromisoformat(value.upper())
    _check_year(moment)
    return moment


def _moment(value: Any) -> Moment:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        return _instant(value)
    day = date.fromisoformat(value)
    _check_year(day)
    return day


def _check_year(moment: Moment) -> None:
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"must lie between {_FIRST_YEAR} and {_LAST_YEAR}")


def _zone(value: str) -> str:
    if value not in available_timezones():
        raise ValueError("must be an IANA time zone, such as Europe/Vienna")
    return value


def _text(description: str, form: str = "date-time") -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "format": form, "description": description})


InstantText = Annotated[datetime, PlainValidator(_instant), _text("RFC 3339 with an offset")]
MomentText = Annotated[
    Moment, PlainValidator(_moment), _text("RFC 3339 with an offset, or YYYY-MM-DD for whole days", "date-or-date-time")
]
EventId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,1024}$")]
ETag = Annotated[str, StringConstraints(pattern=r'^(W/)?"[!#-~]{1,200}"$')]
TimeZone = Annotated[str, AfterValidator(_zone)]
Title = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Description = Annotated[str, StringConstraints(max_length=8000)]


class WindowArguments(Value):
    time_min: InstantText = Field(description="from here on")
    time_max: InstantText = Field(description="until here")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not timedelta(0) < self.time_max - self.time_min <= LONGEST_WINDOW:
            raise ValueError(f"time_max must lie after time_min, by {LONGEST_WINDOW.days} days at most")
        return self

    @property
    def window(self) -> Slot:
        return Slot(self.time_min.astimezone(UTC), self.time_max.astimezone(UTC))


class ListArguments(WindowArguments):
    query: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        default=None, description="words in the events"
    )
    limit: Annotated[int, Field(ge=1, le=250)] = Field(default=50, description="at most so many, on one page")
    page_token: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = Field(
        default=None, description="next_page_token of the page before"
    )


class FreeSlotsArguments(WindowArguments):
    duration_minutes: Annotated[int, Field(ge=1, le=1440)] = Field(
        default=30, description="the shortest slot that is of use"
    )
    limit: Annotated[int, Field(ge=1, le=100)] = Field(default=20, description="at most so many, on one page")


class EventArguments(Value):
    event_id: EventId = Field(description="the event, by its id")


class DeleteArguments(EventArguments):
    etag: ETag | None = Field(default=None, description="delete only what was read; default: whatever is there")


class CreateArguments(Value):
    summary: Title = Field(description="the title")
    start: MomentText = Field(description="when it begins: RFC 3339 with an offset, or YYYY-MM-DD for whole days")
    end: MomentText = Field(description="exclusive; of the same kind as start")
    time_zone: TimeZone | None = Field(default=None, description="where the event happens; default: the calendar's")
    description: Description | None = Field(default=None, description="more about it")
    location: Description | None = Field(default=None, description="where it is")
    busy: bool | None = Field(default=None, description="takes up time; default: yes, but not when it lasts whole days")
    allow_conflict: bool = Field(default=False, description="create it even where the time is taken")
    idempotency_key: Identity | None = Field(default=None, description="a call with the same key makes one event")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        check_order(self.start, self.end)
        return self

    @property
    def takes_time(self) -> bool:
        return isinstance(self.start, datetime) if self.busy is None else self.busy


class UpdateArguments(EventArguments):
    etag: ETag | None = Field(default=None, description="as read before; default: the present one")
    summary: Title | None = Field(default=None, description="the new title")
    start: MomentText | None = Field(default=None, description="when it begins; changed together with end")
    end: MomentText | None = Field(default=None, description="when it ends, exclusive; changed together with start")
    time_zone: TimeZone | None = Field(
        default=None, description="where the event happens; changed together with start and end"
    )
    description: Description | None = Field(default=None, description="more about it")
    location: Description | None = Field(default=None, description="where it is")
    busy: bool | None = Field(default=None, description="whether it takes up time")
    allow_conflict: bool = Field(default=False, description="move it even where the time is taken")

    @model_validator(mode="after")
    def _check_change(self) -> Self:
        if (self.start is None) != (self.end is None):
            raise ValueError("start and end are changed together")
        if self.start is not None and self.end is not None:
            check_order(self.start, self.end)
        elif self.time_zone is not None:
            raise ValueError("time_zone is changed together with start and end")
        if all(getattr(self, name) is None for name in ("summary", "start", "description", "location", "busy")):
            raise ValueError("says no change")
        return self


def check_order(start: Moment, end: Moment) -> None:
    if isinstance(start, datetime) and isinstance(end, datetime):
        in_order = start < end
    elif isinstance(start, datetime) or isinstance(end, datetime):
        raise ValueError("start and end must both be timestamps or both be dates")
    else:
        in_order = start < end
    if not in_order:
        raise ValueError("end must lie after start")


class EventList(Result):
    events: list[Row] = Field(description="the events, in order of their start")
    next_page_token: str | None = Field(description="hand it back for the next page; null: this is the last one")


class EventResult(Result):
    event: Row = Field(description="the event: event_id, etag, summary, start, end and the rest")


class FreeSlots(Result):
    time_zone: str = Field(description="the zone of the calendar, in which the slots are written")
    slots: list[Row] = Field(description="start and end of each free time")
    more: bool = Field(description="whether there are more than the limit")


class EventWritten(Result):
    status: str = Field(description="what happened: the event is there, or the time is taken")
    event: Row | None = Field(default=None, description="the event, where it was written")
    conflicts: list[Row] | None = Field(default=None, description="what is in the way, where the time is taken")
    suggestions: list[Row] | None = Field(default=None, description="free times near by, where the time is taken")


class EventDeleted(Result):
    status: str = Field(description="deleted")
    event_id: str = Field(description="the event, by its id")
