"""SMS and chat through the shipped webhook adapter: from route.execute to the gateway, and back as receipts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from butlers.channels.webhook.simulator import (
    RECEIPT_KEY,
    SIGNING_KEY,
    FaultKind,
    GatewayFault,
    WebhookSimulator,
    serve_webhook,
)
from butlers.clock import SystemClock
from butlers.errors import ConfigurationError
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, deliver, execute, fault, forget, lineage, quick, route, rows, wish
from tests.system import RunningSystem, running_system

SECRETS = {"SMS_SIGNING_KEY": SIGNING_KEY, "SMS_RECEIPT_KEY": RECEIPT_KEY}
NUMBER = "+15550100"

pytestmark = pytest.mark.asyncio(loop_scope="module")


def module(channel: str, gateway: WebhookSimulator, *, adapter: str = "webhook", **options: Any) -> str:
    """The tables that switch a channel on."""
    given = {"url": gateway.url, "status_url": gateway.status_url} | options
    return "\n".join(
        (
            f"[modules.{channel}]",
            f"adapter = {json.dumps(adapter)}",
            f"[modules.{channel}.options]",
            *(f"{name} = {json.dumps(value)}" for name, value in given.items()),
            f"[modules.{channel}.options_env]",
            'signing_key = "SMS_SIGNING_KEY"',
            'receipt_key = "SMS_RECEIPT_KEY"',
            "",
        )
    )


@asynccontextmanager
async def system_with(tmp_path: Path, server: EmbeddedPostgres, *modules: str) -> AsyncIterator[RunningSystem]:
    """A system whose Messenger has these modules, too."""
    roster = quick(tmp_path, (r"\Z", "\n" + "\n".join(modules)))
    async with running_system(tmp_path, server, roster_dir=roster, environment=SECRETS) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[WebhookSimulator]:
    async with serve_webhook(clock=SystemClock()) as simulator:
        yield simulator


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres, gateway: WebhookSimulator
) -> AsyncIterator[RunningSystem]:
    """SMS by a gateway that may not know a repeat, chat by one that does."""
    both = (module("sms", gateway), module("chat", gateway, idempotent=True))
    async with system_with(tmp_path_factory.mktemp("system"), postgres_server, *both) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem, gateway: WebhookSimulator) -> RunningSystem:
    gateway.gateway.reset()
    await system.database.execute("truncate messenger.delivery_requests, messenger.recipient_rules cascade")
    return system


def sms(running: RunningSystem, message: str = "hello", **fields: Any) -> dict[str, Any]:
    given = {"channel": "sms", "recipient": NUMBER, "request_context": lineage(running)} | fields
    return wish(message, **{name: value for name, value in given.items() if value is not None})


def door(running: RunningSystem, channel: str = "sms") -> str:
    return running.url("messenger", f"/webhooks/{channel}")


async def receipts(running: RunningSystem) -> list[dict[str, Any]]:
    query = "select * from messenger.delivery_receipts order by receipt_type"
    return [dict(row) for row in await running.database.fetch(query)]


# --- out -------------------------------------------------------------------------------------------------------------


async def test_a_text_message_leaves_once_under_its_key(running: RunningSystem, gateway: WebhookSimulator) -> None:
    notify = sms(running)
    first, second = await deliver(running, notify), await deliver(running, notify)
    assert first["delivery"]["status"] == "delivered"
    assert second["delivery"]["delivery_id"] == first["delivery"]["delivery_id"]
    assert second["delivery"]["deduplicated"]
    (row,) = await rows(running)
    assert (row["channel"], row["identity_scope"], row["target_identity"]) == ("sms", "bot", NUMBER)
    ((key, taken),) = gateway.gateway.taken.items()
    assert (key, taken.times) == (row["idempotency_key"], 1)
    assert taken.message["message"] == "[health] hello"
    assert (taken.message["recipient"], taken.delivery_id) == (NUMBER, first["delivery"]["delivery_id"])
    (receipt,) = await receipts(running)
    assert (receipt["receipt_type"], receipt["provider_delivery_id"]) == ("sent", taken.id)


async def test_a_contact_is_reached_at_its_number(running: RunningSystem, gateway: WebhookSimulator) -> None:
    contact = uuid4()
    await running.database.execute(
        "insert into shared.contacts (id, name, created_at, updated_at) values ($1, 'Ann', now(), now())", contact
    )
    for number, primary in (("+15550111", False), ("+15550222", True)):
        await running.database.execute(
            "insert into shared.contact_info (id, contact_id, type, value, is_primary, created_at)"
            " values ($1, $2, 'sms', $3, $4, now())",
            uuid4(),
            contact,
            number,
            primary,
        )
    answer = await deliver(running, sms(running, recipient=None, contact_id=str(contact)))
    assert answer["delivery"]["status"] == "delivered"
    assert [taken.message["recipient"] for taken in gateway.gateway.taken.values()] == ["+15550222"]


async def test_a_gateway_that_fails_is_tried_again(running: RunningSystem, gateway: WebhookSimulator) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.ANSWER, status=503, body='{"error": "not_taken"}'))
    answer = await deliver(running, sms(running))
    assert answer["delivery"]["status"] == "delivered"
    assert [seen.status for seen in gateway.gateway.seen] == [503, 202]
    assert [attempt["certainty"] for attempt in await attempts(running)] == ["not_sent", "sent"]


async def test_a_front_end_that_gave_up_waiting_is_not_taken_for_a_refusal(
    running: RunningSystem, gateway: WebhookSimulator
) -> None:
    words = '{"message": "Endpoint request timed out"}'
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.ANSWER_AFTER, status=504, body=words))
    answer = await deliver(running, sms(running))
    assert (answer["status"], answer["delivery"]["status"]) == ("error", "uncertain")
    assert [attempt["certainty"] for attempt in await attempts(running)] == ["uncertain"]
    assert [taken.times for taken in gateway.gateway.taken.values()] == [1]


async def test_a_lost_answer_is_resent_where_the_gateway_knows_repeats(
    running: RunningSystem, gateway: WebhookSimulator
) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.DROP_AFTER))
    answer = await deliver(running, sms(running, channel="chat", recipient="@ann"))
    assert answer["delivery"]["status"] == "delivered"
    assert len(gateway.gateway.taken) == 1


# --- and back --------------------------------------------------------------------------------------------------------


async def test_a_signed_callback_becomes_a_receipt(running: RunningSystem, gateway: WebhookSimulator) -> None:
    answer = await deliver(running, sms(running))
    name = answer["delivery"]["provider_delivery_id"]
    for kind in ("read", "delivered"):
        status, _ = await gateway.callbacks.send(door(running), {"receipt_type": kind, "provider_delivery_id": name})
        assert status == 200
    assert [(kept["receipt_type"], kept["provider_delivery_id"]) for kept in await receipts(running)] == [
        ("delivered", name),
        ("read", name),
        ("sent", name),
    ]


async def test_an_unsigned_callback_is_nothing(running: RunningSystem, gateway: WebhookSimulator) -> None:
    answer = await deliver(running, sms(running))
    receipt = {"schema_version": "receipt.v1", "receipt_type": "read", "delivery_id": answer["delivery"]["delivery_id"]}
    response = await running.http.post(door(running), json=receipt, headers=running.bearer())
    assert response.status_code == 401, "the operator's token is no signature either"
    assert (await running.http.post(door(running, "telegram"), json=receipt)).status_code == 404
    assert len(await receipts(running)) == 1


async def test_an_uncertain_delivery_is_settled_by_its_receipt(
    running: RunningSystem, gateway: WebhookSimulator
) -> None:
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.DROP_AFTER))
    notify = sms(running)
    answer = await deliver(running, notify)
    delivery_id = answer["delivery"]["delivery_id"]
    assert answer["delivery"]["status"] == "uncertain"
    status, told = await gateway.callbacks.send(
        door(running), {"receipt_type": "delivered", "delivery_id": delivery_id, "provider_delivery_id": "msg-1"}
    )
    assert (status, told["settled"]) == (200, True)
    (row,) = await rows(running)
    assert (row["status"], row["settled_by"], row["tell_owner"]) == ("delivered", "provider receipt", False)
    (attempt,) = await attempts(running, delivery_id)
    assert attempt["certainty"] == "uncertain"
    again = await deliver(running, notify)
    assert (again["status"], again["delivery"]["status"]) == ("ok", "delivered")
    assert len(gateway.gateway.seen) == 1


async def test_a_number_that_bounced_for_good_is_not_written_to_again(
    running: RunningSystem, gateway: WebhookSimulator
) -> None:
    answer = await deliver(running, sms(running))
    bounce = {"receipt_type": "bounced", "delivery_id": answer["delivery"]["delivery_id"], "permanent": True}
    status, told = await gateway.callbacks.send(door(running), bounce | {"reason": "no such number"})
    assert (status, told["suppressed"]) == (200, True)
    response = await execute(running, route(running, sms(running, "and again")))
    assert (response["status"], response["error"]["class"]) == ("error", "validation_error")
    assert len(gateway.gateway.seen) == 1


# --- words that no table can hold ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [r"no\u0000 such", r"half \ud83d of it", r"\u0000\udfff"])
@pytest.mark.parametrize(("status", "ends"), [(400, "failed"), (503, "uncertain"), (410, "failed"), (429, "delivered")])
async def test_a_gateways_outcome_is_on_record_whatever_words_it_comes_in(
    running: RunningSystem, gateway: WebhookSimulator, words: str, status: int, ends: str
) -> None:
    body, wait = f'{{"error": "{words}", "scope": "recipient"}}', {"Retry-After": "1"} if status == 429 else {}
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.ANSWER, status=status, body=body, headers=wait))
    answer = await deliver(running, sms(running))
    made = await attempts(running, answer["delivery"]["delivery_id"])
    assert answer["delivery"]["status"] == ends
    assert gateway.gateway.seen[0].status == status
    assert all(attempt["completed_at"] for attempt in made)
    assert f"HTTP {status}" in made[0]["error_message"]
    await running.database.execute("delete from messenger.throttles")


async def test_a_name_that_no_table_can_hold_is_no_name(running: RunningSystem, gateway: WebhookSimulator) -> None:
    """It was taken, and nobody can say as what: that is not known to be sent."""
    gateway.gateway.faults.add(GatewayFault(kind=FaultKind.ANSWER_AFTER, status=202, body=r'{"id": "m\u0000sg"}'))
    answer = await deliver(running, sms(running))
    assert answer["delivery"]["status"] == "uncertain"
    (attempt,) = await attempts(running)
    assert (attempt["certainty"], attempt["provider_response"]) == ("uncertain", {"status": 202})


@pytest.mark.parametrize("words", ["no\0 such", "\0"])
@pytest.mark.parametrize(
    ("status", "ends"), [(400, "failed"), (403, "failed"), (401, "failed"), (502, "dead_lettered")]
)
async def test_telegrams_outcome_is_on_record_whatever_words_it_comes_in(
    running: RunningSystem, words: str, status: int, ends: str
) -> None:
    chat = str(9_000 + status)
    await fault(running, "refused", status=status, description=words, chat_id=int(chat), times=3)
    answer = await deliver(running, wish("hello", recipient=chat))
    assert answer["delivery"]["status"] == ends
    assert "\0" not in answer["error"]["message"]
    made = await attempts(running, answer["delivery"]["delivery_id"])
    assert {attempt["provider_response"]["error_code"] for attempt in made} == {status}
    assert all(attempt["completed_at"] and attempt["certainty"] == "not_sent" for attempt in made)
    assert (await rows(running))[-1]["terminal_error_message"] == answer["error"]["message"]
    await forget(running)
    assert (await deliver(running, wish("and on", recipient="9000")))["delivery"]["status"] == "delivered"


# --- not at all ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"adapter": "carrier_pigeon"}, "modules.sms.adapter"),
        ({"url": "http://far.example/messages"}, "modules.sms.options.url"),
        ({"retries": 3}, "modules.sms.options.retries"),
    ],
)
async def test_a_channel_that_is_wrong_stops_the_start(
    tmp_path: Path,
    postgres_server: EmbeddedPostgres,
    gateway: WebhookSimulator,
    options: dict[str, Any],
    key: str,
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with system_with(tmp_path, postgres_server, module("sms", gateway, **options)):
            pass
    assert caught.value.key == key
    assert caught.value.source.endswith("messenger/butler.toml")
