"""The count of what waits, between and during looks at the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.switchboard.ingress.buffer import Occupancy


def test_what_enters_counts_at_once_and_what_was_known_does_not() -> None:
    room = Occupancy()
    room.enter("api")
    room.enter("api")
    assert room.waiting["api"] == 2
    room.settle("api", stored=True)
    room.settle("api", stored=False)
    assert room.waiting["api"] == 1


def test_a_count_replaces_the_numbers_and_forgets_nobody_who_came_meanwhile() -> None:
    room = Occupancy()
    room.enter("api")  # its row may be written before or after the rows are counted
    room.begin_count()
    room.enter("api")
    room.enter("email")
    room.end_count({"api": 10, "mcp": 3})
    assert dict(room.waiting) == {"api": 12, "email": 1, "mcp": 3}
    room.begin_count()
    room.settle("api", stored=True)
    room.settle("api", stored=True)
    room.end_count({"api": 12})
    assert room.waiting["email"] == 1
    assert room.waiting["mcp"] == 0


@pytest.mark.parametrize("counted", [1, 2, 3])
def test_a_message_that_came_while_rows_were_counted_counts_once(counted: int) -> None:
    room = Occupancy()
    room.enter("api")
    room.settle("api", stored=True)
    room.begin_count()
    for _ in range(2):
        room.enter("api")
        room.settle("api", stored=True)
    room.end_count({"api": counted})
    assert room.waiting["api"] == 3


def test_a_message_that_was_put_off_is_found_again_by_the_next_count() -> None:
    room = Occupancy()
    room.begin_count()
    room.end_count({"api": 1000})
    for _ in range(3):
        room.begin_count()
        room.leave("api")
        room.end_count({"api": 1000})
        assert room.waiting["api"] == 1000


def test_what_another_process_let_in_may_end_here() -> None:
    room = Occupancy()
    room.leave("api")
    assert room.waiting["api"] == 0
    room.enter("api")
    assert room.waiting["api"] == 1


@given(st.lists(st.sampled_from(["enter", "stored", "known", "leave", "begin", "end"]), max_size=60))
def test_it_never_counts_less_than_there_is(steps: list[str]) -> None:
    """In one process; the rows are counted at the end of a look, the latest moment it can happen."""
    room, rows, entered = Occupancy(), 0, 0
    looking = False
    for step in steps:
        if step == "enter":
            room.enter("api")
            entered += 1
        elif step == "stored" and entered:
            room.settle("api", stored=True)
            entered, rows = entered - 1, rows + 1
        elif step == "known" and entered:
            room.settle("api", stored=False)
            entered -= 1
        elif step == "leave" and rows and not looking:
            room.leave("api")
            rows -= 1
        elif step == "begin" and not looking:
            room.begin_count()
            looking = True
        elif step == "end" and looking:
            room.end_count({"api": rows})
            looking = False
        assert room.waiting["api"] >= rows + entered
