"""Receipts that come later, against the real tables: matched, kept once, and believed where nobody knew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.clock import ManualClock
from butlers.errors import ValidationError
from butlers.messenger.receipts import Receipt, ReceiptIntake, ReceiptOutcome, UnknownDelivery
from butlers.storage.embedded import EmbeddedPostgres
from tests.database import cloned_database
from tests.integration.channels.receipt_rows import MIGRATIONS, NOW, SCHEMA, Rows


@pytest.fixture
async def rows(postgres_server: EmbeddedPostgres) -> AsyncIterator[Rows]:
    async with cloned_database(postgres_server, MIGRATIONS, max_size=4) as database:
        yield Rows(database)


@pytest.fixture
def intake(rows: Rows) -> ReceiptIntake:
    return ReceiptIntake(database=rows.database, schema=SCHEMA, clock=ManualClock(NOW), new_id=uuid4)


def receipt(receipt_type: str = "delivered", **fields: Any) -> Receipt:
    return Receipt.model_validate({"receipt_type": receipt_type} | fields)


# --- matched ---------------------------------------------------------------------------------------------------------


async def test_a_receipt_is_matched_by_our_id(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery()
    outcome = await intake.record("sms", receipt(delivery_id=delivery, provider_delivery_id="msg-1", occurred_at=NOW))
    assert outcome == ReceiptOutcome(delivery_id=delivery, receipt_type="delivered")
    (kept,) = await rows.receipts()
    assert (kept["delivery_id"], kept["part"], kept["provider_delivery_id"]) == (delivery, 1, "msg-1")
    assert kept["metadata"] == {"reported": True, "occurred_at": "2026-01-01T12:00:00Z"}


async def test_a_receipt_is_matched_by_the_providers_id_and_channel(rows: Rows, intake: ReceiptIntake) -> None:
    sms, mail = await rows.delivery(), await rows.delivery(channel="email")
    await rows.sent(sms, "first", part=1)
    await rows.sent(sms, "second", part=2)
    await rows.sent(mail, "first")
    outcome = await intake.record("sms", receipt(provider_delivery_id="second"))
    assert outcome.delivery_id == sms
    assert (await intake.record("email", receipt(provider_delivery_id="first"))).delivery_id == mail
    read = [(kept["delivery_id"], kept["part"]) for kept in await rows.receipts() if kept["receipt_type"] != "sent"]
    assert sorted(read) == sorted([(sms, 2), (mail, 1)])


async def test_a_receipt_with_our_id_alone_keeps_the_name_that_is_known(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery()
    await rows.sent(delivery, "msg-1")
    await intake.record("sms", receipt(delivery_id=delivery))
    assert {kept["provider_delivery_id"] for kept in await rows.receipts()} == {"msg-1"}


async def test_what_is_not_ours_is_refused(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery()
    await rows.sent(delivery, "msg-1")
    for channel, unknown in (
        ("sms", receipt(delivery_id=uuid4())),
        ("chat", receipt(delivery_id=delivery)),
        ("sms", receipt(provider_delivery_id="msg-2")),
        ("chat", receipt(provider_delivery_id="msg-1")),
    ):
        with pytest.raises(UnknownDelivery) as caught:
            await intake.record(channel, unknown)
        assert not caught.value.retryable
        assert caught.value.fields
    assert len(await rows.receipts()) == 1


async def test_a_name_that_stands_for_two_messages_is_refused(rows: Rows, intake: ReceiptIntake) -> None:
    for _ in range(2):
        await rows.sent(await rows.delivery(), "7")
    with pytest.raises(ValidationError, match="more than one"):
        await intake.record("sms", receipt(provider_delivery_id="7"))


# --- kept once, in any order -----------------------------------------------------------------------------------------


async def test_a_repeated_receipt_changes_nothing(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery()
    first = await intake.record("sms", receipt(delivery_id=delivery))
    second = await intake.record("sms", receipt(delivery_id=delivery))
    assert (first.repeated, second.repeated) == (False, True)
    assert len(await rows.receipts()) == 1


async def test_receipts_may_come_in_any_order(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("uncertain")
    outcomes = [
        await intake.record("sms", receipt(kind, delivery_id=delivery)) for kind in ("read", "delivered", "sent")
    ]
    assert [outcome.settled for outcome in outcomes] == [True, False, False]
    assert [kept["receipt_type"] for kept in await rows.receipts()] == ["delivered", "read", "sent"]
    assert (await rows.of(delivery))["status"] == "delivered"


async def test_many_at_once_are_kept_once(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("uncertain")
    both = [receipt("delivered", delivery_id=delivery), receipt("read", delivery_id=delivery)] * 10
    outcomes = await asyncio.gather(*(intake.record("sms", one) for one in both))
    assert sum(not outcome.repeated for outcome in outcomes) == 2
    assert sum(outcome.settled for outcome in outcomes) == 1


# --- settled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sent", "delivered", "read"])
async def test_an_uncertain_delivery_is_settled_by_its_receipt(rows: Rows, intake: ReceiptIntake, kind: str) -> None:
    delivery = await rows.delivery("uncertain", tell_owner=True)
    await rows.attempt(delivery, "uncertain")
    outcome = await intake.record("sms", receipt(kind, delivery_id=delivery))
    assert outcome.settled
    row = await rows.of(delivery)
    assert (row["status"], row["settled_by"], row["settled_at"]) == ("delivered", "provider receipt", NOW)
    assert (row["terminal_at"], row["terminal_error_class"], row["tell_owner"]) == (NOW, None, False)
    (decision,) = row["decisions"]
    assert (decision["rule"], decision["verdict"]) == ("provider receipt", "delivered")
    certainty = await rows.database.fetchval("select certainty from messenger.delivery_attempts")
    assert certainty == "uncertain", "what the attempt knew at its time stays as it was"


async def test_a_delivery_that_would_be_sent_again_after_a_loss_need_not_be(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("awaiting_retry")
    await rows.attempt(delivery, "not_sent", number=1)
    await rows.attempt(delivery, "uncertain", number=2)
    assert (await intake.record("sms", receipt(delivery_id=delivery))).settled
    assert (await rows.of(delivery))["status"] == "delivered"


@pytest.mark.parametrize("status", ["pending", "in_progress", "awaiting_retry", "failed", "dead_lettered", "delivered"])
async def test_what_was_not_uncertain_is_not_overruled(rows: Rows, intake: ReceiptIntake, status: str) -> None:
    delivery = await rows.delivery(status)
    await rows.attempt(delivery, "not_sent")
    assert not (await intake.record("sms", receipt(delivery_id=delivery))).settled
    row = await rows.of(delivery)
    assert (row["status"], row["settled_by"], row["decisions"]) == (status, None, [])


async def test_that_the_first_part_arrived_does_not_settle_the_second(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("uncertain")
    await rows.sent(delivery, "first", part=1)
    assert not (await intake.record("sms", receipt(delivery_id=delivery, part=1))).settled
    assert (await rows.of(delivery))["status"] == "uncertain"
    assert (await intake.record("sms", receipt(delivery_id=delivery, part=2))).settled


async def test_a_receipt_that_overtakes_its_attempt_is_remembered(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("in_progress")
    await intake.record("sms", receipt(delivery_id=delivery))
    await _left_uncertain(rows, delivery)
    async with rows.database.transaction() as connection:
        assert await intake.settle_reported(connection, delivery)
    assert (await rows.of(delivery))["status"] == "delivered"


async def test_without_such_a_receipt_it_stays_uncertain(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("in_progress")
    await rows.sent(delivery, "first", part=1)
    await intake.record("sms", receipt(delivery_id=delivery, part=1))
    await intake.record("sms", receipt("bounced", delivery_id=delivery, part=2))
    await _left_uncertain(rows, delivery)
    async with rows.database.transaction() as connection:
        assert not await intake.settle_reported(connection, delivery)
    assert (await rows.of(delivery))["status"] == "uncertain"


async def _left_uncertain(rows: Rows, delivery: UUID) -> None:
    await rows.database.execute("update messenger.delivery_requests set status = 'uncertain' where id = $1", delivery)


# --- bounced ---------------------------------------------------------------------------------------------------------


async def test_a_permanent_bounce_suppresses_the_recipient(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery(channel="email", target="ann@example.org")
    await rows.sent(delivery, "<a@b>")
    bounce = receipt("bounced", provider_delivery_id="<a@b>", permanent=True, reason="5.1.1 no such user")
    outcome = await intake.record("email", bounce)
    assert outcome.suppressed
    (rule,) = await rows.rules()
    assert (rule["channel"], rule["target"], rule["rule"]) == ("email", "ann@example.org", "suppressed")
    assert (rule["decided_by"], rule["reason"], rule["since"]) == ("provider", "5.1.1 no such user", NOW)
    row = await rows.of(delivery)
    assert row["status"] == "delivered", "it was handed over; that it came back stands beside it"
    assert row["decisions"][0]["verdict"] == "suppressed"
    assert {kept["receipt_type"] for kept in await rows.receipts()} == {"sent", "bounced"}
    again = await intake.record("email", bounce)
    assert (again.repeated, again.suppressed) == (True, False)
    assert len((await rows.of(delivery))["decisions"]) == 1


async def test_a_passing_bounce_suppresses_nobody_until_it_is_permanent(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery()
    assert not (await intake.record("sms", receipt("bounced", delivery_id=delivery, reason="full"))).suppressed
    assert await rows.rules() == []
    final = await intake.record("sms", receipt("bounced", delivery_id=delivery, permanent=True, reason="gone"))
    assert (final.repeated, final.suppressed) == (False, True)
    (kept,) = await rows.receipts()
    assert (kept["metadata"]["permanent"], kept["metadata"]["reason"]) == (True, "gone")
    late = await intake.record("sms", receipt("bounced", delivery_id=delivery, reason="full"))
    assert late.repeated
    assert (await rows.receipts())[0]["metadata"]["reason"] == "gone"


async def test_a_persons_rule_is_not_overwritten(rows: Rows, intake: ReceiptIntake) -> None:
    await rows.database.execute(
        "insert into messenger.recipient_rules (channel, target, rule, moved_to, reason, decided_by, since)"
        " values ('sms', '+1555', 'moved', '+2', 'new number', 'operator', now())"
    )
    delivery = await rows.delivery()
    assert not (await intake.record("sms", receipt("bounced", delivery_id=delivery, permanent=True))).suppressed
    assert [(rule["rule"], rule["moved_to"]) for rule in await rows.rules()] == [("moved", "+2")]


async def test_an_uncertain_delivery_that_came_back_for_good_has_failed(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("uncertain")
    outcome = await intake.record("sms", receipt("bounced", delivery_id=delivery, permanent=True))
    assert (outcome.settled, outcome.suppressed) == (True, True)
    row = await rows.of(delivery)
    assert (row["status"], row["terminal_error_class"], row["terminal_retryable"]) == (
        "failed",
        "target_unavailable",
        False,
    )


async def test_an_uncertain_delivery_with_a_passing_bounce_stays_uncertain(rows: Rows, intake: ReceiptIntake) -> None:
    delivery = await rows.delivery("uncertain")
    assert not (await intake.record("sms", receipt("bounced", delivery_id=delivery))).settled
    assert (await intake.record("sms", receipt("delivered", delivery_id=delivery))).settled
