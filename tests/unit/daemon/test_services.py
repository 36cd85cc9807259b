"""Loops under supervision: what the log says of one that fails, and of one that runs again."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from butlers.clock import ManualClock
from butlers.daemon.services import RESTART_S, SETTLED_S, Supervisor
from butlers.errors import TargetUnavailable
from butlers.telemetry import configure_logging


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    level = logging.getLogger().level
    handler = configure_logging(stream, logging.INFO)
    yield stream
    logging.getLogger().removeHandler(handler)
    logging.getLogger().setLevel(level)
    logging.captureWarnings(capture=False)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_service_that_fails_is_named_with_what_went_wrong_and_said_to_run_again(log: io.StringIO) -> None:
    clock, failing = ManualClock(), True
    supervisor = Supervisor(clock)

    async def loop() -> None:
        if failing:
            raise TargetUnavailable("the database is away")
        await clock.sleep(10_000)

    supervisor.start("lost sessions", loop)
    for _ in range(20):
        await _turns()
        clock.advance(RESTART_S)
    (begins,) = lines(log)  # twenty failures, one line
    assert (begins["event"], begins["job_name"]) == ("service failed, starting it again", "lost_sessions")
    assert begins["error"]["message"] == "the database is away"
    failing = False
    clock.advance(RESTART_S)
    await _turns()
    clock.advance(SETTLED_S)
    await _turns()
    ends = lines(log)[-1]
    assert (ends["event"], ends["job_name"], ends["attempts"]) == ("service runs again", "lost_sessions", 20)
    await supervisor.stop()
