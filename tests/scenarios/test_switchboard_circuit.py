"""A butler that does not answer is left alone, probed and used again; a fanout that broke off goes on where it was."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.downstream import after, downstream, ok
from tests.scenarios.fanout_system import AT_HOME, FanoutSystem, planned
from tests.scenarios.test_when_something_goes_away import SteppingClock
from tests.system import RunningSystem, running_system

CIRCUIT = """
[routing.circuit]
failure_threshold = 2
recovery_s = 30.0

[routing.tier.default]
attempts = 1
"""
TAKE_OVER = """
    UPDATE switchboard.message_inbox SET claim_token = $2, lease_expires_at = now() - interval '1 minute'
    WHERE request_id = $1
"""


async def measured(running: RunningSystem, name: str) -> dict[str, float]:
    """The values of a metric by the state it is about."""
    text = (await running.http.get(running.url(path="/metrics"))).text
    lines = re.findall(rf"^{name}(?:{{([^}}]*)}})? (\S+)$", text, flags=re.MULTILINE)
    states = ((re.search(r'circuit_state="([^"]+)"', labels), value) for labels, value in lines)
    return {state[1] if state else "": float(value) for state, value in states}


def transitions(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines = [record.__dict__["butlers_fields"] for record in caplog.records if record.name == "butlers.circuits"]
    return [(line["target_butler"], line["status"]) for line in lines]


@pytest.mark.scenario("S3-051")
async def test_circuit_breaker(
    tmp_path: Path, postgres_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="butlers.circuits")
    clock = SteppingClock()
    options: dict[str, Any] = {"names": AT_HOME, "roster_dir": planned(tmp_path, CIRCUIT), "request_patience_s": 0}
    async with (
        running_system(tmp_path, postgres_server, clock=clock, **options) as running,
        downstream(running, "finance") as finance,
        downstream(running, "travel") as travel,
    ):
        fanout = FanoutSystem(running=running, finance=finance, travel=travel)
        assert await measured(running, "butlers_switchboard_circuit_open_targets") == {"": 0.0}
        await finance.close()
        for _ in range(2):
            failed = await fanout.says("finance")
            assert failed["lifecycle_error"]["class"] == "target_unavailable"
            assert "retry_after_seconds" not in failed["lifecycle_error"]
        await finance.open()

        refused = await fanout.says("finance")
        assert finance.got == [], "it is left alone, although it would answer now"
        assert refused["lifecycle_error"]["class"] == "target_unavailable"
        assert 0 < refused["lifecycle_error"]["retry_after_seconds"] <= 30
        assert refused["outcomes"]["finance"]["duration_ms"] < 5_000
        assert (await fanout.says("travel"))["lifecycle_state"] == "parsed"
        assert await measured(running, "butlers_switchboard_circuit_open_targets") == {"": 1.0}

        clock.step(30)
        assert (await fanout.says("finance"))["lifecycle_state"] == "parsed"
        assert len(finance.got) == 1
        assert await measured(running, "butlers_switchboard_circuit_open_targets") == {"": 0.0}
        assert await measured(running, "butlers_switchboard_circuit_transition_total") == {
            "open": 1.0,
            "half-open": 1.0,
            "closed": 1.0,
        }
        assert transitions(caplog) == [("finance", "open"), ("finance", "half-open"), ("finance", "closed")]


async def test_a_butler_that_registers_again_is_used_at_once(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    options: dict[str, Any] = {"names": AT_HOME, "roster_dir": planned(tmp_path, CIRCUIT), "request_patience_s": 0}
    async with (
        running_system(tmp_path, postgres_server, **options) as running,
        downstream(running, "finance") as finance,
    ):
        fanout = FanoutSystem(running=running, finance=finance)
        await finance.close()
        for _ in range(2):
            await fanout.says("finance")
        await finance.open()
        assert (await fanout.says("finance"))["lifecycle_state"] == "errored"
        await finance.register()
        assert (await fanout.says("finance"))["lifecycle_state"] == "parsed"


async def test_a_fanout_that_broke_off_goes_on_where_it_was(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    roster = planned(tmp_path)
    path = roster / "switchboard" / "butler.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("scanner_interval_s = 30", "scanner_interval_s = 0.2"))
    async with (
        running_system(
            tmp_path, postgres_server, names=AT_HOME, roster_dir=roster, lease_ttl_s=2, lease_renew_s=0.2
        ) as running,
        AsyncExitStack() as stack,
    ):
        finance = await stack.enter_async_context(downstream(running, "finance"))
        health = await stack.enter_async_context(downstream(running, "health"))
        fanout = FanoutSystem(running=running, finance=finance, health=health)
        never = asyncio.Event()
        finance.will(after(never), ok("paid, at last"))
        request_id = await fanout.hand_in("finance", "health")  # ordered: health first
        await finance.called()
        await running.database.execute(TAKE_OVER, request_id, uuid4())  # as if the worker had died
        stored = await fanout.ended(request_id)

        assert stored["lifecycle_state"] == "parsed", stored["lifecycle_error"]
        assert len(health.got) == 1, "its answer was on record"
        assert len({envelope["subrequest"]["subrequest_id"] for envelope in finance.got}) == 1
        assert len(finance.got) == 2
        assert stored["aggregated_reply"] == {"answers": {"health": "Noted.", "finance": "paid, at last"}}
