"""Where a page ended."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.errors import ValidationError
from butlers.operations.operation import page, place

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
MOMENTS = st.integers(0, 16**14 - 1).map(lambda number: EPOCH + number * MICROSECOND)


def cursor_behind(moment: datetime, identity: UUID) -> str:
    _, cursor = page([{"created_at": moment, "id": identity}] * 2, 1)
    assert cursor is not None
    return cursor


@given(moment=MOMENTS, identity=st.uuids())
def test_a_cursor_is_read_as_it_was_written(moment: datetime, identity: UUID) -> None:
    written = cursor_behind(moment, identity)
    assert place(written) == (moment, identity)
    assert re.fullmatch(r"[0-9a-f-]+", written)  # goes into an address as it is


def test_the_same_instant_in_another_zone_is_the_same_place() -> None:
    moment, identity = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC), UUID(int=7)
    there = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert cursor_behind(moment, identity) == cursor_behind(there, identity)


@pytest.mark.parametrize(
    "text", ["", "7", "zz-" + "0" * 32, "1-" + "0" * 31, "1-" + "0" * 32 + "\n", "1" * 15 + "-" + "0" * 32]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="next_cursor"):
        place(text)


def test_the_last_page_has_no_next() -> None:
    rows = [{"created_at": datetime(2026, 3, 1, tzinfo=UTC), "id": UUID(int=n)} for n in range(3)]
    assert page(rows, 3) == (rows, None)
    shown, cursor = page(rows, 2)
    assert (shown, place(cursor)) == (rows[:2], (rows[1]["created_at"], rows[1]["id"]))
    assert page([], 2) == ([], None)
