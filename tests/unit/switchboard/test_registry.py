"""Liveness as a pure decision, and how old what the registry says of a butler may be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.clock import ManualClock
from butlers.storage.database import Database
from butlers.switchboard.registry import SNAPSHOT_S, Registry, eligibility

SEEN = datetime(2026, 1, 1, tzinfo=UTC)
ORDER = ["active", "stale", "quarantined"]


@pytest.mark.parametrize(
    ("silent", "state"),
    [(-5, "active"), (0, "active"), (300, "active"), (300.001, "stale"), (600, "stale"), (600.001, "quarantined")],
)
def test_past_its_time_stale_past_twice_that_quarantined(silent: float, state: str) -> None:
    assert eligibility(SEEN, 300, SEEN + timedelta(seconds=silent)) == state


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_longer_silence_is_never_judged_better(ttl: int, one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    states = [eligibility(SEEN, ttl, SEEN + timedelta(seconds=silent)) for silent in (shorter, longer)]
    assert ORDER.index(states[0]) <= ORDER.index(states[1])


class Rows:
    """The table of butlers, which counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0
        self.held: dict[str, Any] | None = None

    async def fetch(self, _query: str) -> list[dict[str, Any]]:
        self.reads += 1
        row: dict[str, Any] = {
            "name": "finance",
            "eligibility_state": "active",
            "triggers": [],
            "capabilities": ["route.execute"],
        }
        row |= {
            "description": "",
            "required_information": [],
            "held": self.held,
            "transport": "mcp",
            "route_timeout_s": 900.0,
        }
        return [row | {"route_contract_min": "route.v1", "route_contract_max": "route.v1"}]


async def test_a_target_is_known_as_of_at_most_a_second_ago() -> None:
    clock, rows = ManualClock(), Rows()
    registry = Registry(database=cast("Database", rows), schema="switchboard", clock=clock, new_id=uuid4)
    assert registry.route_timeout_s("finance") == 60.0
    await registry.butlers()
    assert registry.route_timeout_s("finance") == 600.0  # at most
    rows.held = {"operator": "of another process"}

    known = await registry.target("finance")
    assert (known is not None and known.held, rows.reads) == (False, 1)
    assert await registry.target("travel") is None
    clock.advance(SNAPSHOT_S + 0.001)
    known = await registry.target("finance")
    assert (known is not None and known.held, rows.reads) == (True, 2)
