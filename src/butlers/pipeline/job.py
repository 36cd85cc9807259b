"""What a job is, what it gets, and what it says at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from pyspark.sql import SparkSession

from butlers.contracts.envelope import invalid
from butlers.errors import ConfigurationError
from butlers.pipeline.jobs import FORMER_NAMES, NAMES

if TYPE_CHECKING:
    from butlers.pipeline.lake.events import Event

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

    def describe(self) -> dict[str, str]:
        return {"from": self.start.isoformat(), "to": self.end.isoformat()}

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


class Tense(StrEnum):
    """What a window may be, seen from now."""

    OVER = "over"  # what is not over yet would be taken for whole, or for old
    STARTED = "begun"  # of a later one there is nothing to read
    ANY = "any"
    NONE = "none"  # none is said: the job goes on where it ended, and its row has all time until now


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """Everything a job may look at; there is no clock among it."""

    spark: SparkSession
    dsn: str  # of the services' database, as executors reach it
    lake: Path  # folder of the event lake
    run_id: UUID
    window: Window
    arguments: Mapping[str, str] = field(default_factory=dict)  # --set NAME=VALUE


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    rows_in: int
    rows_out: int
    satisfied: bool = True  # False: it ran well and found something wrong (a breach, an alert): exit code 1
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    about: str  # one line, for `butlers pipeline list`
    run: Callable[[JobContext], JobResult]
    arguments: Mapping[str, str] = field(default_factory=dict)  # name -> what it means; others are refused
    check: Callable[[Window, Mapping[str, str]], object] = lambda *_: None  # refuses what is wrong without Spark
    tense: Tense = Tense.STARTED
    reads: Callable[[Mapping[str, str]], Sequence[Event]] = lambda _: ()  # what the lake must have, before Spark starts


def find_job(name: str) -> Job:
    present = FORMER_NAMES.get(name, name)
    if present not in NAMES:
        raise invalid("job", f"is unknown; there are {', '.join(NAMES)}")
    module = f"butlers.pipeline.jobs.{NAMES[present]}"
    try:
        found: Job = next(job for job in import_module(module).JOBS if job.name == present)
    except (ImportError, AttributeError, StopIteration) as error:
        raise ConfigurationError(
            f"the job's file cannot be used: {error or 'it has no such job'}",
            source=module,
            key=present,
            remedy="install the package whole, with the packages of its lock file",
        ) from error
    return found
