"""What every test of the fanout asks for."""

from __future__ import annotations

import pytest

from tests.unit.switchboard.fanout.fixture import Bench, new_bench


@pytest.fixture
def bench() -> Bench:
    return new_bench()
