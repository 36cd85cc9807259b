"""Whether a lake holds all of a window: results that stand must not be replaced by those of a part of their source."""

from __future__ import annotations

from pathlib import Path

from butlers.contracts.envelope import invalid
from butlers.errors import ConfigurationError
from butlers.pipeline.connection import connect
from butlers.pipeline.lake.events import CHANGED_IN, Event
from butlers.pipeline.lake.log import LakeState
from butlers.pipeline.lake.reading import existing_log
from butlers.pipeline.sources.horizon import Horizon, read_horizon
from butlers.pipeline.windows import Window

GENERATED = "generated"  # the server of rows that never were in a database


def must_hold(lake: Path, event: Event, window: Window, *, dsn: str) -> None:
    """Refuse a window whose days were taken out for their age, or that the stream has not reached yet."""
    state = existing_log(lake, event).state()
    if window.start.date().isoformat() < state.since:
        raise invalid("from", f"must not be before {state.since}: older days of {event.name} left the lake")
    if state.server != GENERATED and _is_behind(state, event, window, dsn):
        raise ConfigurationError(
            "rows of this window are in the database and not in the lake yet",
            source="lake",
            key=event.name,
            remedy="run the job lake-stream first",
        )


def must_be_from(state: LakeState, horizon: Horizon, event: Event) -> None:
    """A lake is one server's: the change numbers of another mean something else."""
    if state.server != horizon.server:
        raise ConfigurationError(
            "this is not the database that the lake was filled from: it is another server",
            source="lake",
            key=event.name,
            remedy="name the database it came from, or begin a new lake for this one",
        )


def _is_behind(state: LakeState, event: Event, window: Window, dsn: str) -> bool:
    with connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        must_be_from(state, read_horizon(cursor), event)
        cursor.execute(
            f"SELECT EXISTS (SELECT 1 FROM {event.table.qualified} WHERE {CHANGED_IN} >= $1 AND {event.born} < $2)",
            (state.horizon, window.end),
        )
        row = cursor.fetchone()
    return bool(row and row[0])
