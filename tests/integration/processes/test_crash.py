"""kill -9 with 100 messages in flight: after the next start all are terminal, and each is answered once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from butlers.daemon.demo.instance import Instance
from tests.integration.processes.command import finished, quick_telegram, slow_telegram, telegram_event, up

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

MESSAGES = 100
AT_MOST_UNCERTAIN = 5  # of those that were on the wire when the process died


async def test_five_chats(tmp_path):
    async with up(tmp_path) as instance:
        await slow_telegram(instance, 0.05, times=None)
        request_ids = await _post(instance, chats=range(6301, 6306))
        assert await _open(instance) > MESSAGES // 2
        await instance.kill()

        await instance.start()
        await quick_telegram(instance)
        await _each_answered_once(instance, request_ids, chats=range(6301, 6306))


async def test_one_chat_and_another_crash_during_recovery(tmp_path):
    async with up(tmp_path) as instance:
        await slow_telegram(instance, 0.02, times=None)
        request_ids = await _post(instance, chats=[6311])
        left = await _open(instance)
        assert left > MESSAGES // 2
        await instance.kill()

        await instance.start()

        async def recovering() -> bool:
            return await _open(instance) < left - 10

        await instance.until("recovery is under way", recovering)
        assert await _open(instance) > 0
        await instance.kill()

        await instance.start()
        await quick_telegram(instance)
        await _each_answered_once(instance, request_ids, chats=[6311])


async def _post(instance: Instance, *, chats: Sequence[int]) -> list[str]:
    """All at once; every one of them has been accepted."""
    events = [telegram_event(n, chats[n % len(chats)], f"note {n}") for n in range(MESSAGES)]
    replies = await asyncio.gather(*(instance.ingest(event) for event in events))
    assert {reply.status_code for reply in replies} == {202}
    return [reply.json()["request_id"] for reply in replies]


async def _open(instance: Instance) -> int:
    counts = await instance.counts()
    return counts.get("accepted", 0) + counts.get("progress", 0)


async def _each_answered_once(instance: Instance, request_ids: list[str], *, chats: Sequence[int]) -> None:
    traces = await finished(instance, *request_ids)
    answers = Counter([text for chat in chats for text in await instance.bot_messages(chat)])
    uncertain = 0
    for number, trace in enumerate(traces):
        assert trace["lifecycle_state"] == "parsed"
        [delivery] = [one for one in trace["deliveries"] if one["intent"] != "react"]
        count = answers.pop(f"[general] Noted: note {number}", 0)
        if delivery["status"] == "uncertain":
            uncertain += 1
            assert count <= 1
            assert delivery["attempts"][-1]["certainty"] == "uncertain"
        else:
            assert (delivery["status"], count) == ("delivered", 1)
    assert uncertain <= AT_MOST_UNCERTAIN
    assert not answers, "answers to nothing"
