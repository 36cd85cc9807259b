"""One running system for all tests that only look and ask."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from butlers.daemon.demo.instance import Instance
from tests.integration.processes.command import up, write_settings

MAX_BODY_BYTES = 8_192


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Instance]:
    """`butlers up`, told its largest body by all three sources at once: the flag must win."""
    data_dir = tmp_path_factory.mktemp("running") / "data"
    write_settings(data_dir, "max_body_bytes = 2_048\n")
    environment = {"BUTLERS_MAX_BODY_BYTES": "4096"}
    async with up(data_dir, environment=environment, max_body_bytes=str(MAX_BODY_BYTES)) as instance:
        yield instance
