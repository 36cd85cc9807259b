"""A butler that stands still, and messages by the dozen: what the tests of admission have in common."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_door import post
from tests.system import RunningSystem

OPEN = "lifecycle_state in ('accepted', 'progress')"
_SOURCES = {
    "api": {"channel": "api", "provider": "internal", "endpoint_identity": "tests"},
    "mcp": {"channel": "mcp", "provider": "internal", "endpoint_identity": "tests"},
    "email": {"channel": "email", "provider": "imap", "endpoint_identity": "butler@butlers.example"},
    "telegram": {"channel": "telegram", "provider": "telegram", "endpoint_identity": "another_bot"},
}


def crowded(tmp_path: Path, *, admission: str, buffer: str = "") -> Path:
    """The roster with a waiting room of another size."""
    changes = [(r"^\[buffer\]\n", f"[admission]\n{admission}\n\n[buffer]\n")]
    changes += [(rf"^{line.split(' = ')[0]} = .*$", line) for line in buffer.splitlines()]
    return changed_roster(tmp_path, "switchboard", *changes)


@asynccontextmanager
async def stalled(running: RunningSystem, butler: str = "general") -> AsyncIterator[None]:
    """While it lasts, a butler takes nothing in: somebody holds its table."""
    async with running.database.transaction() as connection:
        await connection.execute(f"LOCK TABLE {butler}.route_inbox IN ACCESS EXCLUSIVE MODE")
        yield


def message(
    running: RunningSystem, text: str, *, channel: str = "api", tier: str = "default", butler: str = "general"
) -> dict[str, Any]:
    control = {"policy_tier": tier, "pinned_target": butler, "idempotency_key": uuid4().hex}
    sender = {"identity": "owner@butlers.example" if channel == "email" else "tester"}
    return running.envelope(text) | {"source": _SOURCES[channel], "control": control, "sender": sender}


async def hand_in(running: RunningSystem, text: str, **how: Any) -> httpx2.Response:
    return await post(running, message(running, text, **how))


async def hand_in_all(running: RunningSystem, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By the batch door; a result for each."""
    url = running.url(path="/api/ingest/batch")
    response = await running.http.post(url, json={"messages": messages}, timeout=60)
    assert response.status_code == 202, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


async def in_hand(running: RunningSystem, number: int = 1) -> None:
    """Wait until a worker has so many messages in hand."""
    query = "select count(*) from switchboard.message_inbox where lifecycle_state = 'progress'"

    async def taken() -> bool:
        return bool(await running.database.fetchval(query) >= number)

    await running.until(taken)


async def admitted(running: RunningSystem, channel: str) -> dict[str, int]:
    """How the messages of a channel were dealt with, by the metric."""
    return await counted(running, "butlers_switchboard_admission_total", "outcome", source_channel=channel)


async def counted(running: RunningSystem, metric: str, by: str, **labels: str) -> dict[str, int]:
    text = (await running.http.get(running.url(path="/metrics"))).text
    totals: dict[str, int] = {}
    for line in text.splitlines():
        if re.match(rf"{metric}[{{ ]", line) and all(f'{name}="{value}"' in line for name, value in labels.items()):
            found = re.search(rf'\b{by}="([^"]*)"', line)
            name = found[1] if found else ""
            totals[name] = totals.get(name, 0) + int(float(line.rpartition(" ")[2]))
    return totals
