"""What nobody is sure about goes to `general`, whole, and everybody can see that it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_meter import scraped, total
from tests.system import running_system

TEXT = "can you sort out the thing with the bill or maybe the trip, I forgot"


@pytest.mark.scenario("S3-012")
async def test_what_is_below_the_threshold_goes_whole_to_general_and_is_marked(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    demanding = changed_roster(
        tmp_path, "switchboard", (r"\[buffer\]", "[routing]\nconfidence_threshold = 1.0\n\n[buffer]")
    )
    async with running_system(tmp_path, postgres_server, roster_dir=demanding) as running:
        trace = await running.finished((await running.ingest(TEXT))["request_id"])
        decision = trace["routing"]["decision"]
        (segment,) = decision["segments"]
        assert (segment["butler"], segment["start"], segment["end"]) == ("general", 0, len(TEXT))
        assert (decision["router"], decision["fallback_reason"]) == ("fallback", "ambiguous")
        kept = await running.database.fetchval("select text from general.entries")
        assert kept == TEXT, "the original text, all of it"
        logged = await running.database.fetchrow("select router, target_butler from switchboard.routing_log")
        assert logged is not None
        assert (logged["router"], logged["target_butler"]) == ("fallback", "general")
        shown = await scraped(running)
        assert total(shown["switchboard_routing_fallback_total"], reason="ambiguous") == 1
