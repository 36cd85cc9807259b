"""Nothing that was answered is forgotten: the journal, torn lines, and kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from butlers.channels.telegram.simulator import DEFAULT_TOKEN
from butlers.channels.telegram.simulator.control import migrate, set_blocked
from butlers.channels.telegram.simulator.model import BotFault
from butlers.channels.telegram.simulator.state import SimulatedTelegram
from butlers.clock import ManualClock
from butlers.simulators.journal import Journal
from tests.integration.simulators.telegram_support import DEADLINE, TOKEN, calls, says


@contextlib.contextmanager
def journal_at(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    try:
        yield journal
    finally:
        journal.close()


def lived_in(telegram: SimulatedTelegram) -> None:
    """A bit of everything that changes a world."""
    bot = telegram.add_bot(TOKEN, "unit_bot")
    asked = says(telegram, "hi").message
    says(telegram, "hi!", edit_of=asked.message_id)
    sent = calls(telegram, "sendMessage", chat_id=5, text="ho *ho*", parse_mode="Markdown", reply_to_message_id=1)
    calls(telegram, "editMessageText", chat_id=5, message_id=sent["message_id"], text="ha")
    calls(telegram, "setMessageReaction", chat_id=5, message_id=1, reaction=[{"type": "emoji", "emoji": "👀"}])
    gone = calls(telegram, "sendMessage", chat_id=-77, text="gone soon")
    calls(telegram, "deleteMessage", chat_id=-77, message_id=gone["message_id"])
    migrate(telegram, bot, -77, None)
    set_blocked(telegram, bot, 9, blocked=True)
    calls(telegram, "setWebhook", url="http://127.0.0.1:1/", secret_token="s", allowed_updates=["message"])
    telegram.commit({"change": "updates_dropped", "bot": bot.id, "count": 1})
    telegram.commit({"change": "settings_changed", "settings": {"strict_chats": True}})
    for number, times in enumerate((1, 2, None), start=1):
        fault = {"fault_id": number, "method": "getMe", "kind": "delay", "times": times}
        telegram.commit({"change": "fault_added", "fault": fault})
    telegram.faults.take(of_get_me)


def of_get_me(fault: BotFault) -> bool:
    return fault.hits("getMe", None)


def test_a_replayed_state_equals_the_one_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "telegram.jsonl"
    with journal_at(path) as journal:
        lived_in(first := SimulatedTelegram(clock=ManualClock(), journal=journal))
    with journal_at(path) as journal:
        second = SimulatedTelegram(clock=ManualClock(), journal=journal)
    assert second.state == first.state
    assert [fault.times for fault in second.faults.waiting()] == [1, None]


def test_how_many_calls_a_fault_still_lets_pass_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "telegram.jsonl"
    with journal_at(path) as journal:
        first = SimulatedTelegram(clock=ManualClock(), journal=journal)
        fault = {"fault_id": 1, "method": "getMe", "kind": "drop_after", "skip": 2}
        first.commit({"change": "fault_added", "fault": fault})
        assert first.faults.take(of_get_me) == []
    with journal_at(path) as journal:
        second = SimulatedTelegram(clock=ManualClock(), journal=journal)
        assert [len(second.faults.take(of_get_me)) for _ in range(3)] == [0, 1, 0]


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "telegram.jsonl"
    with journal_at(path) as journal:
        telegram = SimulatedTelegram(clock=ManualClock(), journal=journal)
        telegram.add_bot(TOKEN, "unit_bot")
        says(telegram, "whole")
        whole = path.read_bytes()
        says(telegram, "torn")
    complete = path.read_bytes()
    for cut in range(len(whole), len(complete), 9):
        path.write_bytes(complete[:cut])
        with journal_at(path) as journal:
            after = SimulatedTelegram(clock=ManualClock(), journal=journal)
        assert [m.text for m in after.state.bots[42].chats[5].messages.values()] == ["whole"]
        assert path.read_bytes() == whole


def test_writing_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "telegram.jsonl"
    path.write_bytes(b'{"changes":[]}\n{"chan')
    for text in ("one", "two"):
        with journal_at(path) as journal:
            telegram = SimulatedTelegram(clock=ManualClock(), journal=journal)
            telegram.add_bot(TOKEN, "unit_bot")
            says(telegram, text)
    assert [m.text for m in telegram.state.bots[42].chats[5].messages.values()] == ["one", "two"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    process: asyncio.subprocess.Process
    client: httpx2.AsyncClient

    async def bot(self, method: str, **params: Any) -> Any:
        reply = await self.client.post(f"/bot{DEFAULT_TOKEN}/{method}", json=params)
        return reply.json()["result"]

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def own_process(folder: Path) -> AsyncIterator[Running]:
    command = (str(Path(__file__).with_name("both_simulators.py")), str(folder), "asyncio")
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(3 * DEADLINE):
            port = json.loads(await process.stdout.readline())["http"]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE, trust_env=False) as client:
            yield Running(process=process, client=client)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def test_kill_9_forgets_nothing_that_was_answered(tmp_path: Path) -> None:
    async with own_process(tmp_path) as running:
        for n in range(3):
            body = {"chat_id": 5, "from": {"id": 5}, "text": f"in {n}"}
            assert (await running.client.post("/control/messages", json=body)).status_code == 200
        first, *_ = await running.bot("getUpdates")
        await running.bot("getUpdates", offset=first["update_id"] + 1)
        answered: list[str] = []

        async def flood() -> None:
            with contextlib.suppress(httpx2.HTTPError):
                for n in range(100_000):
                    await running.bot("sendMessage", chat_id=5, text=f"out {n}")
                    answered.append(f"out {n}")
                    if n == 50:
                        reached.set()

        reached = asyncio.Event()
        flooding = asyncio.create_task(flood())
        async with asyncio.timeout(DEADLINE):
            await reached.wait()
        await running.kill()
        await flooding
    async with own_process(tmp_path) as running:
        transcript = (await running.client.get("/control/chats/5/transcript")).json()["messages"]
        kept = [line["text"] for line in transcript if line["from"] == "bot"]
        # One more may have been accepted whose answer the kill cut off.
        assert kept[: len(answered)] == answered
        assert len(kept) - len(answered) in (0, 1)
        pending = await running.bot("getUpdates")
        assert [update["message"]["text"] for update in pending] == ["in 1", "in 2"]
        following = await running.bot("sendMessage", chat_id=5, text="on we go")
        assert following["message_id"] == transcript[-1]["message_id"] + 1
