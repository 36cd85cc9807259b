"""A package with one folder brings a channel: in, out, deduplicated, limited, retried, and seen by operators."""

from __future__ import annotations

import asyncio
import json
import shutil
import tomllib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from benchmarks.chaos.roster import amend, lifted_roster

from butlers.channels.registry import GROUP
from butlers.clock import SystemClock
from butlers.daemon.demo.instance import Instance
from tests.integration.processes.command import LIFTED, QUICK, answer, butlers
from tests.ports import free_port

PACKAGE = Path(__file__).parents[2] / "data" / "pigeon_channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loft:
    """A running system with the package installed, and the folder that its pigeons come to and leave from."""

    folder: Path
    instance: Instance
    roster: Path
    environment: dict[str, str]

    def brings(self, ring: str, text: str, **more: str) -> None:
        with (self.folder / "in.jsonl").open("a", encoding="utf-8") as slips:
            slips.write(json.dumps({"ring": ring, "from": "ann", "text": text, **more}) + "\n")

    def sent(self) -> list[dict[str, Any]]:
        out = self.folder / "out.jsonl"
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    async def answered(self, number: int) -> list[dict[str, Any]]:
        async def enough() -> list[dict[str, Any]]:
            return self.sent() if len(self.sent()) >= number else []

        found: list[dict[str, Any]] = await self.instance.until(f"{number} answers", enough, timeout_s=90, pause_s=0.2)
        return found

    async def text(self, path: str) -> str:
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.get(f"{self.instance.url('switchboard')}{path}")).text


def install(site: Path) -> dict[str, str]:
    """As an installer would: the code and its metadata on the path of every process."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    shutil.copytree(PACKAGE / "src", site)
    metadata = site / "pigeon_channel-1.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0.0\n")
    lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in project["entry-points"][GROUP].items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {"PYTHONPATH": str(site)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loft(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Loft]:
    folder = tmp_path_factory.mktemp("loft")
    environment = install(folder / "site-packages")
    roster = lifted_roster(folder / "roster", {"tell_owner": LIFTED["tell_owner"]})
    options = {"options": {"loft": str(folder)}}
    amend(roster, "messenger", {"modules": {"pigeon": options}})
    amend(roster, "switchboard", {"modules": {"pigeon": options | {"who_may_write": "open"}}})
    settings = QUICK | {"roster": str(roster), "connector_heartbeat_s": "1"}
    instance = Instance(folder / "data", clock=SystemClock(), settings=settings, environment=environment)
    try:
        await instance.start()
        yield Loft(folder=folder, instance=instance, roster=roster, environment=environment)
    finally:
        await instance.close()


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_message_comes_in_once_and_is_answered_by_the_same_channel(loft: Loft) -> None:
    loft.brings("p-1", "note to self: feed the pigeons")
    loft.brings("p-1", "note to self: feed the pigeons")  # the same ring is the same message
    first = await loft.answered(1)
    loft.brings("p-2", "note to self: mend the roof")
    both = await loft.answered(2)
    assert [slip["to"] for slip in both] == ["ann", "ann"]
    assert both[0] == first[0]
    rows = (await loft.instance.get("switchboard", "/api/requests", limit=50))["requests"]
    assert [row["source_channel"] for row in rows] == ["pigeon", "pigeon"]


async def test_what_cannot_leave_is_tried_again_by_the_channels_own_policy(loft: Loft) -> None:
    before = len(loft.sent())
    (loft.folder / "storm").touch()
    loft.brings("p-3", "note to self: close the windows")

    async def waiting() -> Any:
        found = await loft.instance.get("switchboard", "/api/deliveries", channel="pigeon")
        return [row for row in found["deliveries"] if row["status"] == "awaiting_retry"]

    [delivery] = await loft.instance.until("a retry", waiting, timeout_s=60, pause_s=0.2)
    (loft.folder / "storm").unlink()
    await loft.answered(before + 1)
    path = f"/api/deliveries/{delivery['id']}/attempts"
    attempts = (await loft.instance.get("switchboard", path))["attempts"]
    assert len(attempts) > 1
    limits = json.dumps(await loft.instance.get("switchboard", "/api/deliveries/limits"))
    assert "pigeon.bot" in limits


async def test_what_cannot_be_stored_is_refused_at_the_door_and_holds_nothing_up(loft: Loft) -> None:
    async def stored() -> int:
        return len((await loft.instance.get("switchboard", "/api/requests", limit=50))["requests"])

    sent, rows = len(loft.sent()), await stored()
    loft.brings("p-4", "note to self: count the eggs", weight="17\x00 g")
    loft.brings("p-5", "note to self: buy some corn")
    [*_earlier, answer] = await loft.answered(sent + 1)
    assert "buy some corn" in answer["text"]
    assert await stored() == rows + 1


async def test_operators_see_it_like_every_other_channel(loft: Loft) -> None:
    where = ("--data-dir", loft.instance.data_dir)
    status = await asyncio.to_thread(answer, "status", *where)
    parts = {part["part"] for part in status["doors"]["switchboard"]["parts"]}
    assert "pigeon connector" in parts

    async def reported() -> Any:
        rows = (await loft.instance.get("switchboard", "/api/connectors"))["connectors"]
        return [row for row in rows if row["connector_type"] == "pigeon"]

    [connector] = await loft.instance.until("a heartbeat", reported, timeout_s=60, pause_s=0.2)
    assert connector["endpoint_identity"] == "loft"
    assert 'source_channel="pigeon"' in await loft.text("/metrics")
    assert '"pigeon"' in await loft.text("/api/openapi.json")
    asked = ("doctor", "--data-dir", loft.folder / "other", "--set", f"roster={loft.roster}")
    told = await asyncio.to_thread(butlers, *asked, environment=loft.environment)
    assert "Carrier pigeon, in and out, of package pigeon-channel" in told.stdout


async def test_its_simulator_is_served_like_every_other(loft: Loft) -> None:
    port = free_port()
    where = ("--data-dir", loft.folder / "alone", "--port", f"pigeon_simulator={port}")
    served = await asyncio.to_thread(
        butlers, "simulate", "pigeon", "--with-parent", *where, environment=loft.environment
    )
    assert json.loads(served.stdout) == {"ready": True, "pigeon": f"127.0.0.1:{port}"}
