"""A system in a process of its own whose butlers die over some texts: `python -m ... SETTINGS`.

poison     ends the process
patient    takes a while, so that it is in hand when another one ends the process
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from butlers.butler.specialist import Specialist
from butlers.clock import SystemClock
from butlers.contracts.route import RouteEnvelope
from butlers.daemon.settings import Settings, shipped_roster
from butlers.daemon.simulation import simulated_environment
from butlers.daemon.system import System
from butlers.ids import Uuid7Factory
from butlers.roster import load_roster
from tests.system import EVERY_PROVIDER

NAMES = ["switchboard", "general", "messenger"]
DEATH = 9
handle = Specialist.handle


async def deadly(self: Specialist, envelope: RouteEnvelope) -> dict[str, Any]:
    if "poison" in envelope.input.prompt:
        os._exit(DEATH)
    if "patient" in envelope.input.prompt:
        await asyncio.sleep(1.0)
    return await handle(self, envelope)


async def serve(settings: Settings) -> None:
    clock, roster = SystemClock(), load_roster(shipped_roster())
    system = System(
        settings=settings,
        roster=roster,
        names=NAMES,
        environment=simulated_environment(EVERY_PROVIDER, roster, {}),
        clock=clock,
        new_id=Uuid7Factory(clock),
    )
    await system.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    Specialist.handle = deadly  # type: ignore[method-assign]
    asyncio.run(serve(Settings.model_validate_json(sys.argv[1])))
