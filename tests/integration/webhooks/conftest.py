"""The webhook tables with a receiver and a worker, without the rest of the system."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from butlers.webhooks import MIGRATIONS
from tests.database import cloned_database
from tests.integration.webhooks.receiver import Receiver, receiver
from tests.integration.webhooks.sending import Sending


@pytest.fixture
async def hooks() -> AsyncIterator[Receiver]:
    async with receiver() as found:
        yield found


@pytest.fixture
async def sending(postgres_server: EmbeddedPostgres) -> AsyncIterator[Sending]:
    async with cloned_database(postgres_server, [MIGRATIONS], max_size=8) as database:
        found = Sending(database=database)
        yield found
        await found.close()
