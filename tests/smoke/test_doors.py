"""Each door of one system once: HTTP, MCP, Telegram and mail take a message in, chat and mailbox get the answer, the
command line shows it. `scripts/test --quick` runs this beside the unit tests."""

from __future__ import annotations

import json

import pytest

from tests.scenarios.messenger_door import call, mails
from tests.scenarios.shared_system import running, system
from tests.scenarios.test_messenger_cli import cli
from tests.scenarios.test_messenger_mailbox import arrives
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def test_http_takes_a_message_and_shows_its_end(running: RunningSystem) -> None:
    reply = await running.ingest("I paid the electricity bill")
    request = await running.finished(reply["request_id"])
    assert request["lifecycle_state"] == "parsed"
    assert [dispatch["target_butler"] for dispatch in request["routing"]["dispatches"]] == ["finance"]


async def test_mcp_takes_a_message_once(running: RunningSystem) -> None:
    envelope = running.own_envelope("I slept badly", "operator")
    async with running.mcp("switchboard") as client:
        first, second = [await client.call_tool("ingest", envelope) for _ in range(2)]
    assert first.structured_content is not None and second.structured_content is not None
    assert first.structured_content["request_id"] == second.structured_content["request_id"]
    assert second.structured_content["duplicate"]
    await running.finished(first.structured_content["request_id"])


async def test_a_chat_is_answered(running: RunningSystem) -> None:
    await running.says("I paid the baker 12 euros")
    (answer, *more) = await running.until(running.answers)
    assert answer and not more


async def test_a_mail_is_answered(running: RunningSystem) -> None:
    await arrives(running, "I paid the electricity bill", message_id="<smoke@far.example>")
    assert (await call(running, "messenger", "email_check_and_route_inbox", {}))["routed"] == 1
    (answer,) = await running.until(lambda: mails(running))
    assert answer["in_reply_to"] == "<smoke@far.example>"


async def test_the_command_line_asks_the_running_system(running: RunningSystem) -> None:
    reply = await running.ingest("I paid the rent")
    await running.finished(reply["request_id"])
    traced = await cli(running, "trace", reply["request_id"], "--json")
    assert json.loads(traced.stdout)["request_id"] == reply["request_id"]
    refused = await cli(running, "trace", "no-such-id", code=2)
    assert "no-such-id" not in refused.stdout
