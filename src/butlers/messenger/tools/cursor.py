"""Where a page of a list ended, so that the next one begins there.

Lists are ordered by (created_at, id), newest first. The cursor names the last row that was shown and not its number,
so rows that come in meanwhile move nothing: no row is shown twice and none that was there at the start is left out,
also where many were made in the same microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from uuid import UUID

from butlers.contracts.envelope import invalid

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
