"""Deltas of heartbeats that the intake did not compare: rows from before it did so, and made-up ones.

Every row is moved to its process, sorted, and handed to the intake's own function
(`switchboard/connectors/deltas.py`), one by one in Python. That costs many times a plain sum; rows that carry their
deltas never come here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from butlers.switchboard.connectors.deltas import ADDED, COUNTERS, SECOND, Counts, Lives, Reading, add

if TYPE_CHECKING:
    import pyarrow

PROCESS = ("connector_type", "endpoint_identity", "instance_id")
COMPARED_COLUMNS = (*PROCESS, "id", "uptime_s", *COUNTERS, "received_at", "sent_at")
Row = tuple[Any, ...]  # of COMPARED_COLUMNS


def with_deltas(heartbeats: DataFrame) -> DataFrame:
    """The same heartbeats in any order, each once, with what each added; columns that are no part of it stay."""
    kept = heartbeats.drop(*ADDED)
    ordered = kept.repartition(*PROCESS).sortWithinPartitions(*PROCESS, "received_at", "id")
    return ordered.mapInArrow(_compare, StructType([*kept.schema, *(StructField(name, LongType()) for name in ADDED)]))


def _compare(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow  # noqa: PLC0415 - on executors only

    state = _State()
    for batch in batches:
        added = [state.add(row) for row in _rows(batch)]
        columns = zip(*(counts or (None,) * len(ADDED) for counts in added), strict=True)
        arrays = [pyarrow.array(column, pyarrow.int64()) for column in columns]
        whole = pyarrow.RecordBatch.from_arrays([*batch.columns, *arrays], names=[*batch.schema.names, *ADDED])
        yield whole.filter(pyarrow.array([counts is not None for counts in added]))


def _rows(batch: pyarrow.RecordBatch) -> Iterator[Row]:
    moments = ("received_at", "sent_at")
    columns = [batch.column(name).cast("int64") if name in moments else batch.column(name) for name in COMPARED_COLUMNS]
    return zip(*(column.to_pylist() for column in columns), strict=True)


class _State:
    """Where a pass over ordered rows has come to."""

    def __init__(self) -> None:
        self._process: Row = ()
        self._last: Row = ()
        self._lives: Lives = ()

    def add(self, row: Row) -> Counts | None:
        """What a row added; None: it is the same row once more."""
        process, (ident, uptime_s, *counts, received, sent) = row[: len(PROCESS)], row[len(PROCESS) :]
        if process != self._process:
            self._process, self._lives = process, ()
        elif (ident, received) == self._last:
            return None
        self._last = (ident, received)
        reading = Reading(uptime=round(uptime_s * SECOND), sent=sent, received=received, counts=tuple(counts))
        self._lives, added = add(self._lives, reading)
        return added
