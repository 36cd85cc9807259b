"""Forgetting old rows in batches, each a transaction of its own, so that nobody waits long behind it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from butlers.storage.database import Database
from butlers.storage.identifiers import quote_identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingTable:
    """A table whose rows are forgotten by their age."""

    table: str
    moment: str = "created_at"
    key: str = "id"


async def forget(database: Database, schema: str, aging: AgingTable, *, before: datetime, batch: int) -> int:
    """The rows of before; how many they were."""
    statement, gone = _statement(schema, aging), 0
    while True:
        count: int = await database.fetchval(statement, before, batch)
        gone += count
        if count < batch:
            return gone


def _statement(schema: str, aging: AgingTable) -> str:
    table = f"{quote_identifier(schema)}.{quote_identifier(aging.table)}"
    moment, key = quote_identifier(aging.moment), quote_identifier(aging.key)
    oldest = f"SELECT {key} FROM {table} WHERE {moment} < $1 ORDER BY {moment} LIMIT $2"
    return f"WITH gone AS (DELETE FROM {table} WHERE {key} IN ({oldest}) RETURNING 1) SELECT count(*) FROM gone"
