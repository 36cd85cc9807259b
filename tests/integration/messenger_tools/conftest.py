"""Stored rows for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.integration.messenger_tools.stored_state import TABLES, StoredState


@pytest.fixture
async def state(postgres_server: EmbeddedPostgres) -> AsyncIterator[StoredState]:
    async with cloned_database(postgres_server, TABLES, max_size=4) as database:
        yield StoredState(database=database)
