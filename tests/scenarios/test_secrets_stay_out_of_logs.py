"""Credentials, tokens and message payloads are never logged, whatever goes right or wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from butlers.channels.email import SIMULATED_PASSWORD
from butlers.channels.telegram.simulator import DEFAULT_TOKEN
from butlers.storage.embedded import EmbeddedPostgres
from butlers.telemetry import configure_logging
from tests.scenarios.messenger_door import (
    call,
    deliver,
    execute,
    fault,
    lineage,
    mail_fault,
    quick,
    route,
    rows,
    time_limit,
    wish,
)
from tests.system import RunningSystem, running_system

MARK = "quetzalcoatlus"  # stands in every payload and nowhere else
ERROR_COLUMNS = """
select terminal_error_message from messenger.delivery_requests
union all select error_message from messenger.delivery_attempts
union all select provider_response::text from messenger.delivery_attempts
union all select error from switchboard.notifications
union all select error from switchboard.routing_log
union all select lifecycle_error::text from switchboard.message_inbox
union all select error from health.route_inbox
union all select error from health.sessions
union all select last_result::text from health.scheduled_tasks
"""


@pytest.mark.scenario("M1-049")
async def test_credentials_tokens_and_payloads_are_never_logged(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    path = tmp_path / "butlers.log"
    roster = quick(tmp_path, time_limit(telegram=0.5))
    # No list of known secrets: what keeps them out must not be that somebody remembered to name them.
    with _logging_to(path):
        async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
            secrets = [DEFAULT_TOKEN, *(token.secret for token in running.tokens.tokens())]
            await _good_traffic(running)
            await _provider_faults(running)
            await _bad_input(running)
            await _broken_database(running)
            told = [row[0] for row in await running.database.fetch(ERROR_COLUMNS) if row[0] is not None]
            assert len({row["status"] for row in await rows(running)}) >= 3
    lines = path.read_text(encoding="utf-8").splitlines()
    events = {json.loads(line)["event"] for line in lines}
    # The run was as eventful as it was meant to be.
    assert {"delivery recorded", "delivery attempted", "tool failed", "route failed"} <= events
    assert any("error" in json.loads(line) for line in lines)
    assert len(told) > 5
    for text in (*lines, *told):
        assert MARK not in text.lower(), text
        for secret in secrets:
            assert secret not in text, text
    # The simulator's password is an ordinary word, so it is looked for as a value of its own.
    assert not [line for line in lines if f'"{SIMULATED_PASSWORD}"' in line or f"{SIMULATED_PASSWORD}@" in line]


async def _good_traffic(running: RunningSystem) -> None:
    await running.says(f"I weigh 80 kg {MARK}")
    await running.until(running.answers)
    request_id = (await running.ingest(f"flight to {MARK}"))["request_id"]
    await running.finished(request_id)
    await deliver(running, wish(MARK, channel="email", subject=MARK, request_context=lineage(running)))
    await call(running, "health", "trigger", {"prompt": MARK})
    await call(running, "health", "state_set", {"key": MARK, "value": MARK})


async def _provider_faults(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=3)
    await _try(running, wish(f"5xx {MARK}"))
    await fault(running, "too_many_requests")
    await _try(running, wish(f"429 {MARK}"))
    await fault(running, "drop_after")
    await _try(running, wish(f"dropped {MARK}"))
    await fault(running, "delay", seconds=5)
    await _try(running, wish(f"slow {MARK}"))
    await _try(running, wish(MARK * 400))  # too long for Telegram
    await _try(running, wish(MARK, recipient=f"@{MARK}"))
    for phase, code in (("rcpt", 550), ("dot", 554), ("auth", 535)):
        await mail_fault(running, phase=phase, kind="reply", code=code, text=f"no {MARK} for {SIMULATED_PASSWORD}")
        await _try(running, wish(MARK, channel="email"))
    await mail_fault(running, phase="dot", kind="drop_after")
    await _try(running, wish(MARK, channel="email", recipient=f"{MARK}@butlers.example"))


async def _try(running: RunningSystem, notify: dict[str, Any]) -> None:
    """Whatever comes of it: after some faults the circuit refuses."""
    await execute(running, route(running, notify))


async def _bad_input(running: RunningSystem) -> None:
    await execute(running, route(running, wish(MARK, intent=MARK, channel=MARK, priority=MARK)))
    await execute(running, route(running, wish(MARK)), caller=None)
    stranger = {"Authorization": f"Bearer {MARK}-token"}
    refused = await running.http.post(running.url("messenger", "/mcp"), json={MARK: MARK}, headers=stranger)
    assert 400 <= refused.status_code < 500
    await call(running, "health", "notify", {"message": 5, MARK: MARK})
    await call(running, "health", MARK, {MARK: MARK})
    await call(running, "switchboard", "notify.dispatch", wish(MARK, origin_butler=MARK), caller="health")
    for content in (MARK.encode(), json.dumps({"schema_version": MARK, MARK: MARK}).encode(), b"\xff" + MARK.encode()):
        response = await running.http.post(
            running.url(path="/api/ingest"), content=content, headers={"Content-Type": "application/json"}
        )
        assert 400 <= response.status_code < 500
        await running.http.post(running.url("messenger", "/mcp"), content=content)
    await running.http.get(running.url(path="/api/requests"), headers={"Authorization": f"Bearer {MARK}"})


async def _broken_database(running: RunningSystem) -> None:
    """Exceptions that quote values: PostgreSQL's own texts carry the row that it refused."""
    for table in ("messenger.delivery_requests", "health.state"):
        await running.database.execute(f"alter table {table} add constraint nothing_fits check (false) not valid")
    failed = await execute(running, route(running, wish(MARK)))
    assert failed["error"]["class"] == "internal_error"
    assert MARK not in str(failed)
    failed = await call(running, "health", "state_set", {"key": MARK, "value": MARK})
    assert failed["error"]["class"] == "internal_error"
    assert MARK not in str(failed)
    for table in ("messenger.delivery_requests", "health.state"):
        await running.database.execute(f"alter table {table} drop constraint nothing_fits")


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """The process's logging as `butlers up` sets it, at the most talkative level, and back again."""
    root = logging.getLogger()
    level, names = root.level, ("httpx2", "httpcore2", "mcp", "asyncio", "uvicorn", "aiosmtplib", "asyncpg")
    levels = {name: logging.getLogger(name).level for name in names}
    handler = configure_logging(path, logging.DEBUG)
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        root.setLevel(level)
        logging.captureWarnings(capture=False)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
