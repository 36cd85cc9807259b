"""Dead letters of a request for which one success is enough: what nobody misses any more is settled."""

from __future__ import annotations

from pathlib import Path

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.downstream import downstream, error, ok
from tests.scenarios.fanout_system import AT_HOME, FanoutSystem, planned
from tests.scenarios.operator_door import act, in_state, letters
from tests.system import running_system

EITHER_OR = """
[[routing.plan]]
butlers = ["finance", "travel"]
mode = "ordered"
join = "first_success"
abort = "continue"
"""


async def test_a_replay_that_another_part_makes_good_settles_its_letter(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with (
        running_system(
            tmp_path,
            postgres_server,
            names=AT_HOME,
            roster_dir=planned(tmp_path, EITHER_OR),
            request_patience_s=0,
        ) as running,
        downstream(running, "finance") as finance,
        downstream(running, "travel") as travel,
    ):
        fanout = FanoutSystem(running=running, finance=finance, travel=travel)
        for butler in (finance, travel):
            butler.will(error("internal_error", "out of order"))
        stored = await fanout.says("finance", "travel")
        request_id = str(stored["request_id"])
        assert stored["lifecycle_state"] == "errored"
        first = {letter["target_butler"]: letter["id"] for letter in await letters(running, request_id)}
        assert first.keys() == {"finance", "travel"}

        travel.will(ok("there you are"))
        assert (await act(running, f"dead-letters/{first['finance']}/replay")).status_code == 200
        again = await in_state(running, request_id, "parsed")
        outcomes = {outcome["target_butler"]: outcome["success"] for outcome in again["dispatch_outcomes"]}
        assert outcomes == {"finance": False, "travel": True}

        settled = {letter["target_butler"]: letter for letter in await letters(running, request_id)}
        assert {letter["id"] for letter in settled.values()} == set(first.values())
        assert settled["finance"]["replay_outcome"] == "parsed"
        for letter in settled.values():
            assert letter["resolution"] == "replay" and letter["resolved_at"] is not None
        refused = await act(running, f"dead-letters/{first['finance']}/replay")
        assert (refused.status_code, "settled" in refused.json()["error"]["message"]) == (409, True)
