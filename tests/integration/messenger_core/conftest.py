from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database_uri

from .core import TABLES, Core, transition_guard


@pytest.fixture
async def core(postgres_server: EmbeddedPostgres) -> AsyncIterator[Core]:
    async with (
        cloned_database_uri(postgres_server, TABLES) as uri,
        await Database.connect(uri, max_size=6) as first,
        await Database.connect(uri, max_size=6) as second,
    ):
        core = Core(database=first, second=second)
        await first.execute(transition_guard())
        await core.deliveries().ensure_channels(["telegram.bot", "email.bot"])
        yield core
