"""The stream of one event: changes of a table, batch by batch, into files that a commit makes count.

    changes [start, end) --> without what is below the log's horizon --> files --> commit, horizon = last change + 1

The log alone says how far the lake has come. Killed before the commit: the files do not count, and the next run reads
the same range again. Killed after it: the next run begins behind it. Spark's own checkpoint is made anew by each run;
one that is read again would be believed, and after the log was restored from a backup it is ahead of the log.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from butlers.pipeline.connection import connect
from butlers.pipeline.lake.events import CHANGE, DATE, Event
from butlers.pipeline.lake.files import discard, publish, stage
from butlers.pipeline.lake.log import Commit, LakeFile, LakeLog, LakeState
from butlers.pipeline.lake.wholeness import must_be_from, note_gap
from butlers.pipeline.sources.changes import ROWS_PER_BATCH, read_changes
from butlers.pipeline.sources.horizon import Horizon, read_horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    every: str | None = None  # Spark's words, "10 seconds"; None: what there is now, and then an end


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    event: Event
    dsn: str
    lake: Path
    rows_per_batch: int = ROWS_PER_BATCH
    pruned_until: datetime | None = None  # rows of its table that are older are gone

    @property
    def folder(self) -> Path:
        return self.lake / self.event.name

    def start(self, spark: SparkSession, trigger: Trigger) -> StreamingQuery:
        state = self._open_log()
        changes = read_changes(
            spark,
            self.dsn,
            self.event.table,
            select=self.event.expressions,
            schema=self.event.schema,
            start=state.horizon,
            server=state.server,
            rows_per_batch=self.rows_per_batch,
        )
        writer = (
            changes.withColumn(DATE, sf.to_date(self.event.born))
            .writeStream.queryName(f"lake {self.event.name}")
            .option("checkpointLocation", str(self._fresh_checkpoint()))
            .foreachBatch(partial(_append_to, self.folder))
        )
        if trigger.every is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger.every).start()

    def _open_log(self) -> LakeState:
        horizon = self.database_horizon()
        state = LakeLog(self.folder).create(server=horizon.server)
        must_be_from(state, horizon, self.event)
        note_gap(self.lake, self.event, self.pruned_until)
        return state

    def state(self) -> LakeState:
        """How far the lake has come, if it was begun."""
        log = LakeLog(self.folder)
        return log.state() if log.exists else LakeState()

    def _fresh_checkpoint(self) -> Path:
        """Spark must have one, and what an earlier run left in it must not count: the log may have been restored."""
        folder = self.lake / "_checkpoints" / self.event.name
        shutil.rmtree(folder, ignore_errors=True)
        return folder / str(uuid4())

    def database_horizon(self) -> Horizon:
        with connect(self.dsn, autocommit=True) as connection, connection.cursor() as cursor:
            return read_horizon(cursor)


def _append_to(folder: Path, batch: DataFrame, _: int) -> None:
    append_batch(batch, folder)


def append_batch(batch: DataFrame, folder: Path) -> tuple[LakeFile, ...]:
    """Add what is new of a batch; returns the files, none when all of it was there."""
    log = LakeLog(folder)
    while True:
        horizon = log.state().horizon
        # One file per day, however many slices the batch was read in.
        fresh = batch.where(sf.col(CHANGE) >= horizon).repartition(DATE)
        files = publish(stage(fresh, folder), folder)
        if not files or log.commit(lambda state, horizon=horizon, files=files: _append(state, horizon, files)):  # type: ignore[misc]
            return files
        discard(files, folder)  # another stream was faster: see what is left


def _append(state: LakeState, horizon: int, files: tuple[LakeFile, ...]) -> Commit | None:
    if state.horizon != horizon:
        return None
    return Commit(kind="append", add=files, horizon=max(file.last_change for file in files) + 1)
