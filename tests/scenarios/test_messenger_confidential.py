"""Providers quote what they refuse, credentials included: none of it gets into a log line, a reason or an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from butlers.channels.telegram.simulator import DEFAULT_TOKEN
from butlers.channels.webhook.simulator import (
    RECEIPT_KEY,
    SIGNING_KEY,
    FaultKind,
    GatewayFault,
    WebhookSimulator,
    serve_webhook,
)
from butlers.clock import SystemClock
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call, execute, fault, mail_fault, quick, route, rows, wish
from tests.scenarios.test_messenger_other_channels import NUMBER, SECRETS, module
from tests.scenarios.test_secrets_stay_out_of_logs import _logging_to as logging_to
from tests.system import RunningSystem, running_system

MARK = "quetzalcoatlus"  # stands in every message and nowhere else
API_KEY = "sk-live-4f9c2d7e8a1b"
QUOTING = f"cannot send '{MARK}' (\"{MARK}\") as {API_KEY} signed {SIGNING_KEY} by {DEFAULT_TOKEN}"
REFUSALS = (400, 409, 410, 422, 429, 503, 401, 403)
# What holds the message by design; every other column may be shown to anybody who looks after the system.
CONTENT = ["message", "subject", "envelope", "original_envelope", "source_event"]
TABLES = (
    "delivery_requests",
    "delivery_attempts",
    "delivery_receipts",
    "delivery_dead_letter",
    "throttles",
    "recipient_rules",
    "channel_states",
)


async def refused_by_gateway(running: RunningSystem, gateway: WebhookSimulator) -> list[str]:
    """Everything that callers were told."""
    told = []
    for number, status in enumerate(REFUSALS):
        body = json.dumps({"error": QUOTING, "scope": "recipient", MARK: MARK})
        headers = {"Retry-After": "1"} if status == 429 else {}
        for kind in (FaultKind.ANSWER, FaultKind.ANSWER_AFTER):
            gateway.gateway.faults.add(GatewayFault(kind=kind, status=status, body=body, headers=headers, times=3))
            notify = wish(f"{MARK} {kind}", channel="sms", subject=MARK, recipient=f"{NUMBER}{number}")
            told.append(json.dumps(await execute(running, route(running, notify))))
            gateway.gateway.faults.clear()
    return told


async def refused_by_others(running: RunningSystem) -> list[str]:
    told = []
    for number, status in enumerate((400, 401, 403, 404, 502)):
        await fault(running, "refused", status=status, description=f'no "{MARK}" by {DEFAULT_TOKEN}', times=3)
        told.append(json.dumps(await execute(running, route(running, wish(MARK, recipient=str(7_100 + number))))))
    for number, (phase, code) in enumerate((("rcpt", 550), ("dot", 554), ("mail", 451), ("auth", 535))):
        await mail_fault(running, phase=phase, kind="reply", code=code, text=f"no {MARK} for {API_KEY}")
        notify = wish(MARK, channel="email", subject=MARK, recipient=f"friend{number}@far.example")
        told.append(json.dumps(await execute(running, route(running, notify))))
    return told


async def columns(running: RunningSystem, table: str) -> list[dict[str, Any]]:
    query = f"select to_jsonb(entry) - $1::text[] as shown from messenger.{table} as entry"
    return [row["shown"] for row in await running.database.fetch(query, CONTENT)]


@pytest.mark.scenario("M1-049")
async def test_what_providers_quote_stays_out_of_logs_reasons_and_answers(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    path, environment = tmp_path / "butlers.log", SECRETS | {"SMS_API_KEY": API_KEY}
    async with serve_webhook(clock=SystemClock()) as gateway:
        keyed = module("sms", gateway) + 'api_key = "SMS_API_KEY"\n'
        roster = quick(tmp_path, (r"\Z", f"\n{keyed}"))
        with logging_to(path):
            async with running_system(
                tmp_path, postgres_server, names=["messenger"], roster_dir=roster, environment=environment
            ) as running:
                told = await refused_by_gateway(running, gateway) + await refused_by_others(running)
                kept = {table: await columns(running, table) for table in TABLES}
                told += [json.dumps(await call(running, "messenger", "messenger_circuit_status", {}))]
                for row in await rows(running):
                    told += [json.dumps(await call(running, "messenger", "messenger_delivery_attempts", _of(row)))]
    # The run was as eventful as it was meant to be: every kind of reason was written.
    assert [table for table in TABLES if not kept[table]] in ([], ["delivery_receipts"])
    assert any(state["trip_reason"] for state in kept["channel_states"]), kept["channel_states"]
    assert {entry["rule"] for entry in kept["recipient_rules"]} == {"suppressed"}
    assert {seen["channel"] for seen in kept["delivery_requests"]} == {"sms", "telegram", "email"}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert "delivery attempted" in {json.loads(line)["event"] for line in lines}
    for text in (*lines, *told, *(json.dumps(entry) for entries in kept.values() for entry in entries)):
        assert MARK not in text.lower(), text
        for secret in (API_KEY, SIGNING_KEY, RECEIPT_KEY, DEFAULT_TOKEN):
            assert secret not in text, text


def _of(row: dict[str, Any]) -> dict[str, str]:
    return {"delivery_id": str(row["id"])}
