"""Plans: as Parquet, `<folder>/message_id=<id>/`, and as rows of the delivery runtime's tables.

    turn_to_load    BEGIN; the locks of the message and of the sender's loads       before anything is read
    add_rows        tasks stage the rows as they do for a merge; then, in that same transaction,
                    INSERT ... ON CONFLICT DO NOTHING for every table; COMMIT

The turn and the rows stand and fall together: a connection that breaks loses both. A row that is there is never
changed, whoever wrote it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import adbc_driver_manager
from adbc_driver_manager.dbapi import Connection, Cursor
from pyspark.sql import DataFrame

from butlers.errors import InternalError
from butlers.outbound.postgres_records import message_turn
from butlers.outbound.values import Message
from butlers.pipeline.connection import connect, fetch_value, refused
from butlers.pipeline.sinks.merge import TURN, Staging, stage, staging_for
from butlers.pipeline.sources.predicates import real_columns
from butlers.pipeline.tables import Table
from butlers.storage.queries import quote_identifier


def write_plan(plan: DataFrame, folder: Path, message_id: UUID) -> Path:
    """Where it is now; an earlier plan of the message is replaced as a whole.

    Written beside its place and renamed into it: a reader finds the old plan, for the moment between two renames none,
    or the new one, and never a part. Names with `_` are no data to Spark.
    """
    place, draft = folder / f"message_id={message_id}", folder / f"_draft-{uuid4()}"
    try:
        plan.drop("message_id").write.parquet(str(draft))
        _put(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def _put(draft: Path, place: Path) -> None:
    aside = draft.with_name(f"_old-{uuid4()}")
    with contextlib.suppress(FileNotFoundError):
        place.rename(aside)
    try:
        draft.rename(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.rename(place)
        raise InternalError(f"{place}: the plan cannot be put here; does another run write it?") from error
    shutil.rmtree(aside, ignore_errors=True)


def load_turn(sender_id: str) -> str:
    """Names the lock of a sender's loads: two at once would give the same minutes away."""
    return f"outbound load {sender_id}"


@contextlib.contextmanager
def turn_to_load(dsn: str, message: Message) -> Iterator[Connection]:
    """A transaction in which nobody else decides for the message, and no other load for its sender.

    Not the sender's own turn: messages online would wait until a large audience is planned.
    """
    with connect(dsn) as connection:
        try:
            with connection.cursor() as cursor:
                for turn in (load_turn(message.sender_id), message_turn(message.id)):
                    fetch_value(cursor, TURN, (turn,))
        except adbc_driver_manager.Error as error:
            raise refused("waiting for the turn to load", error) from error
        yield connection


def add_rows(
    connection: Connection, dsn: str, rows: Sequence[tuple[Table, DataFrame]], *, run_id: UUID
) -> tuple[int, ...]:
    """Add what is not there yet to all tables at once, and end the transaction; how many rows each has got."""
    with contextlib.ExitStack() as stack:
        staged = [(table, stack.enter_context(_staged(frame, dsn, table, run_id))) for table, frame in rows]
        try:
            with connection.cursor() as cursor:
                added = tuple(_add(cursor, table, staging) for table, staging in staged)
            connection.commit()
        except adbc_driver_manager.Error as error:
            raise refused("loading the plan", error) from error
        finally:
            # What was staged is dropped next, which waits for a transaction that has looked at it.
            with contextlib.suppress(adbc_driver_manager.Error):
                connection.rollback()
    return added


@contextlib.contextmanager
def _staged(frame: DataFrame, dsn: str, table: Table, run_id: UUID) -> Iterator[Staging]:
    with staging_for(dsn, table.columns, run_id) as staging:
        stage(frame.select(*table.columns.fieldNames()), dsn, staging)
        yield staging


def _add(cursor: Cursor, table: Table, staging: Staging) -> int:
    staging.count(cursor)
    types = real_columns(cursor, table)
    listed = ", ".join(map(quote_identifier, types))
    cast = ", ".join(f"{quote_identifier(name)}::{kind}" for name, kind in types.items())
    chosen = f"SELECT {cast} FROM {staging.accepted_rows}"
    insertion = f"INSERT INTO {table.qualified} ({listed}) {chosen} ON CONFLICT DO NOTHING RETURNING 1"
    return int(fetch_value(cursor, f"WITH added AS ({insertion}) SELECT count(*) FROM added"))
