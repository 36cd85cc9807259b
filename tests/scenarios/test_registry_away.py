"""A butler whose Switchboard is away keeps knocking, and the log says so in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import beside
from tests.scenarios.test_logs_of_a_lasting_failure import logging_to
from tests.system import running_system


async def test_a_heartbeat_that_nobody_hears_is_one_warning(
    tmp_path: Path, postgres_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "butlers.jsonl"
    with logging_to(path):
        async with running_system(tmp_path, postgres_server, names=["general"], heartbeat_s=0.05) as running:

            async def unheard() -> bool:
                return sum("heartbeat" in record.getMessage() for record in caplog.records) >= 3

            await running.until(unheard)
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            [told] = [line for line in lines if "heartbeat" in line["event"]]
            assert (told["level"], told["butler"], told["error_class"]) == ("warning", "general", "target_unavailable")
            assert "did not answer" in told["error"]["message"]
            assert '"frames"' not in json.dumps(told), "nothing is wrong here, so there is no place to look at"
            assert "service failed, starting it again" not in caplog.text
            # And it is heard as soon as somebody is there.
            async with beside(running, ["switchboard", "messenger"]):

                async def registered() -> bool:
                    query = "select count(*) from switchboard.butler_registry where name = 'general'"
                    return bool(await running.database.fetchval(query))

                await running.until(registered)
