"""Lists a page at a time, newest first: the cursor names the row a page ended with, so that new rows move nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.contracts.envelope import invalid

LONGEST_PAGE = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FORM = re.compile(r"(?P<moment>[0-9a-f]{1,14})-(?P<id>[0-9a-f]{32})")


def place(cursor: str | None) -> tuple[datetime | None, UUID | None]:
    """The row a page begins behind; nothing for the first page."""
    if cursor is None:
        return None, None
    match = _FORM.fullmatch(cursor)
    if match is None:
        raise invalid("cursor", "is not the next_cursor of an earlier page")
    return _EPOCH + int(match["moment"], 16) * _MICROSECOND, UUID(match["id"])


def page(rows: Sequence[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of a page and where the next begins; it takes one row more than the page holds to know."""
    shown = [*rows[:limit]]
    if len(rows) <= limit:
        return shown, None
    last = shown[-1]
    return shown, f"{(last['created_at'] - _EPOCH) // _MICROSECOND:x}-{last['id'].hex}"
