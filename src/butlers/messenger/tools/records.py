"""What the tools read: one delivery with its attempts and receipts, and pages of a list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.contracts.envelope import invalid
from butlers.errors import NotFound
from butlers.operations.operation import SWITCHBOARD, DecidedArguments, Role
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries

Lines = dict[UUID, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecords:
    database: Database
    queries: Queries

    @classmethod
    def of(cls, database: Database, schema: str) -> DeliveryRecords:
        return cls(database=database, queries=Queries.load("butlers.messenger.tools", schema=schema))

    async def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.fetch(query, *values)]

    async def row(self, query: str, *values: Any) -> dict[str, Any] | None:
        row = await self.database.fetchrow(query, *values)
        return dict(row) if row is not None else None

    async def delivery(self, delivery_id: UUID) -> dict[str, Any]:
        row = await self.row(self.queries.delivery, delivery_id)
        if row is None:
            raise NotFound.of("delivery_id", "no such delivery")
        return row

    async def attempts(self, *deliveries: UUID) -> Lines:
        return _by_delivery(deliveries, await self.rows(self.queries.attempts, deliveries))

    async def receipts(self, *deliveries: UUID) -> Lines:
        return _by_delivery(deliveries, await self.rows(self.queries.receipts, deliveries))

    async def standing(self, executor: Executor, delivery_id: UUID) -> dict[str, Any] | None:
        """What decides whether a dead letter may be sent again."""
        row = await executor.fetchrow(self.queries.standing_of_deliveries, [delivery_id])
        return dict(row) if row is not None else None

    async def add_decision(
        self, executor: Executor, delivery_id: UUID, *, at: datetime, rule: str, outcome: str, detail: str
    ) -> None:
        line = {"at": at.isoformat(), "rule": rule, "verdict": outcome, "detail": detail}
        await executor.execute(self.queries.add_decision, delivery_id, [line])


def decided_by(caller: Caller, arguments: DecidedArguments) -> str:
    """Who decides: the caller, or the person Switchboard speaks for."""
    speaks_for_others = caller.role is Role.BUTLER and caller.name == SWITCHBOARD
    return arguments.decided_by or caller.name if speaks_for_others else caller.name


def check_window(since: datetime | None, until: datetime | None) -> None:
    if since is not None and until is not None and since > until:
        raise invalid("since", "is later than until")


def _by_delivery(deliveries: Iterable[UUID], rows: Iterable[Mapping[str, Any]]) -> Lines:
    lines: Lines = {delivery: [] for delivery in deliveries}
    for row in rows:
        lines[row["delivery_id"]].append({name: value for name, value in row.items() if name != "delivery_id"})
    return lines


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Fourteen digits of microseconds reach into the year 4253.
_FORM = re.compile(r"(?P<moment>[0-9a-f]{1,14})-(?P<id>[0-9a-f]{32})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in a list: just behind this row."""

    created_at: datetime
    id: UUID

    @classmethod
    def read(cls, text: str) -> Self:
        match = _FORM.fullmatch(text)
        if match is None:
            raise invalid("cursor", "is not the next_cursor of an earlier page")
        return cls(created_at=_EPOCH + int(match["moment"], 16) * _MICROSECOND, id=UUID(match["id"]))

    def write(self) -> str:
        return f"{(self.created_at - _EPOCH) // _MICROSECOND:x}-{self.id.hex}"


def place(text: str | None) -> tuple[datetime | None, UUID | None]:
    """The row a page begins behind; nothing for the first page."""
    if text is None:
        return None, None
    cursor = Cursor.read(text)
    return cursor.created_at, cursor.id


def page(rows: Sequence[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of a page and where the next begins; it takes one row more than the page holds to know."""
    shown = [*rows[:limit]]
    if len(rows) <= limit:
        return shown, None
    return shown, Cursor(created_at=shown[-1]["created_at"], id=shown[-1]["id"]).write()
