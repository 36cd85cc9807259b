"""Cutting a table into ranges of one column, of equal width, for tasks that read side by side.

Ranges go by the table's time column, else by the first column of its key. The first range has no lower end and holds
the rows without a value, the last one has no upper end: together they are the whole table, whatever its rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from adbc_driver_manager.dbapi import Cursor

from butlers.pipeline.sources.predicates import literal
from butlers.pipeline.tables import Table
from butlers.storage.queries import quote_identifier

_BYTES_PER_TASK = 32 * 1024 * 1024
_MOST_TASKS = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """A type's values as whole numbers and back, so that a range of them can be divided."""

    number: Callable[[Any], int]
    text: Callable[[int], str | None]


_SCALES: Mapping[str, _Scale] = {
    "timestamp with time zone": _Scale(
        number=lambda moment: (moment - _EPOCH) // _MICROSECOND,
        text=lambda number: literal(_EPOCH + number * _MICROSECOND),
    ),
    "date": _Scale(number=date.toordinal, text=lambda number: literal(date.fromordinal(number))),
    "uuid": _Scale(number=lambda text: UUID(text).int, text=lambda number: f"'{UUID(int=number)}'::uuid"),
    **{kind: _Scale(number=int, text=literal) for kind in ("smallint", "integer", "bigint")},
}


def range_conditions(
    cursor: Cursor, table: Table, types: Mapping[str, str], *, where: str, wanted: int | None
) -> list[str]:
    """One condition per task; a single "true" when there is nothing to divide by or no reason to."""
    column = table.time or table.key[0]
    scale = _SCALES.get(types[column])
    tasks = wanted or _tasks_for(cursor, table)
    ends = _ends(cursor, table, column, where) if scale and tasks > 1 else None
    if scale is None or ends is None:
        return ["true"]
    cuts = _cuts(scale.number(ends[0]), scale.number(ends[1]), tasks)
    return _between(quote_identifier(column), [scale.text(cut) or "" for cut in cuts])


def _tasks_for(cursor: Cursor, table: Table) -> int:
    cursor.execute("SELECT sum(pg_table_size(relid))::bigint FROM pg_partition_tree($1::regclass)", (table.qualified,))
    row = cursor.fetchone()
    size = int(row[0] or 0) if row else 0
    return max(1, min(_MOST_TASKS, size // _BYTES_PER_TASK))


def _ends(cursor: Cursor, table: Table, column: str, where: str) -> tuple[Any, Any] | None:
    """The smallest and the largest value; `min` and `max` do not exist for every type, an index does the same."""
    quoted = quote_identifier(column)
    shown = f"{quoted}::text" if table.columns[column].dataType.simpleString() == "string" else quoted
    values = []
    for order in ("ASC", "DESC"):
        cursor.execute(
            f"SELECT {shown} FROM {table.qualified} "
            f"WHERE {where} AND {quoted} IS NOT NULL ORDER BY {quoted} {order} LIMIT 1"
        )
        values.append(cursor.fetchone())
    return (values[0][0], values[1][0]) if values[0] and values[1] else None


def _cuts(low: int, high: int, tasks: int) -> list[int]:
    return sorted({low + (high - low + 1) * part // tasks for part in range(1, tasks)} - {low})


def _between(column: str, cuts: list[str]) -> list[str]:
    if not cuts:
        return ["true"]
    middle = [f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(cuts)]
    return [f"({column} < {cuts[0]} OR {column} IS NULL)", *middle, f"{column} >= {cuts[-1]}"]
