from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from butlers.clock import ManualClock
from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry.telemetry import Telemetry
from tests.database import cloned_database

from .ledger import NOW, TABLES, Ledger


@pytest.fixture
async def ledger(postgres_server: EmbeddedPostgres) -> AsyncIterator[Ledger]:
    clock = ManualClock(NOW)
    telemetry = Telemetry.create("messenger", "test-1", clock=clock)
    async with cloned_database(postgres_server, TABLES) as database:
        yield Ledger(database=database, clock=clock, telemetry=telemetry)
    telemetry.shutdown()
