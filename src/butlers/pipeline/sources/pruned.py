"""How far back a table is whole: results that stand must not be replaced by what is left of their source."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from butlers.contracts.envelope import invalid
from butlers.pipeline.connection import transaction
from butlers.pipeline.job import JobContext
from butlers.pipeline.tables import Table
from butlers.pipeline.windows import Window
from butlers.storage.queries import quote_identifier


def must_be_whole(context: JobContext, table: Table) -> None:
    """Refuse a window from before the moment up to which rows of its source were removed."""
    kept_from = pruned_until(context, table)
    if kept_from is not None and context.window.start < kept_from:
        raise invalid("from", f"must not be before {kept_from.isoformat()}: older rows of {table.name} are gone")


def whole_months(context: JobContext, table: Table) -> Window | None:
    """What of the window lies in months that the table still has; None: nothing does."""
    with transaction(context.dsn) as cursor:
        cursor.execute(_OLDEST_MONTH, (table.qualified,))
        row = cursor.fetchone()
    if not row or row[0] is None:
        return None
    start = max(context.window.start, row[0])
    return replace(context.window, start=start) if start < context.window.end else None


# By the names that the services give to the parts of a table (storage/retention.py).
_OLDEST_MONTH = r"""
SELECT to_timestamp(min(substring(part.relname FROM '_p(\d{6})$')) || '01 00+00', 'YYYYMMDD HH24TZH')
FROM pg_inherits JOIN pg_class AS part ON part.oid = inhrelid WHERE inhparent = to_regclass($1)
"""


def pruned_until(context: JobContext, table: Table) -> datetime | None:
    log = f"{quote_identifier(context.schemas.pipeline)}.pruning_log"
    with transaction(context.dsn) as cursor:
        cursor.execute(f"SELECT max(before) FROM {log} WHERE table_name = $1", (table.name,))
        row = cursor.fetchone()
    found: datetime | None = row[0] if row else None
    return found
