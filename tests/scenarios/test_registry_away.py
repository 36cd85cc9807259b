"""A butler whose Switchboard is away keeps knocking, and says so in a line each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import beside
from tests.system import running_system


async def test_a_heartbeat_that_nobody_hears_is_one_warning(
    tmp_path: Path, postgres_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_system(tmp_path, postgres_server, names=["general"], heartbeat_s=0.05) as running:

        async def unheard() -> bool:
            return sum("heartbeat" in record.getMessage() for record in caplog.records) >= 3

        await running.until(unheard)
        told = [record for record in caplog.records if "heartbeat" in record.getMessage()]
        assert {record.levelname for record in told} == {"WARNING"}
        assert not any(record.exc_info for record in told)
        assert "service failed, starting it again" not in caplog.text
        # And it is heard as soon as somebody is there.
        async with beside(running, ["switchboard", "messenger"]):

            async def registered() -> bool:
                query = "select count(*) from switchboard.butler_registry where name = 'general'"
                return bool(await running.database.fetchval(query))

            await running.until(registered)
