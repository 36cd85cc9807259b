"""A result that is all there is of one slice of a table: of one window and grouping, say, among many.

`merge_into` clears a stretch of time; a slice is named by the values of some key columns instead, and its neighbours
may lie in the same time. Rows of the slice that the result no longer has go first, the others are merged after. A kill
in between leaves out only what is out of date, and the next run ends the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from adbc_driver_manager.dbapi import Cursor
from pyspark.sql import DataFrame

from butlers.pipeline.connection import transaction
from butlers.pipeline.sinks.merge import merge_into
from butlers.pipeline.tables import Table
from butlers.storage.identifiers import quote_identifier

Place = Mapping[str, str | datetime]  # the key columns that name the slice
Key = tuple[Any, ...]


def merge_slices(frame: DataFrame, dsn: str, table: Table, *, run_id: UUID, slices: Sequence[Place]) -> int:
    """Merge a result that lies wholly in these slices and fills them; the number of its rows. It is read twice."""
    staying = {_in_utc(row) for row in frame.select(*table.key).collect()}
    with transaction(dsn) as cursor:
        known = {_in_utc(row) for place in slices for row in _keys(cursor, table, place)}
        if gone := known - staying:
            cursor.executemany(f"DELETE FROM {table.qualified} WHERE {_equal(table.key)}", sorted(gone))
    return merge_into(frame, dsn, table, run_id=run_id)


def _keys(cursor: Cursor, table: Table, place: Place) -> list[Key]:
    names = ", ".join(map(quote_identifier, table.key))
    cursor.execute(f"SELECT {names} FROM {table.qualified} WHERE {_equal(place)}", tuple(place.values()))
    return list(cursor.fetchall())


def _equal(names: Iterable[str]) -> str:
    return " AND ".join(f"{quote_identifier(name)} = ${place}" for place, name in enumerate(names, start=1))


def _in_utc(row: Iterable[Any]) -> Key:
    """Spark hands moments over without a zone, in that of this process; the server in that of the session."""
    return tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)
