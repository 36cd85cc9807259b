"""Butlers in processes of their own speak MCP over HTTP: a message goes in and out, and an outage is survived."""

from __future__ import annotations

import asyncio
from pathlib import Path

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, beside, call, deliver, fault, rows, sends, wish
from tests.system import running_system

OTHERS = ["switchboard", "general", "relationship", "health", "finance", "travel"]


async def test_a_message_goes_in_and_out_between_processes(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with (
        running_system(tmp_path, postgres_server, names=["switchboard"], heartbeat_s=0.2) as running,
        beside(running, ["health"]) as health,
        beside(running, ["messenger"]) as messenger,
    ):
        boxes = [set(s.butler(name).process.tool_boxes) for s, name in ((health, "health"), (messenger, "messenger"))]
        assert boxes == [{"health"}, {"messenger"}]
        listed = (await call(running, "switchboard", "list_butlers", {}))["butlers"]
        assert {butler["name"] for butler in listed} == {"switchboard", "health", "messenger"}

        await running.says("I weigh 80 kg")
        (answer,) = await running.until(running.answers)
        assert answer.startswith("[health]")
        trace = await running.finished(str((await rows(running))[0]["request_id"]))
        assert trace["lifecycle_state"] == "parsed"
        (row,) = await rows(running)
        assert (row["origin_butler"], row["intent"], row["status"]) == ("health", "reply", "delivered")

        # A tool of one process, called in another, with refusals that keep their class.
        assert (await call(running, "health", "notify", {"message": "hi"}))["status"] == "ok"
        refused = await call(running, "health", "notify", {"message": "hi", "channel": "sms"})
        assert (refused["status"], refused["error"]["class"]) == ("error", "validation_error")
        # Many calls share one session and do not mix up their answers.
        texts = [f"note {n}" for n in range(20)]
        replies = await asyncio.gather(*(call(running, "health", "notify", {"message": text}) for text in texts))
        assert len({reply["delivery"]["delivery_id"] for reply in replies}) == len(texts)
        assert {reply["status"] for reply in replies} == {"ok"}
        assert sorted((await running.answers())[2:]) == sorted(f"[health] {text}" for text in texts)


async def test_messenger_down_is_target_unavailable_until_it_is_started(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(
        tmp_path, postgres_server, names=OTHERS, heartbeat_s=0.2, messenger_patience_s=0
    ) as running:
        down = await call(running, "health", "notify", {"message": "anybody?", "idempotency_key": "one"})
        assert (down["status"], down["error"]["class"], down["error"]["retryable"]) == (
            "error",
            "target_unavailable",
            True,
        )
        async with beside(running, ["messenger"]):
            up = await call(running, "health", "notify", {"message": "anybody?", "idempotency_key": "one"})
            assert up["status"] == "ok"
            assert await running.answers() == ["[health] anybody?"]
        # Down again: the open session of the caller breaks, and says so in the same words.
        down = await call(running, "health", "notify", {"message": "still?", "idempotency_key": "two"})
        assert (down["error"]["class"], down["error"]["retryable"]) == ("target_unavailable", True)
        request_id = (await running.ingest("I weigh 80 kg"))["request_id"]
        async with beside(running, ["messenger"]):
            for key, text in (("one", "anybody?"), ("two", "still?")):
                again = await call(running, "health", "notify", {"message": text, "idempotency_key": key})
                assert again["status"] == "ok"
            trace = await running.finished(request_id)
            assert trace["lifecycle_state"] == "parsed", trace
            answers = await running.answers()
            assert [text for text in answers if "?" in text] == ["[health] anybody?", "[health] still?"]
            assert len(answers) == 3


async def test_a_messenger_that_stops_finishes_what_it_is_sending(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=OTHERS) as running:
        async with beside(running, ["messenger"]) as messenger:
            await fault(running, "delay", seconds=0.7)
            sending = asyncio.create_task(deliver(messenger, wish("on its way")))

            async def under_way() -> bool:
                return bool(await attempts(running))

            await running.until(under_way)
        assert (await sending)["delivery"]["status"] == "delivered"
        (attempt,) = await attempts(running)
        assert attempt["certainty"] == "sent"
        assert await sends(running) == 1
