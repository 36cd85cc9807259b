"""Column expressions that several outputs share: stretches of time, rates, and the names of groups."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as sf

from butlers.pipeline.job import Window

_PER_MS = 1000.0


def within(moment: str, window: Window) -> Column:
    return (sf.col(moment) >= sf.lit(window.start)) & (sf.col(moment) < sf.lit(window.end))


def whole_minutes(window: Window) -> Window:
    """For what is counted by the minute: from the minute that the window begins in."""
    return replace(window, start=window.start.replace(second=0, microsecond=0))


def elapsed_ms(start: str, end: str) -> Column:
    """Milliseconds with microseconds behind the point; unknown when either moment is."""
    return (sf.unix_micros(end) - sf.unix_micros(start)) / sf.lit(_PER_MS)


def hour_text(moment: str) -> Column:
    """2026-03-01T12:00:00Z; sessions are in UTC."""
    return sf.date_format(sf.date_trunc("hour", sf.col(moment)), "yyyy-MM-dd'T'HH:00:00'Z'")


def rate(part: Column, whole: Column) -> Column:
    """Of nothing it is unknown."""
    return sf.when(whole > 0, part / whole)


def named(*columns: str, **expressions: Column) -> Column:
    """The values of a group as one JSON text, in the order given; unknown is null and not left out."""
    fields = [sf.col(name) for name in columns] + [value.alias(name) for name, value in expressions.items()]
    return sf.to_json(sf.struct(*fields), {"ignoreNullFields": "false"}) if fields else everything()


def everything() -> Column:
    """The name of the group of all."""
    return sf.lit("{}")
