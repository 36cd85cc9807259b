"""Views by WebSocket and by server-sent events: a snapshot, every change after it, and no hole that is not told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import websockets

from tests.integration.courier.gateway import DEADLINE_S, INBOX, RunningGateway, envelope, gateway

VIEW = "/v1/live?view=latestPerAgent"


async def events(running: RunningGateway, path: str = VIEW, **headers: str) -> AsyncGenerator[tuple[str, str, Any]]:
    """Server-sent events: name, id, data."""
    async with running.http.stream("GET", path, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                found[name] = value
            elif "data" in found:
                yield found["event"], found["id"], json.loads(found["data"])
                found = {}


@pytest.mark.scenario("C2-017")
async def test_the_snapshot_by_http():
    async with gateway() as running:
        await running.send("a", "b")
        await running.send("c", to="agents/tom/inbox")
        snapshot = (await running.http.get("/v1/snapshot?view=latestPerAgent")).json()
        assert snapshot["entries"] == {INBOX: envelope("b"), "agents/tom/inbox": envelope("c", to="agents/tom/inbox")}
        assert snapshot["offset"] == 3


@pytest.mark.scenario("C2-018")
async def test_a_live_view_by_websocket_goes_on_where_its_reader_was():
    async with gateway() as running:
        await running.send("a")
        async with running.socket(VIEW) as reader:
            snapshot = (await reader.hear())["snapshot"]
            assert snapshot["entries"] == {INBOX: envelope("a")}
            await running.send("b")
            change = (await reader.hear())["change"]
            assert (change["key"], change["envelope"], change["offset"]) == (INBOX, envelope("b"), 2)
        await running.send("c", "d")
        place = f"&epoch={change['epoch']}&offset={change['offset']}"
        async with running.socket(VIEW + place) as reader:
            ids = [(await reader.hear())["change"]["envelope"]["id"] for _ in range(2)]
            assert ids == ["c", "d"]
        async with running.socket(f"{VIEW}&epoch=another-run&offset=1") as reader:
            assert (await reader.hear())["gap"]["from"] == {"epoch": "another-run", "offset": 1}
            assert (await reader.hear())["snapshot"]["offset"] == 4
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with running.socket(f"{VIEW}&epoch=x&offset=minus"):
                pass
        assert refused.value.response.status_code == 400


async def test_server_sent_events_resume_by_their_last_id():
    async with gateway() as running:
        await running.send("a")
        async with asyncio.timeout(DEADLINE_S):
            stream = events(running)
            name, _, data = await anext(stream)
            assert (name, data["entries"]) == ("snapshot", {INBOX: envelope("a")})
            await running.send("b")
            name, place, data = await anext(stream)
            assert (name, data["envelope"]["id"]) == ("change", "b")
            await stream.aclose()
            await running.send("c")
            resumed = events(running, **{"last-event-id": place})
            name, _, data = await anext(resumed)
            assert (name, data["envelope"]["id"]) == ("change", "c")
            await resumed.aclose()
        await running.until(lambda: not running.courier.views["latestPerAgent"].followers)
