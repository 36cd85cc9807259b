"""The record of deliveries: what was asked, every attempt, every receipt and every dead letter, joined by lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import call, deliver, fault, lineage, mail_fault, mails, quick, wish
from tests.scenarios.shared_system import running, system
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

FRIEND = "friend@elsewhere.example"
LINEAGE = ("origin_butler", "channel", "intent", "target_identity")

_AUDIT = """
select request.id as delivery_id, request.request_id, request.origin_butler, request.channel, request.intent,
       request.target_identity, request.identity_scope, request.status, request.idempotency_key, request.envelope,
       request.created_at, request.updated_at, request.terminal_at, request.terminal_error_class,
       request.terminal_error_message,
       (select json_agg(attempt order by attempt.attempt_number) from messenger.delivery_attempts as attempt
        where attempt.delivery_id = request.id) as attempts,
       (select json_agg(receipt order by receipt.part) from messenger.delivery_receipts as receipt
        where receipt.delivery_id = request.id) as receipts,
       (select json_agg(letter) from messenger.delivery_dead_letter as letter
        where letter.delivery_id = request.id) as letters
from messenger.delivery_requests as request
where request.request_id = $1
"""


async def audited(running: RunningSystem, request_id: str) -> dict[str, Any]:
    """Everything on record about the one delivery of a request, joined by request and delivery id."""
    [row] = [dict(found) for found in await running.database.fetch(_AUDIT, UUID(request_id))]
    return row


async def answered(running: RunningSystem, message: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """An answer to a request of its own; what Messenger said, and the request."""
    context = lineage(running, **fields.pop("context", {}))
    answer = await deliver(running, wish(message, intent="reply", request_context=context, **fields))
    return answer, context["request_id"]


@pytest.mark.scenario("M1-044")
async def test_a_delivery_leaves_request_attempts_and_receipt_with_its_lineage(running: RunningSystem) -> None:
    await fault(running, "error_5xx", status=502)
    answer, request_id = await answered(running, "second time", origin_butler="travel")
    row = await audited(running, request_id)
    assert str(row["delivery_id"]) == answer["delivery"]["delivery_id"]
    assert tuple(row[name] for name in LINEAGE) == ("travel", "telegram", "reply", str(OWNER_CHAT_ID))
    assert (row["identity_scope"], row["status"], row["terminal_error_class"]) == ("bot", "delivered", None)
    assert row["envelope"]["schema_version"] == "notify.v1"
    assert row["created_at"] <= row["terminal_at"] <= row["updated_at"]
    first, second = row["attempts"]
    assert (first["outcome"], first["error_class"], first["retryable"]) == ("rejected", "target_unavailable", True)
    assert (second["outcome"], second["certainty"], second["error_class"]) == ("sent", "sent", None)
    for attempt in (first, second):
        assert attempt["started_at"] <= attempt["completed_at"]
        assert attempt["latency_ms"] >= 0
    [receipt] = row["receipts"]
    [line] = [line for line in await running.transcript() if line["from"] == "bot"]
    assert (receipt["receipt_type"], receipt["provider_delivery_id"]) == ("sent", str(line["message_id"]))
    assert row["letters"] is None


@pytest.mark.scenario("M1-044")
async def test_a_dead_letter_carries_the_lineage_and_what_a_replay_needs(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=3, status=502)
    answer, request_id = await answered(running, "never", origin_butler="finance")
    assert answer["delivery"]["status"] == "dead_lettered"
    row = await audited(running, request_id)
    [letter] = row["letters"]
    assert (letter["request_id"], letter["delivery_id"]) == (request_id, answer["delivery"]["delivery_id"])
    assert tuple(letter[name] for name in LINEAGE) == tuple(row[name] for name in LINEAGE)
    assert (letter["quarantine_reason"], letter["error_class"]) == ("retries_exhausted", "target_unavailable")
    assert letter["error_summary"] == row["terminal_error_message"] == answer["error"]["message"]
    assert (letter["total_attempts"], len(letter["all_attempt_outcomes"])) == (3, 3)
    assert letter["first_attempt_at"] <= letter["last_attempt_at"] <= letter["created_at"]
    assert letter["original_envelope"] == row["envelope"]
    assert (letter["replay_eligible"], letter["replay_count"], letter["last_replay_id"]) == (True, 0, None)
    assert row["receipts"] is None
    # A replay is on record as what it is, for the same request.
    replay = await call(running, "messenger", "messenger_dead_letter_replay", {"dead_letter_id": letter["id"]})
    assert replay["status"] == "delivered"
    both = [dict(found) for found in await running.database.fetch(_AUDIT + "order by id", UUID(request_id))]
    assert [found["status"] for found in both] == ["dead_lettered", "delivered"]
    assert [found["origin_butler"] for found in both] == ["finance", "finance"]
    assert both[1]["idempotency_key"] == f"{both[0]['idempotency_key']}::replay-1"
    assert both[0]["letters"][0]["last_replay_id"] == str(both[1]["delivery_id"])


@pytest.mark.scenario("M1-044")
async def test_a_failure_is_on_record_with_its_class_and_summary(running: RunningSystem) -> None:
    await mail_fault(running, phase="rcpt", kind="reply", code=550)
    context = {"source_channel": "email", "source_sender_identity": FRIEND, "source_thread_identity": "<a@b.example>"}
    answer, request_id = await answered(running, "no such mailbox", channel="email", context=context)
    row = await audited(running, request_id)
    assert (row["status"], row["target_identity"]) == ("failed", FRIEND)
    assert (row["terminal_error_class"], row["terminal_error_message"]) == (
        answer["error"]["class"],
        answer["error"]["message"],
    )
    [attempt] = row["attempts"]
    assert (attempt["outcome"], attempt["error_class"]) == ("rejected", row["terminal_error_class"])
    assert attempt["error_message"]
    assert row["terminal_at"] is not None
    # A person sets it aside: the same lineage, another reason.
    given = {"delivery_id": str(row["delivery_id"]), "reason": "look at it"}
    await call(running, "messenger", "messenger_dead_letter_quarantine", given)
    [letter] = (await audited(running, request_id))["letters"]
    assert tuple(letter[name] for name in LINEAGE) == tuple(row[name] for name in LINEAGE)
    assert (letter["quarantine_reason"], letter["request_id"]) == ("manually_quarantined", request_id)
    assert await mails(running) == []


@pytest.mark.scenario("M1-044")
async def test_the_record_does_not_live_in_the_process(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server, roster_dir=quick(tmp_path)) as running:
        _, request_id = await answered(running, "before")
        before = await audited(running, request_id)
        await running.restart()
        assert await audited(running, request_id) == before
        given = {"request_id": request_id}
        trace = await call(running, "messenger", "messenger_delivery_trace", given)
        [delivery] = trace["deliveries"]
        assert (delivery["id"], delivery["attempts"][0]["outcome"]) == (str(before["delivery_id"]), "sent")
        assert delivery["receipts"][0]["provider_delivery_id"] == before["receipts"][0]["provider_delivery_id"]
