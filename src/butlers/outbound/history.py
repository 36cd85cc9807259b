"""What people ask about messages: lists, the whole story of one, and service levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.outbound import SCHEMA
from butlers.storage.database import Database, Record
from butlers.storage.queries import Queries


class MessageHistory:
    def __init__(self, database: Database, *, schema: str = SCHEMA) -> None:
        self._database = database
        self._queries = Queries.load("butlers.outbound.history", schema=schema)

    async def messages(self, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._database.fetch(self._queries.list_messages, *values)]

    async def sender_of(self, message_id: UUID) -> str | None:
        row = await self._database.fetchrow(self._queries.message, message_id)
        return row["sender_id"] if row else None

    async def message(self, message_id: UUID, *, after: str, limit: int) -> dict[str, Any] | None:
        """The message with a page of its recipients, each with its history and its attempts."""
        message = await self._database.fetchrow(self._queries.message, message_id)
        if message is None:
            return None
        rows = await self._database.fetch(self._queries.recipients_of_message, message_id, after, limit + 1)
        keys = [row["dedupe_key"] for row in rows[:limit] if row["dedupe_key"]]
        events = _by_key(await self._database.fetch(self._queries.events_of, keys))
        attempts = _by_key(await self._database.fetch(self._queries.attempts_of, keys))
        return {
            "message": dict(message),
            "recipients": [_recipient(row, events, attempts) for row in rows[:limit]],
            "next_after": rows[limit - 1]["recipient_id"] if len(rows) > limit else None,
        }

    async def dead_keys(self, message_id: UUID, recipient_id: str | None, *, limit: int) -> list[str]:
        rows = await self._database.fetch(self._queries.dead_keys, message_id, recipient_id, limit)
        return [row["dedupe_key"] for row in rows]

    async def service_levels(self, since: datetime, until: datetime) -> dict[str, Any]:
        row = await self._database.fetchrow(self._queries.service_levels, since, until)
        return dict(row) if row else {}


def _by_key(rows: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["dedupe_key"]].append({name: value for name, value in row.items() if name != "dedupe_key"})
    return found


def _recipient(
    row: Record, events: dict[str, list[dict[str, Any]]], attempts: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in ("dedupe_key", "queued_at", "created_at")}
    history = [{"state": "planned", "channel": row["channel"], "detail": "", "at": row["created_at"]}]
    if row["queued_at"] is not None:
        history.append({"state": "queued", "channel": row["channel"], "detail": "", "at": row["queued_at"]})
    if row["dedupe_key"] is None:  # blocked when it was accepted
        history = [{"state": "blocked", "channel": "", "detail": row["detail"], "at": row["created_at"]}]
    key = row["dedupe_key"] or ""
    return shown | {"history": history + events.get(key, []), "attempts": attempts.get(key, [])}
