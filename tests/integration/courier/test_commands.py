"""`butlers courier`: a gateway in a process of its own, used from the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from butlers.courier.client import CourierClient
from tests.integration.courier.gateway import DEADLINE_S, INBOX
from tests.integration.courier.process import BUTLERS, served


async def command(*words: str, given: str = "") -> tuple[int, str, str]:
    """Run `butlers courier WORDS`: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *BUTLERS,
        "courier",
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        output, errors = await process.communicate(given.encode())
    return process.returncode or 0, output.decode(), errors.decode()


async def answer(*words: str, given: str = "") -> Any:
    code, output, errors = await command(*words, "--json", given=given)
    assert code == 0, errors
    return json.loads(output)


async def test_messages_are_published_taken_counted_and_replayed():
    async with served() as (url, process):
        sent = await answer("pub", INBOX, '{"n": 1}', "--id", "first", "--url", url)
        assert sent == {"id": "first", "duplicate": False}
        code, output, _ = await command("pub", INBOX, "again", "--id", "first", "--url", url)
        assert (code, output) == (0, "first (known already)\n")
        code, output, _ = await command("pub", INBOX, "--type", "line", "--json", "--url", url, given="one\ntwo\n")
        assert [json.loads(line)["duplicate"] for line in output.splitlines()] == [False, False]
        code, output, errors = await command("sub", INBOX, "--count", "3", "--url", url)
        assert code == 0, errors
        got = [json.loads(line) for line in output.splitlines()]
        assert [one["payload"] for one in got] == [{"n": 1}, "one", "two"]
        stats = await answer("stats", INBOX, "--url", url)
        assert (stats["depth"], stats["counts"]["acked"]) == (0, 3)
        code, output, _ = await command("stats", "--url", url)
        assert output.startswith(f"{INBOX}: 0 queued")
        await answer("pub", INBOX, "poison", "--id", "bad", "--url", url)
        async with CourierClient(url) as client, client.subscribe(INBOX) as jen:
            await jen.grant(1)
            frame = await anext(jen.frames())
            await jen.say(nack=frame["deliver"]["id"], **{"as": "poison", "reason": "cannot be read"})
            async with asyncio.timeout(DEADLINE_S):
                while not (await client.get("/v1/dead", stream=INBOX))["messages"]:
                    await asyncio.sleep(0.01)
        code, output, _ = await command("groups", INBOX, "--url", url)
        assert output == "default: 0 queued, 0 delayed, 0 held, 1 dead\n"
        code, _, errors = await command("groups", INBOX, "--remove", "watch", "--url", url)
        assert code != 0
        assert "has no group 'watch'" in errors
        code, output, _ = await command("dead", INBOX, "--url", url)
        assert output == "bad  0 failures  cannot be read\n"
        assert await answer("dead", INBOX, "--replay", "--id", "bad", "--url", url) == {"replayed": 1}
        assert await answer("dead", INBOX, "--discard", "--url", url) == {"discarded": 0}
    assert process.returncode == 0


async def test_what_is_wrong_is_said_with_its_exit_code(tmp_path: Path):
    config = tmp_path / "courier.yaml"
    config.write_text("streams:\n  maxDepht: 3\n")
    code, _, errors = await command("serve", "--config", str(config))
    assert code == 3
    assert f"{config}:2" in errors
    code, _, errors = await command("stats", "--url", "http://127.0.0.1:9")
    assert code == 4
    assert "butlers courier serve" in errors
    async with served() as (url, _):
        code, output, _ = await command("stats", "agents/none", "--json", "--url", url)
        assert (code, json.loads(output)["error"]["class"]) == (2, "validation_error")
        code, _, errors = await command("pub", "no stream", "x", "--url", url)
        assert code == 2
        assert "name of a stream" in errors
        code, _, errors = await command("dead", INBOX, "--replay", "--discard", "--url", url)
        assert code == 2


async def test_a_running_gateway_is_measured_and_left_empty():
    async with served() as (url, _):
        found = await answer("bench", "--count", "150", "--rate", "500", "--url", url)
        assert found["messages_per_s"] > 0
        assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]
        stats = await answer("stats", found["stream"], "--url", url)
        assert (found["unacked"], stats["depth"], stats["inflight"], stats["counts"]["acked"]) == (0, 0, 0, 300)


async def test_a_measurement_that_meets_the_limit_names_the_setting():
    async with served() as (url, _):
        code, output, errors = await command("bench", "--count", "1200", "--url", url)
        assert (code, output) == (1, "")
        assert "may send 1000 messages a minute" in errors
        assert "gateway.messagesPerMinute" in errors
        [stats] = (await answer("stats", "--url", url))["streams"]
        assert stats["depth"] == stats["inflight"] == 0
        assert stats["counts"]["acked"] >= 1_000
