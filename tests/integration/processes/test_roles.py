"""`butlers run ROLE`: a system of several processes, which speak MCP with each other."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from butlers.clock import SystemClock
from butlers.daemon.demo.instance import Instance
from tests.integration.processes.command import QUICK, answer, kept_running, nothing_left, telegram_event

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = 6501


@pytest.fixture
def where(tmp_path: Path) -> Instance:
    """Addresses for a system that nobody has started."""
    return Instance(tmp_path, clock=SystemClock())


async def _answers(where: Instance, count: int) -> list[str]:
    async def enough() -> list[str]:
        answers = await where.bot_messages(CHAT)
        return answers if len(answers) >= count else []

    answers: list[str] = await where.until(f"{count} answers", enough)
    return answers


async def _delivery(where: Instance, request_id: str, status: str) -> dict[str, Any]:
    """The one delivery of a request, as soon as it has that status."""

    async def recorded() -> dict[str, Any]:
        deliveries = (await where.request(request_id))["deliveries"]
        said = (delivery for delivery in deliveries if delivery["intent"] != "react")
        return next((delivery for delivery in said if delivery["status"] == status), {})

    delivery: dict[str, Any] = await where.until(f"the delivery is {status}", recorded)
    return delivery


async def test_several_processes_answer_together_and_one_of_them_dies(where: Instance):
    settings = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
    common = ("--data-dir", where.data_dir, "--port-offset", where.offset, "--set", "simulators=on", *settings)
    with ExitStack() as stack:
        stack.enter_context(kept_running("simulate", "telegram", *common, says='"ready": true'))
        for role in ("switchboard", "general"):
            stack.enter_context(kept_running("run", role, *common, says=" is up"))
        with kept_running("run", "messenger", *common, says=" is up") as messenger:
            await where.say(CHAT, "first")
            assert await _answers(where, 1) == ["[general] Noted: first"]
            doors = answer("status", "--data-dir", where.data_dir)["doors"]
            roles = ("switchboard", "courier", "general", "messenger")
            assert {name: door["status"] for name, door in doors.items()} == dict.fromkeys(roles, "ok")

            # Telegram asks for patience, so that the answer is in Messenger's hands when Messenger dies.
            fault = {"method": "sendMessage", "kind": "too_many_requests", "retry_after": 5}
            await where.post("telegram_simulator", "/control/faults", fault)
            request_id = (await where.ingest(telegram_event(801, CHAT, "second"))).json()["request_id"]
            await _delivery(where, request_id, "awaiting_retry")
            messenger.kill()
            messenger.wait(10)
        assert "messenger" not in answer("status", "--data-dir", where.data_dir)["doors"]

        with kept_running("run", "messenger", *common, says=" is up") as messenger:
            delivery = await _delivery(where, request_id, "delivered")
            assert [attempt["certainty"] for attempt in delivery["attempts"]] == ["not_sent", "sent"]
            assert (await _answers(where, 2)).count("[general] Noted: second") == 1
            await where.say(CHAT, "last")
            assert (await _answers(where, 3))[1:] == ["[general] Noted: second", "[general] Noted: last"]
    await where.close()
    assert messenger.returncode == 0
    assert not list(where.data_dir.glob("run*.json"))
    await nothing_left(where.data_dir)
