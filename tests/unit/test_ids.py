"""UUIDv7 as RFC 9562 lays it out, increasing whatever the clock does."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.clock import ManualClock
from butlers.ids import Uuid7Factory, made_at


@given(st.integers(0, 10**14))
def test_an_id_has_version_variant_and_its_moment(milliseconds: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    identifier = Uuid7Factory(ManualClock(moment))()
    assert identifier.version == 7
    assert identifier.variant == "specified in RFC 4122"
    assert abs(made_at(identifier) - moment) <= timedelta(milliseconds=1)


def test_the_example_of_the_standard_is_read_right() -> None:
    assert made_at(UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")) == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)


@given(st.lists(st.sampled_from([-5.0, -0.001, 0.0, 0.0, 0.0, 0.001, 1.0]), max_size=60))
def test_ids_of_one_factory_increase_even_when_the_clock_steps_back(steps: list[float]) -> None:
    clock = ManualClock()
    make = Uuid7Factory(clock)
    made = [make()]
    for step in steps:
        clock.advance(step)
        made.append(make())
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_a_burst_beyond_one_milliseconds_room_still_increases() -> None:
    make = Uuid7Factory(ManualClock(), random_bits=lambda bits: (1 << bits) - 1)
    made = [make() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(identifier.version == 7 for identifier in made)


def test_two_factories_at_one_moment_make_different_ids() -> None:
    clock = ManualClock()
    assert len({Uuid7Factory(clock)() for _ in range(1000)}) == 1000


def test_threads_never_get_the_same_id() -> None:
    make, made = Uuid7Factory(ManualClock()), list[UUID]()
    threads = [threading.Thread(target=lambda: made.extend(make() for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2000


@pytest.mark.parametrize("times", [1, 600])  # within a page of random bits, and beyond
def test_a_forked_process_makes_ids_of_its_own(times: int) -> None:
    make = Uuid7Factory(ManualClock())
    make()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, make().bytes)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    theirs = UUID(bytes=os.read(reading, 16))
    os.close(reading)
    assert theirs not in {make() for _ in range(times)}
