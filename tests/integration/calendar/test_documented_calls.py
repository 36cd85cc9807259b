"""The calls that docs/simulators.md shows for the calendar are answered as it says."""

from __future__ import annotations

import re

import httpx2

from butlers.clock import SystemClock
from butlers.simulators.calendar import DEFAULT_PORT, serve_calendar
from tests.integration.simulators.test_documented_examples import PAGE, called


async def test_every_documented_call_is_answered_as_the_page_says() -> None:
    (block,) = re.findall(r"```shell\n(.*?)```", PAGE.read_text(), re.DOTALL)
    calls = [line.rpartition("  # ") for line in block.splitlines()]
    async with (
        serve_calendar(port=0, clock=SystemClock()) as simulator,
        httpx2.AsyncClient(timeout=10, trust_env=False) as client,
    ):
        ports = {str(DEFAULT_PORT): simulator.port}
        answers = [(await called(client, call, ports)).status_code for call, _, _ in calls]
    assert answers == [int(status) for _, _, status in calls]
    assert len(calls) == 7
