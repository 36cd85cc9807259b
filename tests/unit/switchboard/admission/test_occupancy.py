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


def test_a_count_replaces_the_numbers_while_nothing_moves() -> None:
    room = Occupancy()
    room.enter("api")
    room.settle("api", stored=True)
    room.begin_count()
    room.end_count({"api": 10, "mcp": 3})
    assert dict(room.waiting) == {"api": 10, "mcp": 3}


@pytest.mark.parametrize("moves", ["enter", "settle", "leave"])
def test_a_count_that_messages_moved_beside_is_discarded(moves: str) -> None:
    room = Occupancy()
    room.enter("api")
    if moves != "settle":
        room.settle("api", stored=True)
    room.begin_count()
    room.settle("api", stored=True) if moves == "settle" else getattr(room, moves)("api")
    before = dict(room.waiting)
    room.end_count({"api": 10})
    assert dict(room.waiting) == before


def test_a_busy_process_counts_after_some_discarded_counts_and_forgets_nobody_who_came_meanwhile() -> None:
    room = Occupancy()
    room.enter("api")  # its row may be written before or after the rows are counted
    for _ in range(5):
        room.begin_count()
        room.end_count({"api": 10, "mcp": 3})
        assert dict(room.waiting) == {"api": 1}
    room.begin_count()
    room.enter("api")
    room.enter("email")
    room.end_count({"api": 10, "mcp": 3})
    assert dict(room.waiting) == {"api": 12, "email": 1, "mcp": 3}


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
