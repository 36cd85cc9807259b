"""SMS with nothing but this machine, as the page on channels says: `butlers simulate webhook` is the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2

from butlers.channels.webhook.simulator import RECEIPT_KEY, SIGNING_KEY
from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.processes.command import kept_running
from tests.ports import free_port
from tests.scenarios.messenger_door import call, quick
from tests.scenarios.test_messenger_cli import lines
from tests.system import running_system

NUMBER = "+15550100"
SMS = """
[modules.sms]
adapter = "webhook"

[modules.sms.options]
url = "{gateway}/messages"
status_url = "{gateway}/messages/{{delivery_id}}"
idempotent = true

[modules.sms.options_env]
signing_key = "SMS_SIGNING_KEY"
receipt_key = "SMS_RECEIPT_KEY"
"""


async def test_a_text_message_to_the_simulated_gateway(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    port = free_port()
    gateway = f"http://127.0.0.1:{port}"
    secrets = {"SMS_SIGNING_KEY": SIGNING_KEY, "SMS_RECEIPT_KEY": RECEIPT_KEY}
    arguments = ("simulate", "webhook", "--port", f"webhook_simulator={port}", "--data-dir", tmp_path / "gateway")
    with kept_running(*arguments, says='"ready": true'):
        roster = quick(tmp_path, (r"\Z", SMS.format(gateway=gateway)))
        async with running_system(tmp_path, postgres_server, roster_dir=roster, environment=secrets) as running:
            told = await lines(running, "deliveries", "dry-run", "hello", "--channel", "sms", "--to", NUMBER)
            assert told[0] == f"admitted: to {NUMBER} by sms.bot"
            given = {"message": "dinner is ready", "recipient": NUMBER}
            answer = await call(running, "messenger", "sms_send_message", given)
            assert answer["delivery"]["status"] == "delivered", answer
        received = await asyncio.to_thread(_received, gateway)
    assert NUMBER in received
    assert "dinner is ready" in received


def _received(gateway: str) -> str:
    return httpx2.get(f"{gateway}/control/messages", trust_env=False).text
