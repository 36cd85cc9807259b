"""The door for receipts: who may knock, what is let in, and that a gateway's own code can use it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from starlette.applications import Starlette

from butlers.channels.webhook.simulator import RECEIPT_KEY, WebhookSimulator, serve_webhook
from butlers.clock import SystemClock
from butlers.errors import TargetUnavailable
from butlers.messenger.receipts import BODY_LIMIT, Receipt, ReceiptIntake, ReceiptOutcome, receipt_routes
from butlers.serving.server import GuestServer, listen
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.integration.channels.receipt_rows import MIGRATIONS, SCHEMA, Rows

HOST = "127.0.0.1"
CLOCK = SystemClock()


async def served(intake: Any, keys: dict[str, str]) -> AsyncIterator[str]:
    server = GuestServer(Starlette(routes=receipt_routes(intake, keys=keys, clock=CLOCK)))
    listener = listen(HOST, 0, source="test", remedy="")
    await server.open(listener)
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}/webhooks"
    finally:
        await server.close()
        listener.close()


@pytest.fixture
async def gateway() -> AsyncIterator[WebhookSimulator]:
    async with serve_webhook(clock=CLOCK) as simulator:
        yield simulator


@pytest.fixture
async def rows(postgres_server: EmbeddedPostgres) -> AsyncIterator[Rows]:
    async with cloned_database(postgres_server, MIGRATIONS, max_size=2) as database:
        yield Rows(database)


@pytest.fixture
async def door(rows: Rows) -> AsyncIterator[str]:
    intake = ReceiptIntake(database=rows.database, schema=SCHEMA, clock=CLOCK, new_id=uuid4)
    async for url in served(intake, {"sms": RECEIPT_KEY, "chat": "another key"}):
        yield url


def body(**fields: Any) -> bytes:
    return json.dumps({"schema_version": "receipt.v1", "receipt_type": "delivered"} | fields).encode()


# --- let in ----------------------------------------------------------------------------------------------------------


async def test_a_signed_receipt_settles_what_was_uncertain(rows: Rows, door: str, gateway: WebhookSimulator) -> None:
    delivery = await rows.delivery("uncertain")
    wish = {"receipt_type": "delivered", "delivery_id": str(delivery), "provider_delivery_id": "msg-1"}
    status, answer = await gateway.callbacks.send(f"{door}/sms", wish)
    assert (status, answer) == (
        200,
        {
            "status": "ok",
            "delivery_id": str(delivery),
            "receipt_type": "delivered",
            "repeated": False,
            "settled": True,
            "suppressed": False,
        },
    )
    assert (await rows.of(delivery))["status"] == "delivered"
    (kept,) = await rows.receipts()
    assert kept["provider_delivery_id"] == "msg-1"


async def test_the_same_signed_receipt_again_is_harmless(rows: Rows, door: str, gateway: WebhookSimulator) -> None:
    content = body(delivery_id=str(await rows.delivery()))
    headers = gateway.callbacks.signed(content)
    answers = [await gateway.callbacks.send_raw(f"{door}/sms", content, headers) for _ in range(3)]
    assert [(status, answer["repeated"]) for status, answer in answers] == [(200, False), (200, True), (200, True)]
    assert len(await rows.receipts()) == 1


async def test_the_stand_in_calls_back_when_it_is_told_to(rows: Rows, door: str, gateway: WebhookSimulator) -> None:
    delivery = await rows.delivery()
    wish = {"url": f"{door}/sms", "receipt": {"receipt_type": "read", "delivery_id": str(delivery)}}
    async with httpx2.AsyncClient(trust_env=False) as client:
        told = (await client.post(f"{gateway.base_url}/control/receipts", json=wish)).json()
    assert (told["status"], told["answer"]["receipt_type"]) == (200, "read")


# --- turned away -----------------------------------------------------------------------------------------------------


async def refused(
    door: str, gateway: WebhookSimulator, content: bytes, *, channel: str = "sms", **headers: str | None
) -> tuple[int, dict[str, Any]]:
    """Status and error; headers replace those of a good signature, None takes one away."""
    sent: dict[str, Any] = gateway.callbacks.signed(content) | {k.replace("_", "-"): v for k, v in headers.items()}
    kept = {name: value for name, value in sent.items() if value is not None}
    status, answer = await gateway.callbacks.send_raw(f"{door}/{channel}", content, kept)
    assert status is not None
    error: dict[str, Any] = answer["error"]
    assert {"class", "message", "retryable", "fields"} <= error.keys()
    return status, error


async def test_what_is_not_signed_is_turned_away_and_leaves_no_row(
    rows: Rows, door: str, gateway: WebhookSimulator
) -> None:
    content = body(delivery_id=str(await rows.delivery("uncertain")))
    old = gateway.callbacks.signed(content, age_s=301)
    early = gateway.callbacks.signed(content, age_s=-301)
    other = gateway.callbacks.signed(content + b" ")
    for headers in (
        {"Butlers_Signature": None},
        {"Butlers_Timestamp": None},
        {"Butlers_Signature": "v1=" + "0" * 64},
        {"Butlers_Signature": other["Butlers-Signature"]},
        {"Butlers_Timestamp": old["Butlers-Timestamp"], "Butlers_Signature": old["Butlers-Signature"]},
        {"Butlers_Timestamp": early["Butlers-Timestamp"], "Butlers_Signature": early["Butlers-Signature"]},
    ):
        status, error = await refused(door, gateway, content, **headers)
        assert (status, error["class"]) == (401, "validation_error"), headers
    assert await rows.receipts() == []


async def test_one_channels_key_does_not_open_anothers_door(rows: Rows, door: str, gateway: WebhookSimulator) -> None:
    delivery = await rows.delivery(channel="chat")
    status, _ = await refused(door, gateway, body(delivery_id=str(delivery)), channel="chat")
    assert status == 401


async def test_there_is_no_door_without_a_key(door: str, gateway: WebhookSimulator) -> None:
    for channel in ("telegram", "email", "nonsense", "%00"):
        status, _ = await refused(door, gateway, body(delivery_id=str(uuid4())), channel=channel)
        assert status == 404
    assert receipt_routes(None, keys={}, clock=CLOCK) == []  # type: ignore[arg-type]


async def test_an_unknown_delivery_is_404(door: str, gateway: WebhookSimulator) -> None:
    status, error = await refused(door, gateway, body(delivery_id=str(uuid4())))
    assert (status, error["fields"][0]["field"]) == (404, "delivery_id")


async def test_an_over_long_body_is_not_read(door: str, gateway: WebhookSimulator) -> None:
    status, _ = await refused(door, gateway, body(reason="x" * BODY_LIMIT))
    assert status == 413


async def test_only_json_is_taken(door: str, gateway: WebhookSimulator) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        status, _ = await refused(door, gateway, body(delivery_id=str(uuid4())), Content_Type=kind)
        assert status == 415


NO_RECEIPTS = (
    b"",
    b"{",
    b"[]",
    b"\xff",
    b"[" * 9999,
    b'{"schema_version": "receipt.v2"}',
    body(),
    body(delivery_id="no uuid"),
    body(provider_delivery_id=""),
    body(provider_delivery_id="a\x00b"),
    body(provider_delivery_id="x", receipt_type="lost"),
    body(provider_delivery_id="x", part=0),
    body(provider_delivery_id="x", permanent=True),
    body(provider_delivery_id="x", occurred_at="yesterday"),
    body(provider_delivery_id="x", reason="x" * 201),
    body(provider_delivery_id="x", surprise=1),
)


async def test_what_is_no_receipt_is_refused_field_by_field(door: str, gateway: WebhookSimulator) -> None:
    for content in NO_RECEIPTS:
        status, error = await refused(door, gateway, content)
        assert (status, error["class"], error["retryable"]) == (422, "validation_error", False), content


class Broken:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def record(self, channel: str, receipt: Receipt) -> ReceiptOutcome:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"),
    [(TargetUnavailable("the database is away", retry_after=1.0), 503), (RuntimeError("oops"), 500)],
)
async def test_a_fault_of_ours_asks_the_provider_to_come_again(
    gateway: WebhookSimulator, error: Exception, status: int
) -> None:
    async for url in served(Broken(error), {"sms": RECEIPT_KEY}):
        answered, told = await refused(url, gateway, body(delivery_id=str(uuid4())))
        assert (answered, told["retryable"]) == (status, True)
        assert "oops" not in told["message"]
