"""ctrl-C, TERM, a terminal that closes: what is in hand is finished or kept for later, and nobody is left behind."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys

import pytest

from butlers.clock import SystemClock
from butlers.daemon.demo.instance import Instance, clean_environment
from tests.integration.processes.command import (
    finished,
    nothing_left,
    slow_telegram,
    telegram_event,
    until_on_the_wire,
    up,
)
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = 6201


async def _ask(instance: Instance, update_id: int, text: str) -> str:
    reply = (await instance.ingest(telegram_event(update_id, CHAT, text))).json()
    request_id: str = reply["request_id"]
    return request_id


async def test_a_message_in_flight_at_ctrl_c_is_answered_once(tmp_path):
    async with up(tmp_path) as instance:
        await slow_telegram(instance, 1.0, times=1)
        request_id = await _ask(instance, 1, "on its way")
        await until_on_the_wire(instance)
        assert await instance.stop() == 0
        assert not (tmp_path / "run.json").exists()
        await nothing_left(tmp_path)

        await instance.start()
        [trace] = await finished(instance, request_id)
        assert trace["lifecycle_state"] == "parsed"
        assert await instance.bot_messages(CHAT) == ["[general] Noted: on its way"]

        os.kill(instance.pid, signal.SIGTERM)  # the second life ends in the other polite way
        assert await instance.ended() == 0
        assert not (tmp_path / "run.json").exists()
        await nothing_left(tmp_path)


async def test_a_terminal_that_closes_drains_however_often_it_says_so(tmp_path):
    async with up(tmp_path) as instance:
        await slow_telegram(instance, 1.0, times=1)
        request_id = await _ask(instance, 1, "on its way")
        await until_on_the_wire(instance)
        os.kill(instance.pid, signal.SIGHUP)
        os.kill(instance.pid, signal.SIGHUP)
        assert await instance.ended() == 0
        await nothing_left(tmp_path)
        await instance.start()
        [trace] = await finished(instance, request_id)
        assert [one["status"] for one in trace["deliveries"] if one["intent"] != "react"] == ["delivered"]
        assert await instance.bot_messages(CHAT) == ["[general] Noted: on its way"]


async def test_what_cannot_be_said_on_a_closed_terminal_keeps_nobody_from_stopping(tmp_path):
    """A real terminal: closing it hangs up on the process, and what it still writes fails."""
    ours, theirs = pty.openpty()
    command = (sys.executable, "-m", "butlers.daemon.cli", "run", "general", "--data-dir", str(tmp_path))
    process = await asyncio.create_subprocess_exec(
        *(*command, "--port", f"general={free_port()}", "--set", "database_durable=false"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean_environment(),
        preexec_fn=lambda: os.login_tty(theirs),
    )
    os.close(theirs)
    said = b""
    while b"general is up" not in said:
        said += await asyncio.to_thread(os.read, ours, 1024)
    os.close(ours)
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    await nothing_left(tmp_path)


async def test_the_second_ctrl_c_stops_at_once(tmp_path):
    clock = SystemClock()
    async with up(tmp_path) as instance:
        await slow_telegram(instance, 60.0, times=1)
        request_id = await _ask(instance, 1, "stuck")
        await until_on_the_wire(instance)
        os.kill(instance.pid, signal.SIGINT)
        async with asyncio.timeout(10):
            while (tmp_path / "run.json").exists():  # gone: the system is draining
                await asyncio.sleep(0.01)
        began = clock.monotonic()
        assert await instance.stop() == 130
        assert clock.monotonic() - began < 2

        # The bytes had left and no answer came: said so, and not sent again.
        await instance.start()
        [trace] = await finished(instance, request_id)
        [delivery] = [one for one in trace["deliveries"] if one["intent"] != "react"]
        assert delivery["status"] == "uncertain"
        assert trace["final_state_at"]
        assert len(await instance.bot_messages(CHAT)) <= 1
