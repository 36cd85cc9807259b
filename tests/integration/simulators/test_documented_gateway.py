"""The calls that docs/simulators.md shows for the webhook gateway are answered as it says."""

from __future__ import annotations

import re

import httpx2

from butlers.channels.webhook.simulator import serve_webhook
from butlers.clock import SystemClock
from butlers.simulators import simulator_ports
from tests.integration.simulators.test_documented_examples import PAGE, called


async def test_every_documented_call_is_answered_as_the_page_says() -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # Nobody listens at the discard port: that nobody takes the receipt is an answer, too.
    calls = [line.replace("127.0.0.1:40104", "127.0.0.1:9").rpartition("  # ") for line in block.splitlines()]
    async with (
        serve_webhook("127.0.0.1", 0, clock=SystemClock()) as simulator,
        httpx2.AsyncClient(timeout=10, trust_env=False) as client,
    ):
        ports = {str(simulator_ports()["webhook_simulator"]): simulator.port}
        answers = [await called(client, call, ports) for call, _, _ in calls]
    assert [answer.status_code for answer in answers] == [int(status) for _, _, status in calls]
    assert answers[1].json() == {"status": None, "answer": "ConnectError"}
