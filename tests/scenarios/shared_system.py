"""One system for all tests of a file, emptied before each: starting one costs more than most tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import forget, quick
from tests.system import RunningSystem, running_system

__all__ = ["running", "system"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    tmp_path = tmp_path_factory.mktemp("system")
    async with running_system(tmp_path, postgres_server, roster_dir=quick(tmp_path)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    return system
