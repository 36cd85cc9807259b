"""What an operator sets of the courier in a system: its own file, a store on another machine, or nothing of it."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from butlers.errors import ConfigurationError
from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.courier.gateway import envelope
from tests.integration.courier.remote_butler import attached, operator, registered
from tests.redis_server import RedisServer
from tests.system import running_system

REQUEST = "SELECT request_id FROM switchboard.message_inbox WHERE normalized_text LIKE $1"
TRIGGER = """
triggers: [{id: copy, when: {type: note}, do: [{action: route, to: audit/notes}]}]
streams: {perStreamCaps: {"events/*": {leaseMs: 5000}, "agents/*": {maxDepth: 7}}}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "courier.yaml"
    path.write_text(text)
    return path


async def test_the_file_of_the_courier_is_honoured(tmp_path: Path, postgres_server: EmbeddedPostgres):
    async with running_system(tmp_path, postgres_server, courier_config=written(tmp_path, TRIGGER)) as running:
        async with operator(running) as client:
            for number in range(8):
                note = envelope(f"n{number}", to="agents/someone/inbox")
                answer = await client.post("/v1/enqueue", {"messages": [{"envelope": note}]})
            assert answer["results"][0]["error"]["code"] == "StreamFull"
            assert (await client.get("/v1/stats", stream="audit/notes"))["depth"] == 7
        assert (tmp_path / "data" / "courier" / "journal.jsonl").stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("auth: {tokens: [{token: some-token, scopes: ['streams:*:enqueue']}]}", "auth.tokens"),
        ("gateway: {port: 9999}", "gateway.port"),
        ("gateway: {host: 0.0.0.0}", "gateway.host"),
        ("streams: {maxDept: 1}", "streams.maxDept"),
    ],
)
async def test_what_the_file_may_not_say_stops_the_start(
    tmp_path: Path, postgres_server: EmbeddedPostgres, text: str, key: str
):
    path = written(tmp_path, text)
    async with running_system(tmp_path, postgres_server, courier_config=path, start=False) as running:
        with pytest.raises(ConfigurationError) as refused:
            await running.start()
    assert refused.value.key == key


async def test_without_the_courier_everything_else_works(tmp_path: Path, postgres_server: EmbeddedPostgres):
    async with running_system(tmp_path, postgres_server, courier="off") as running:
        await running.says("I paid the water bill")
        assert await running.until(running.answers) == ["[finance] Noted: I paid the water bill"]
        with pytest.raises(httpx2.ConnectError):
            await running.http.get(running.url("courier", "/health"))


async def test_a_remote_butler_works_on_after_redis_was_away(tmp_path: Path, postgres_server: EmbeddedPostgres):
    """The streams lie in Redis: its outage ends no reader, and what was registered is heard again."""
    with RedisServer(durable=True) as server:
        config = written(tmp_path, f"store: {server.url}")
        async with running_system(tmp_path, postgres_server, courier_config=config, heartbeat_s=1) as running:
            async with attached(running, "brewery") as remote:
                await remote.register("malt", "barley")
                server.stop()
                assert (await running.http.get(running.url("courier", "/readyz"))).status_code == 503
                server.start()
            async with attached(running, "brewery") as remote:
                await remote.register("hops", "barley")
                await running.says("Weigh the hops and the barley")
                await remote.answer(await remote.next("route.v1"))
                (request,) = await running.database.fetch(REQUEST, "Weigh the hops%")
                ended = await running.finished(str(request["request_id"]))
            assert ended["lifecycle_state"] == "parsed"
            assert (await registered(running, "brewery"))["triggers"] == ["hops", "barley"]
