"""Two Messenger processes on one database: whatever is handed to both, and however often, is sent once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from benchmarks.chaos.roster import lifted_roster

from butlers.butler.identity import TokenFile
from butlers.clock import SystemClock
from butlers.daemon.demo.instance import Instance
from butlers.daemon.places import Places
from butlers.operations.operation import Role
from butlers.storage.database import Database
from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.processes.command import LIFTED, QUICK, kept_running
from tests.ports import free_port
from tests.scenarios.messenger_door import MCP_HEADERS, wish

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS, TIMES = 500, 10
CHATS = range(7000, 7050)
AT_ONE_TIME = 32


@asynccontextmanager
async def two_messengers(tmp_path: Path) -> AsyncIterator[tuple[Instance, list[str]]]:
    """Both run on one data directory and so on one database; their doors, and the simulators' addresses."""
    roster = lifted_roster(tmp_path / "roster", LIFTED)
    where = Instance(tmp_path / "data", clock=SystemClock())
    settings = [
        part for key, value in (QUICK | {"roster": str(roster)}).items() for part in ("--set", f"{key}={value}")
    ]
    common = ("--data-dir", where.data_dir, "--port-offset", where.offset, "--set", "simulators=on", *settings)
    second = free_port()
    try:
        with ExitStack() as stack:
            stack.enter_context(kept_running("simulate", "telegram", *common, says='"ready": true'))
            stack.enter_context(kept_running("run", "messenger", *common, says=" is up"))
            port = ("--port", f"messenger={second}")
            stack.enter_context(kept_running("run", "messenger", *common, *port, says=" is up"))
            yield where, [where.url("messenger"), f"http://127.0.0.1:{second}"]
    finally:
        await where.close()


def _http() -> httpx2.AsyncClient:
    kept = httpx2.Limits(max_connections=AT_ONE_TIME, max_keepalive_connections=AT_ONE_TIME)
    return httpx2.AsyncClient(timeout=60, trust_env=False, limits=kept)


class Caller:
    """Switchboard, as far as Messenger can tell."""

    def __init__(self, http: httpx2.AsyncClient, token: str) -> None:
        self._http = http
        self._headers = MCP_HEADERS | {"Authorization": f"Bearer {token}"}
        self._room = asyncio.Semaphore(AT_ONE_TIME)

    async def hand_in(self, door: str, notify: dict[str, Any]) -> dict[str, Any]:
        call = {"name": "route.execute", "arguments": _route(notify)}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        async with self._room:
            response = await self._http.post(f"{door}/mcp", json=body, headers=self._headers)
        answer = response.json()["result"]["structuredContent"]
        delivery: dict[str, Any] = answer["result"]["notify_response"]["delivery"]
        return delivery


def _route(notify: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": "route.v1",
        "request_context": {
            "request_id": "019b76da-a800-7000-8000-000000000001",
            "received_at": "2026-01-01T00:00:00Z",
            "source_channel": "mcp",
            "source_endpoint_identity": "switchboard",
            "source_sender_identity": notify["origin_butler"],
        },
        "input": {
            "prompt": "Execute outbound delivery request through Messenger.",
            "context": {"notify_request": notify, "authenticated_origin": notify["origin_butler"]},
        },
        "subrequest": {"subrequest_id": str(uuid4()), "segment_id": f"notify-{uuid4()}"},
        "target": {"butler": "messenger"},
    }


@pytest.mark.scenario("M1-032")
@pytest.mark.timeout(150)
async def test_five_hundred_keys_ten_times_to_both_are_five_hundred_sends(tmp_path: Path) -> None:
    wishes = [wish(f"key {n}", idempotency_key=f"key-{n}", recipient=str(CHATS[n % len(CHATS)])) for n in range(KEYS)]
    async with two_messengers(tmp_path) as (where, doors), _http() as http:
        token = TokenFile(Places(where.data_dir).tokens, SystemClock()).ensure("switchboard", Role.BUTLER).secret
        caller = Caller(http, token)
        # Each key five times at each door, in any order: repeats race with the original and with each other.
        submissions = [(doors[turn % 2], notify) for notify in wishes for turn in range(TIMES)]
        random.Random(5).shuffle(submissions)
        deliveries = await asyncio.gather(*(caller.hand_in(door, notify) for door, notify in submissions))
        assert len(deliveries) == KEYS * TIMES
        assert Counter(delivery["status"] for delivery in deliveries) == {"delivered": KEYS * TIMES}
        assert len({delivery["delivery_id"] for delivery in deliveries}) == KEYS
        assert [delivery["deduplicated"] for delivery in deliveries].count(False) == KEYS

        received = Counter([text for chat in CHATS for text in await where.bot_messages(chat)])
        assert received == {f"[health] key {n}": 1 for n in range(KEYS)}
        made = await _recorded(where.data_dir)
        assert made["rows"] == made["delivered"] == made["attempts"] == made["receipts"] == KEYS
        assert made["workers"] == 2, "both took part"


async def _recorded(data_dir: Path) -> dict[str, int]:
    server = EmbeddedPostgres(data_dir, durable=False)
    await asyncio.to_thread(server.start)
    try:
        async with await Database.connect(server.uri("butlers"), max_size=1) as database:
            row = await database.fetchrow(
                "select (select count(*) from messenger.delivery_requests) as rows,"
                " (select count(*) from messenger.delivery_requests where status = 'delivered') as delivered,"
                " (select count(*) from messenger.delivery_attempts where certainty = 'sent') as attempts,"
                " (select count(*) from messenger.delivery_receipts) as receipts,"
                " (select count(distinct worker) from messenger.delivery_attempts) as workers"
            )
            return dict(row or {})
    finally:
        await asyncio.to_thread(server.stop)
