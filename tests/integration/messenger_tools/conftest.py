"""A world of rows for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.integration.messenger_tools.stored_state import TABLES, World


@pytest.fixture
async def world(postgres_server: EmbeddedPostgres) -> AsyncIterator[World]:
    async with cloned_database(postgres_server, TABLES, max_size=4) as database:
        yield World(database=database)
