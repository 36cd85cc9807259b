"""Webhooks of processes that live apart, and of one that is killed: every event is told at least once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from butlers.clock import SystemClock
from butlers.daemon.demo.instance import Instance
from butlers.webhooks.worker import SLOTS
from tests.integration.processes.command import QUICK, answer, kept_running, telegram_event, up
from tests.integration.webhooks.receiver import receiver, silence, status

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

ALLOWED: dict[str, Any] = {"webhook_private_networks": "allow", "webhook_retry_s": "1,1,1,1,1,1,1,1,1"}
MESSAGES = 20


async def command(data_dir: Path, *words: object) -> Any:
    return await asyncio.to_thread(answer, "webhooks", *words, "--data-dir", data_dir)


async def test_kill_9_while_webhooks_are_on_the_wire_loses_none(tmp_path):
    async with receiver() as hooks, up(tmp_path, **ALLOWED) as instance:
        hooks.usual = silence(asyncio.Event())  # for ever
        created = await command(tmp_path, "create", hooks.url, "--event", "request.parsed")
        replies = await asyncio.gather(
            *(instance.ingest(telegram_event(n, 6600 + n, f"note {n}")) for n in range(MESSAGES))
        )
        accepted = {reply.json()["request_id"] for reply in replies}
        on_the_wire = await hooks.count(SLOTS)
        await instance.kill()

        hooks.usual = status(204)
        await instance.start()

        def told() -> set[str]:
            return {one.event["data"]["request_id"] for one in hooks.received}

        async def all_delivered() -> bool:
            shown = await command(tmp_path, "show", created["endpoint"]["id"])
            return bool(shown["deliveries"] == {"delivered": MESSAGES})

        await instance.until("every webhook is delivered", all_delivered, timeout_s=90, pause_s=0.5)
        assert told() == accepted
        requests_of = defaultdict(set)
        for one in hooks.received:
            requests_of[one.id].add(one.event["data"]["request_id"])
        assert len(requests_of) == MESSAGES  # one id for each event, in every attempt
        assert all(len(requests) == 1 for requests in requests_of.values())
        again = [one.id for one in hooks.received[len(on_the_wire) :]]
        assert {one.id for one in on_the_wire} <= set(again)
        assert all(one.is_signed_with(created["secret"]) for one in hooks.received)


async def test_the_deliveries_of_a_messenger_in_another_process_are_told(tmp_path):
    where = Instance(tmp_path, clock=SystemClock())
    settings = [part for key, value in (QUICK | ALLOWED).items() for part in ("--set", f"{key}={value}")]
    common = ("--data-dir", tmp_path, "--port-offset", where.offset, "--set", "simulators=on", *settings)
    try:
        async with receiver() as hooks:
            with ExitStack() as stack:
                stack.enter_context(kept_running("simulate", "telegram", *common, says='"ready": true'))
                for role in ("switchboard", "general", "messenger"):
                    await asyncio.to_thread(stack.enter_context, kept_running("run", role, *common, says=" is up"))
                created = await command(tmp_path, "create", hooks.url)
                await where.say(6701, "first")
                delivered = await hooks.of_type("delivery.delivered")
                parsed = await hooks.of_type("request.parsed")
                assert delivered.event["data"]["request_id"] == parsed.event["data"]["request_id"]
                assert delivered.is_signed_with(created["secret"])
                assert parsed.is_signed_with(created["secret"])
    finally:
        await where.close()
