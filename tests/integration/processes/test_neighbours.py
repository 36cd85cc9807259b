"""Several systems on one machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx2
import pytest

from butlers.butler.identity import TokenFile
from butlers.clock import SystemClock
from butlers.daemon.demo.instance import Instance
from butlers.daemon.places import Places
from tests.integration.processes.command import (
    answer_here,
    butlers,
    butlers_here,
    finished,
    kept_running,
    nothing_left,
    telegram_event,
    up,
    write_settings,
)
from tests.integration.processes.conftest import MAX_BODY_BYTES
from tests.integration.processes.test_two_messengers import Caller
from tests.ports import free_port
from tests.scenarios.messenger_door import wish

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _largest_body(instance: Instance) -> int:
    """What the system itself says its limit is."""
    refused = await instance.ingest(telegram_event(1, 1, "x" * 100_000))
    assert refused.status_code == 413
    return int(refused.json()["error"]["fields"][0]["error"].split()[-2])


async def test_two_systems_side_by_side(running: Instance, tmp_path):
    write_settings(tmp_path, "max_body_bytes = 2_048\ncontent_dedupe_window_s = 1\n")
    async with up(tmp_path, environment={"BUTLERS_MAX_BODY_BYTES": "4096"}) as other:
        ids = {}
        for instance, text in ((running, "mine"), (other, "yours")):
            reply = (await instance.ingest(telegram_event(701, 6401, text))).json()
            assert reply["duplicate"] is False
            ids[text] = reply["request_id"]
            await finished(instance)
        assert await running.bot_messages(6401) == ["[general] Noted: mine"]
        assert await other.bot_messages(6401) == ["[general] Noted: yours"]
        assert butlers_here("trace", ids["yours"], "--data-dir", running.data_dir).returncode == 2
        assert butlers_here("trace", ids["yours"], "--data-dir", other.data_dir).returncode == 0
        # Flag > environment > file; the first system was given all three, this one the last two.
        assert (await _largest_body(running), await _largest_body(other)) == (MAX_BODY_BYTES, 4096)


@pytest.mark.parametrize(
    ("flags", "environment", "offset"),
    [
        ([], {}, 11),
        ([], {"BUTLERS_PORT_OFFSET": "12"}, 12),
        (["--set", "port_offset=13"], {"BUTLERS_PORT_OFFSET": "12"}, 13),
        (["--port-offset", "14", "--set", "port_offset=13"], {"BUTLERS_PORT_OFFSET": "12"}, 14),
    ],
)
async def test_the_nearer_source_of_a_setting_wins(flags, environment, offset, tmp_path):
    write_settings(tmp_path, "port_offset = 11\n")
    completed = butlers_here("doctor", "--json", "--data-dir", tmp_path, *flags, environment=environment)
    checks = {check["name"]: check["detail"] for check in json.loads(completed.stdout)["checks"]}
    assert str(40_100 + offset) in checks["port.switchboard"]


async def test_a_second_messenger_finds_the_simulators_of_the_first(running: Instance):
    """Beside `up`, with nothing said but the data directory and a door of its own."""
    second = free_port()
    chat = 6801
    common = ("--data-dir", running.data_dir, "--port", f"messenger={second}")
    with kept_running("run", "messenger", *common, says="messenger is up, in a process of its own"):
        token = TokenFile(Places(running.data_dir).tokens, SystemClock()).secret_of("switchboard")
        async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:
            notify = wish("by the second one", recipient=str(chat))
            delivery = await Caller(http, token or "").hand_in(f"http://127.0.0.1:{second}", notify)
        assert delivery["status"] == "delivered"
        assert await running.bot_messages(chat) == ["[health] by the second one"]
    assert answer_here("status", "--data-dir", running.data_dir)["doors"]["messenger"]["status"] == "ok"


async def test_one_data_directory_serves_one_system(running: Instance):
    completed = butlers("up", "--data-dir", running.data_dir, "--port-offset", 1)
    assert completed.returncode == 3
    assert completed.stderr == (
        f"butlers: --data-dir: {running.data_dir}: a system is running here already (process {running.pid}) "
        "(stop it, or use another --data-dir with a --port-offset)\n"
    )


async def _occupied(door: str, data_dir: Path) -> tuple[Instance, socket.socket]:
    """An instance whose ports are free, but for one that somebody listens on; another program may be faster."""
    for _ in range(20):
        free = Instance(data_dir, clock=SystemClock())
        occupant = socket.socket()
        try:
            occupant.bind(("127.0.0.1", int(free.url(door).rpartition(":")[2])))
        except OSError:
            occupant.close()
            await free.close()
        else:
            occupant.listen()
            return free, occupant
    raise AssertionError("no free port")


@pytest.mark.timeout(400)  # on a busy machine; the command ends by itself
@pytest.mark.parametrize("door", ["switchboard", "smtp_simulator"])
async def test_a_port_in_use_is_named(door, tmp_path: Path):
    free, occupant = await _occupied(door, tmp_path)
    with occupant:
        port = occupant.getsockname()[1]
        completed = butlers("up", "--data-dir", tmp_path, "--port-offset", free.offset)
    await free.close()
    assert completed.returncode == 3
    complaint = completed.stderr.splitlines()[-1]
    assert f"127.0.0.1:{port}" in complaint
    assert "Address already in use" in complaint
    assert "--port-offset" in complaint
    await nothing_left(tmp_path)
