"""Whether a lake holds all of a window: results that stand must not be replaced by those of a part of their source."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from butlers.contracts.envelope import invalid
from butlers.errors import ConfigurationError
from butlers.pipeline.connection import connect
from butlers.pipeline.lake.events import CHANGED_IN, Event
from butlers.pipeline.lake.log import Commit, LakeLog, LakeState
from butlers.pipeline.lake.reading import existing_log
from butlers.pipeline.sources.horizon import Horizon, read_horizon
from butlers.pipeline.windows import Window

GENERATED = "generated"  # the server of rows that never were in a database


def must_hold(lake: Path, event: Event, window: Window, *, dsn: str) -> LakeState:
    """Refuse a window of which days are missing, or that the stream has not reached yet; the lake as it was looked at.

    The day before the window must be there, too: a heartbeat that carries no delta is compared with the one before it.
    """
    state = existing_log(lake, event).state()
    before = (window.start - timedelta(days=1)).date().isoformat()
    if before < state.since:
        raise invalid("from", f"must be after {state.since}: older days of {event.name} are not in the lake")
    if state.server != GENERATED and _is_behind(state, event, window, dsn):
        raise ConfigurationError(
            "rows of this window are in the database and not in the lake yet",
            source="lake",
            key=event.name,
            remedy="run the job lake-stream first",
        )
    return state


def note_gap(lake: Path, event: Event, pruned_until: datetime | None) -> None:
    """Rows may have been pruned from the table before they were streamed: then only later days are whole."""
    if pruned_until is None:
        return
    first_whole = (pruned_until + timedelta(days=1)).date().isoformat()

    def decide(state: LakeState) -> Commit | None:
        newest = max((file.date for file in state.files.values()), default="")
        missed = newest <= pruned_until.date().isoformat() and state.since < first_whole
        return Commit(kind="gap", since=first_whole) if missed else None

    LakeLog(lake / event.name).commit(decide)


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
