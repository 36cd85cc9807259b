"""One view of the database for all tasks of a scan.

    driver     BEGIN REPEATABLE READ; SELECT pg_export_snapshot()     stays open, idle
    task       BEGIN REPEATABLE READ; SET TRANSACTION SNAPSHOT '...'  sees what the driver's transaction sees

Spark plans a Python source in a worker process that it ends when it likes, so the transaction is opened by the program
that asks for the DataFrame, and only the snapshot's name travels. A DataFrame is a plan that may be executed again, and
what is derived from it keeps no hold of it; so nobody can tell when its last scan is done, and the snapshot lives

    inside `with snapshots():`     until the block ends (a run of a job is such a block)
    anywhere else                  until the Spark session is gone

A repeated task, a second action on the same DataFrame and a `cache` that was lost all see the same rows. The server
keeps old versions of rows for as long: that is the price, and why a run should end.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

import adbc_driver_manager
from adbc_driver_manager.dbapi import Connection
from pyspark.sql import SparkSession

from butlers.pipeline.connection import connect

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_block: ContextVar[contextlib.ExitStack | None] = ContextVar("block", default=None)


@contextlib.contextmanager
def snapshots() -> Iterator[None]:
    """A block in which scans are planned and executed; its end lets the server forget their snapshots."""
    with contextlib.ExitStack() as stack:
        token = _block.set(stack)
        try:
            yield
        finally:
            _block.reset(token)


def hold_snapshot(spark: SparkSession, dsn: str) -> tuple[Connection, str]:
    """A transaction that is kept open, and the name under which others see what it sees."""
    connection = connect(dsn, autocommit=True)
    block = _block.get()
    if block is not None:
        block.callback(_let_go, connection)
    else:
        weakref.finalize(spark, _let_go, connection)
    with connection.cursor() as cursor:
        cursor.execute(BEGIN)
        cursor.execute("SELECT pg_export_snapshot()")
        row = cursor.fetchone()
    return connection, str(row[0]) if row else ""


def _let_go(connection: Connection) -> None:
    # A server that is gone has let go already.
    with contextlib.suppress(adbc_driver_manager.Error):
        connection.close()
