"""Below which change number every transaction of a server has ended, and what keeps the number from rising."""

from __future__ import annotations

from dataclasses import dataclass

from adbc_driver_manager.dbapi import Cursor

from butlers.errors import ConfigurationError
from butlers.pipeline.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    server: str  # the server's own name for its data: a copy that was restored elsewhere has another
    change: int  # all transactions below have ended
    held_s: (
        float | None
    )  # age of the oldest transaction that writes and has not ended; None: there is none, or it is hidden


# Transactions that only read have no number and hold nothing up. Those of other databases of the server do.
_HORIZON = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       extract(epoch FROM clock_timestamp() - least(
           (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()),
           (SELECT min(prepared) FROM pg_prepared_xacts)))::double precision
"""


def read_horizon(cursor: Cursor) -> Horizon:
    cursor.execute(_HORIZON)
    row = cursor.fetchone()
    assert row is not None
    return Horizon(server=str(row[0]), change=int(row[1]), held_s=None if row[2] is None else float(row[2]))


def check_numbers(cursor: Cursor, table: Table) -> None:
    """A dump brings the numbers of the server it was made on; those ahead of this one's would not be read for years."""
    cursor.execute(_FROM_THE_FUTURE.format(table=table.qualified))
    row = cursor.fetchone()
    if row is not None and row[0]:
        raise ConfigurationError(
            "rows carry change numbers that this server has not given yet, so they come from a dump of another one",
            source="database",
            key=str(table),
            remedy=f"run once: UPDATE {table.qualified} SET changed_in = DEFAULT",
        )


# All in one snapshot: what it sees was written by transactions below its end.
_FROM_THE_FUTURE = """
SELECT EXISTS (SELECT 1 FROM {table} WHERE changed_in >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
"""
