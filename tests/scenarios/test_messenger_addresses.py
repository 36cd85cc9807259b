"""One recipient, however somebody spells the address: rules, budgets, windows and order hold for all spellings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    call,
    deliver,
    lineage,
    mail_fault,
    mails,
    refusal,
    request_mailed,
    rows,
    sends,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

BOB = "bob@example.com"
SPELLINGS = ("Bob@Example.com", " bob@EXAMPLE.com ", '"bob"@example.com', BOB)


async def tool(running: RunningSystem, name: str, **arguments: Any) -> dict[str, Any]:
    return await call(running, "messenger", name, arguments)


def mail(recipient: str, **fields: Any) -> dict[str, Any]:
    return wish("hello", channel="email", recipient=recipient, subject="s", **fields)


async def recipients(running: RunningSystem) -> list[str]:
    return [one["address"] for sent in await mails(running) for one in sent["recipients"]]


async def budgets(running: RunningSystem) -> list[str]:
    query = "select name from messenger.rate_buckets where name like 'recipient:%' and layer is null order by name"
    return [row["name"] for row in await running.database.fetch(query)]


@pytest.mark.parametrize("written", SPELLINGS)
async def test_whoever_asked_not_to_be_written_to_is_left_alone_in_every_spelling(
    running: RunningSystem, written: str
) -> None:
    held = await tool(
        running, "messenger_recipient_suppress", channel="email", target="BOB@example.com", reason="asked"
    )
    assert held["recipient"]["target"] == BOB
    assert "suppressed" in (await refusal(running, mail(written)))["message"]
    preview = await tool(running, "messenger_dry_run", notify_request=mail(written))
    assert (preview["outcome"], preview["target_identity"]) == ("suppressed", BOB)
    assert await mails(running) == []
    # Let go in yet another spelling, he is written to as whoever writes spells him.
    assert "error" not in await tool(running, "messenger_recipient_release", channel="email", target="boB@example.COM")
    assert (await deliver(running, mail("Bob@Example.com")))["delivery"]["status"] == "delivered"
    assert await recipients(running) == ["Bob@Example.com"]


async def test_a_mail_carries_the_address_as_it_was_given(running: RunningSystem) -> None:
    answer = await deliver(running, mail("Bob@Example.com"))
    [sent] = await mails(running)
    raw = await running.http.get(f"{running.mail.control_url}/accepted/{sent['number']}/raw")
    assert "To: Bob@Example.com" in raw.text
    [row] = await rows(running)
    assert (row["target_identity"], row["address"]) == (BOB, "Bob@Example.com")
    status = await tool(running, "messenger_delivery_status", delivery_id=answer["delivery"]["delivery_id"])
    assert status["target_identity"] == BOB


async def test_a_second_attempt_carries_it_too(running: RunningSystem) -> None:
    await mail_fault(running, phase="rcpt", kind="reply", code=451, text="4.7.1 later")
    answer = await deliver(running, mail("Bob@Example.com"))
    [row] = await rows(running)
    assert (answer["delivery"]["status"], row["attempts"]) == ("delivered", 2)
    assert await recipients(running) == ["Bob@Example.com"]


async def test_spellings_share_a_budget_and_a_conversation(running: RunningSystem) -> None:
    for written in SPELLINGS:
        assert (await deliver(running, mail(written)))["delivery"]["status"] == "delivered"
    assert await budgets(running) == [f"recipient:email.bot:{BOB}"]
    for written in ("@Ann_Smith", "@ann_smith"):
        await deliver(running, wish("hello", recipient=written))
    assert {row["ordering_key"] for row in await rows(running) if row["channel"] == "telegram"} == {
        "telegram:@ann_smith"
    }


async def test_a_bounce_suppresses_every_spelling(running: RunningSystem) -> None:
    await mail_fault(running, phase="rcpt", kind="reply", code=550, text="5.1.1 no such user")
    failed = await deliver(running, mail("Gone@Example.com"))
    assert failed["delivery"]["status"] == "failed"
    listed = (await tool(running, "messenger_recipient_list"))["recipients"]
    assert [one["target"] for one in listed] == ["gone@example.com"]
    assert "suppressed" in (await refusal(running, mail("gone@EXAMPLE.com")))["message"]


async def test_an_answer_may_name_the_sender_in_another_spelling(running: RunningSystem) -> None:
    request_id = await request_mailed(
        running, "my weight is 80 kg", sender="Bob@Example.com", headers={"Message-ID": "<spelled@example.com>"}
    )
    await running.finished(request_id)
    context = lineage(running, request_id=request_id, source_channel="email", source_sender_identity="Bob@Example.com")
    reply = wish("noted", channel="email", intent="reply", recipient=BOB, request_context=context)
    answer = await deliver(running, reply)
    assert answer["status"] == "ok", answer
    assert "Bob@Example.com" in await recipients(running)
    other = wish("noted", channel="email", intent="reply", recipient="ben@example.com", request_context=context)
    assert "does not agree" in (await refusal(running, other))["message"]


async def test_the_same_wish_in_another_spelling_is_the_same_delivery(running: RunningSystem) -> None:
    context = lineage(running)
    for fields in ({"request_context": context}, {"idempotency_key": "k"}):
        first = await deliver(running, mail("Bob@Example.com", **fields))
        again = await deliver(running, mail('"bob"@example.com', **fields))
        assert again["delivery"]["delivery_id"] == first["delivery"]["delivery_id"]
    for written in ("61", " 061 "):
        await deliver(running, wish("hello", recipient=written, idempotency_key="k"))
    assert (len(await mails(running)), await sends(running)) == (2, 1)


async def test_rules_and_deliveries_of_before_are_brought_to_one_spelling(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, names=["messenger"]) as running:
        now = running.clock.now()
        await mail_fault(running, phase="rcpt", kind="reply", code=451, text="4.7.1 later", times=3)
        await deliver(running, mail("Carl@Example.com"))
        await running.stop()
        await _as_before(running)
        for target, rule, days in (
            ("Bob@Example.com", "suppressed", 9),
            ("bob@example.com", "moved", 1),
            ("Ann@example.com", "suppressed", 5),
            ("ANN@example.com", "suppressed", 2),
            ("carl@example.com", "suppressed", 3),
        ):
            await running.database.execute(
                "insert into messenger.recipient_rules (channel, target, rule, reason, decided_by, since)"
                " values ('email', $1, $2, $1, 'anna', $3)",
                target,
                rule,
                now - timedelta(days=days),
            )
        await running.start()
        query = "select target, rule, reason from messenger.recipient_rules order by target"
        assert [tuple(row.values()) for row in await running.database.fetch(query)] == [
            ("ann@example.com", "suppressed", "ANN@example.com"),
            (BOB, "suppressed", "Bob@Example.com"),
            ("carl@example.com", "suppressed", "carl@example.com"),
        ]
        for written in ("Bob@Example.com", "ann@Example.com", "Carl@example.com"):
            assert "suppressed" in (await refusal(running, mail(written)))["message"]
        [row] = await rows(running)
        assert (row["target_identity"], row["address"]) == ("carl@example.com", "Carl@Example.com")
        assert row["ordering_key"].startswith("email:carl@example.com:")


_NOTED = ("delivery_requests", "delivery_attempts", "delivery_receipts")


async def _as_before(running: RunningSystem) -> None:
    """The tables as they were when every spelling counted for itself."""
    for statement in (
        "update messenger.delivery_requests set target_identity = address,"
        " ordering_key = replace(ordering_key, target_identity, address)",
        "alter table messenger.delivery_requests drop column address",
        "drop index messenger.delivery_requests_of_action",
        # What came after the migration in question.
        "drop function messenger.admission_state",
        "drop function messenger.note_change cascade",
        *(f"alter table messenger.{name} drop column changed_in" for name in _NOTED),
        "drop table messenger.long_budget",
        "drop table messenger.mail_attempts",
        "alter table messenger.channel_states drop column stance_reason",
        "delete from messenger.schema_migrations where component = 'messenger' and version >= 4",
    ):
        await running.database.execute(statement)
