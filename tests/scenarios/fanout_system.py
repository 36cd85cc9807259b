"""Switchboard with specialists of somebody else (real MCP doors that answer as a test tells them), and plans for them.

One system for all tests of a file: `from tests.scenarios.fanout_system import fanout, served`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.downstream import Downstream, downstream, ok
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_door import post, row
from tests.system import RunningSystem, running_system

SPECIALISTS = ("finance", "travel", "health", "relationship")
AT_HOME = ["switchboard", "messenger", "general"]
SAYS = {
    "finance": "I paid the electricity bill of 80 euros",
    "travel": "My flight to Lisbon leaves from the airport at ten",
    "health": "I took my blood pressure medication",
    "relationship": "My sister needs a birthday gift",
}

# Which pair of butlers a message is for decides how it is dispatched; finance and travel have no plan.
PLANS = """
[routing.tier.interactive]
attempts = 1
route_timeout_s = 0.3

[[routing.plan]]
butlers = ["finance", "health"]
mode = "ordered"
[[routing.plan.node]]
butler = "finance"
depends_on = ["health"]

[[routing.plan]]
butlers = ["travel", "health"]
mode = "conditional"
join = "wait_for_all"
abort = "continue"
[[routing.plan.node]]
butler = "travel"
depends_on = ["health"]
run_if = "success"

[[routing.plan]]
butlers = ["travel", "relationship"]
[[routing.plan.node]]
butler = "relationship"
arbitration_group = "when"
[[routing.plan.node]]
butler = "travel"
arbitration_group = "when"
arbitration_priority = 10

[[routing.plan]]
butlers = ["health", "relationship"]
[[routing.plan.node]]
butler = "relationship"
required = false
"""


def planned(tmp_path: Path, more: str = PLANS) -> Path:
    roster = changed_roster(tmp_path, "switchboard")
    path = roster / "switchboard" / "butler.toml"
    path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    return roster


class FanoutSystem(SimpleNamespace):
    running: RunningSystem
    finance: Downstream
    travel: Downstream
    health: Downstream
    relationship: Downstream

    async def says(self, *butlers: str, tier: str = "default") -> dict[str, Any]:
        """A message with a part for each of these; its record at the end."""
        reply = await self.hand_in(*butlers, tier=tier)
        return await self.ended(reply)

    async def hand_in(self, *butlers: str, tier: str = "default") -> str:
        text = ". ".join(SAYS[butler] for butler in butlers) + "."
        document = self.running.envelope(text) | {"control": {"policy_tier": tier, "idempotency_key": uuid4().hex}}
        response = await post(self.running, document)
        assert response.status_code == 202, response.text
        request_id: str = response.json()["request_id"]
        return request_id

    async def ended(self, request_id: str) -> dict[str, Any]:
        async def over() -> bool:
            stored = await row(self.running, "switchboard.message_inbox", request_id)
            return stored["final_state_at"] is not None

        await self.running.until(over, deadline_s=60)
        stored = dict(await row(self.running, "switchboard.message_inbox", request_id))
        targets = [segment["butler"] for segment in stored["routing_output"]["segments"]]
        stored["outcomes"] = {outcome["target_butler"]: outcome for outcome in stored["dispatch_outcomes"]}
        assert set(targets) == stored["outcomes"].keys()
        return stored


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[FanoutSystem]:
    tmp_path = tmp_path_factory.mktemp("fanout")
    async with (
        running_system(
            tmp_path, postgres_server, names=AT_HOME, roster_dir=planned(tmp_path), request_patience_s=0
        ) as running,
        AsyncExitStack() as stack,
    ):
        butlers = {name: await stack.enter_async_context(downstream(running, name)) for name in SPECIALISTS}
        yield FanoutSystem(running=running, **butlers)


@pytest_asyncio.fixture(loop_scope="module")
async def fanout(served: FanoutSystem) -> FanoutSystem:
    for name in SPECIALISTS:
        getattr(served, name).will(ok(f"{name} did it"))
    return served
