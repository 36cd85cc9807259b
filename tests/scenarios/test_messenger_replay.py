"""Sending again what had ended: dead letters replayed, doubts settled, and a person told (seed 000 "Dead Letter
Management", seed 001 section 5.1.2).
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    attempts,
    call,
    certainty,
    deliver,
    fault,
    lineage,
    mail_fault,
    mails,
    rows,
    sends,
    wish,
)
from tests.scenarios.messenger_time import (
    NO_BREAKER,
    advance,
    as_time_passes,
    later,
    running,
    standing_still,
    system,
    tool,
    tool_refused,
    with_status,
)
from tests.system import OWNER_CHAT_ID, RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

CHANGES = (NO_BREAKER,)
FRIEND = "friend@elsewhere.example"
CHAT = 61


async def dead_letter(running: RunningSystem, message: str = "again", **fields: Any) -> str:
    """A delivery that has used up its attempts; the id of its dead letter."""
    await fault(running, "error_5xx", times=3, chat_id=CHAT)
    await later(running, wish(message, **{"recipient": str(CHAT)} | fields))
    before = await running.database.fetchval("select count(*) from messenger.delivery_dead_letter")

    async def buried() -> str | None:
        query = "select id from messenger.delivery_dead_letter order by created_at desc, id desc limit 1"
        found = await running.database.fetchval("select count(*) from messenger.delivery_dead_letter") > before
        return str(await running.database.fetchval(query)) if found else None

    identity = await as_time_passes(running, buried)
    assert identity is not None
    return identity


async def done(running: RunningSystem, name: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers that waits for an outcome while time passes."""
    task = asyncio.create_task(call(running, "messenger", f"messenger_{name}", arguments))

    async def ended() -> bool:
        # The tool's patience passes as well, so the work gets a moment of its own between the steps.
        await asyncio.wait([task], timeout=0.1)
        return task.done()

    await as_time_passes(running, ended)
    answer = await task
    assert answer.get("status") != "error", answer
    return answer


async def letter_row(running: RunningSystem, dead_letter_id: str) -> dict[str, Any]:
    row = await running.database.fetchrow("select * from messenger.delivery_dead_letter where id = $1", dead_letter_id)
    assert row is not None
    return dict(row)


# --- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-008")
@pytest.mark.scenario("M0-021")
async def test_dead_letter_replay_and_its_lineage(running: RunningSystem) -> None:
    asked = wish("again", request_context=lineage(running), recipient=str(CHAT))
    letter = await dead_letter(running, "again", request_context=asked["request_context"])
    [original] = await rows(running)
    assert original["status"] == "dead_lettered"

    # The first replay fails as the original did, the second comes through.
    await fault(running, "error_5xx", times=3, chat_id=CHAT)
    task = asyncio.create_task(tool(running, "dead_letter_replay", dead_letter_id=letter))
    [pending] = await running.until(lambda: with_status(running, "pending"))
    key = original["idempotency_key"]
    assert (pending["idempotency_key"], pending["replay_of"]) == (f"{key}::replay-1", original["id"])
    assert (pending["attempts"], pending["request_id"]) == (0, original["request_id"])
    await as_time_passes(running, lambda: with_status(running, "dead_lettered", 2))
    first = await task
    assert (first["replay_count"], first["idempotency_key"]) == (1, f"{key}::replay-1")
    assert first["delivery_id"] == str(pending["id"])
    second = await done(running, "dead_letter_replay", dead_letter_id=letter)
    assert (second["status"], second["replay_count"], second["error"]) == ("delivered", 2, None)
    assert second["idempotency_key"] == f"{key}::replay-2"
    assert second["replay_of"] == str(original["id"])

    stored = await letter_row(running, letter)
    assert (stored["replay_count"], str(stored["last_replay_id"])) == (2, second["delivery_id"])
    made = await rows(running)
    assert [row["status"] for row in made] == ["dead_lettered", "dead_lettered", "delivered"]
    assert await running.answers(CHAT) == ["[health] again"]
    # The request itself is still answered by the original.
    repeat = await deliver(running, asked)
    assert repeat["delivery"]["delivery_id"] == str(original["id"])
    assert repeat["delivery"]["deduplicated"] is True
    assert len(await rows(running)) == 3


@pytest.mark.scenario("M0-021")
async def test_only_what_is_eligible_can_be_replayed(running: RunningSystem) -> None:
    discarded = await dead_letter(running)
    await tool(running, "dead_letter_discard", dead_letter_id=discarded, reason="no longer true")
    not_after = (running.clock.now() + timedelta(seconds=60)).isoformat()
    expired = await dead_letter(running, not_after=not_after)
    advance(running, 61)
    delivered = await dead_letter(running)
    assert (await done(running, "dead_letter_replay", dead_letter_id=delivered))["status"] == "delivered"
    before = await rows(running)
    for letter, reason in ((discarded, "discarded"), (expired, "expired"), (delivered, "already_delivered")):
        assert reason in await tool_refused(running, "dead_letter_replay", dead_letter_id=letter)
        shown = await tool(running, "dead_letter_inspect", dead_letter_id=letter)
        assert shown["replay_eligibility"]["reasons"] == [reason]
    assert "no such dead letter" in await tool_refused(running, "dead_letter_replay", dead_letter_id=str(uuid4()))
    assert await rows(running) == before
    assert await running.answers(CHAT) == ["[health] again"]


async def test_a_dead_letter_is_not_replayed_for_ever(running: RunningSystem) -> None:
    letter = await dead_letter(running)
    for count in (1, 2, 3):
        await fault(running, "error_5xx", times=3, chat_id=CHAT)
        answer = await done(running, "dead_letter_replay", dead_letter_id=letter)
        assert answer["replay_count"] == count
        await as_time_passes(running, partial(with_status, running, "dead_lettered", count + 1))
    assert "replay_limit_reached" in await tool_refused(running, "dead_letter_replay", dead_letter_id=letter)
    assert await sends(running) == 12


async def test_a_replay_under_way_is_not_replayed_again(running: RunningSystem) -> None:
    letter = await dead_letter(running)
    asked = [call(running, "messenger", "messenger_dead_letter_replay", {"dead_letter_id": letter}) for _ in range(5)]
    replays = asyncio.gather(*asked)
    await as_time_passes(running, lambda: with_status(running, "delivered"))
    answers = await replays
    assert [answer["status"] for answer in answers].count("delivered") == 1
    assert await running.answers(CHAT) == ["[health] again"]


@pytest.mark.scenario("M1-010")
async def test_dead_letters_are_listed_inspected_replayed_and_discarded(running: RunningSystem) -> None:
    first, second = await dead_letter(running, "one"), await dead_letter(running, "two")
    listed = (await tool(running, "dead_letter_list", channel="telegram", origin_butler="health"))["dead_letters"]
    assert [row["id"] for row in listed] == [second, first]
    for row in listed:
        assert (row["quarantine_reason"], row["error_class"]) == ("retries_exhausted", "target_unavailable")
        assert (row["total_attempts"], row["replay_eligible"]) == (3, True)
    shown = await tool(running, "dead_letter_inspect", dead_letter_id=first)
    assert shown["original_envelope"]["delivery"]["message"] == "one"
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["rejected"] * 3
    assert shown["replay_eligibility"] == {"eligible": True, "reasons": [], "replay_count": 0}

    replay = await done(running, "dead_letter_replay", dead_letter_id=first)
    assert replay["status"] == "delivered"
    await tool(running, "dead_letter_discard", dead_letter_id=second, reason="too late")
    assert [row["id"] for row in (await tool(running, "dead_letter_list"))["dead_letters"]] == [first]
    stored = await letter_row(running, second)
    assert (stored["discard_reason"], stored["discarded_by"]) == ("too late", "operator")
    assert await running.answers(CHAT) == ["[health] one"]


async def test_what_may_have_arrived_is_settled_before_it_is_replayed(running: RunningSystem) -> None:
    delivery = await in_doubt(running, wish("did it?", recipient=str(CHAT)), "drop_before")
    letter = (await tool(running, "dead_letter_quarantine", delivery_id=delivery, reason="later"))["dead_letter_id"]
    assert "uncertain_not_settled" in await tool_refused(running, "dead_letter_replay", dead_letter_id=letter)
    assert await running.answers(CHAT) == []


# --- settling --------------------------------------------------------------------------------------------------------


async def in_doubt(running: RunningSystem, notify: dict[str, Any], kind: str = "drop_after", **more: Any) -> str:
    """A delivery of which nobody knows whether it arrived."""
    await fault(running, kind, **more)
    answer = await deliver(running, notify)
    assert (answer["delivery"]["status"], answer["error"]["retryable"]) == ("uncertain", False)
    identity: str = answer["delivery"]["delivery_id"]
    return identity


async def test_somebody_saw_that_it_arrived(running: RunningSystem) -> None:
    delivery = await in_doubt(running, wish("seen", recipient=str(CHAT)))
    answer = await done(running, "delivery_settle", delivery_id=delivery, outcome="confirmed_sent")
    assert (answer["status"], answer["provider_delivery_id"]) == ("delivered", "confirmed by operator")
    [row] = await rows(running)
    assert (row["status"], row["settled_by"], row["terminal_error_class"]) == ("delivered", "operator", None)
    assert await running.answers(CHAT) == ["[health] seen"]
    assert await sends(running) == 1
    for outcome in ("confirmed_sent", "send_again"):
        why = await tool_refused(running, "delivery_settle", delivery_id=delivery, outcome=outcome)
        assert "is delivered, not uncertain" in why


async def test_somebody_saw_that_it_did_not_arrive(running: RunningSystem) -> None:
    delivery = await in_doubt(running, wish("not seen", recipient=str(CHAT)), "drop_before")
    assert await running.answers(CHAT) == []
    answer = await done(running, "delivery_settle", delivery_id=delivery, outcome="send_again")
    assert (answer["status"], answer["delivery_id"]) == ("delivered", delivery)
    [row] = await rows(running)
    assert (row["status"], row["settled_by"], row["attempts"]) == ("delivered", "operator", 2)
    assert [attempt["certainty"] for attempt in await attempts(running)] == ["uncertain", "sent"]
    assert await running.answers(CHAT) == ["[health] not seen"]


@pytest.mark.parametrize(("kind", "outcome"), [("drop_after", "confirmed_sent"), ("drop_before", "send_again")])
async def test_a_long_message_goes_on_where_the_doubt_was(running: RunningSystem, kind: str, outcome: str) -> None:
    parts = [letter * 3000 for letter in "abc"]
    delivery = await in_doubt(running, wish("\n\n".join(parts), recipient=str(CHAT)), kind, skip=1)
    arrived = ["a", "b"] if kind == "drop_after" else ["a"]
    assert [text.strip()[-1] for text in await running.answers(CHAT)] == arrived
    [attempt] = await attempts(running)
    assert attempt["provider_response"]["part"] == 2
    answer = await done(running, "delivery_settle", delivery_id=delivery, outcome=outcome)
    assert answer["status"] == "delivered"
    # Each part once, in order.
    assert [text.strip()[-1] for text in await running.answers(CHAT)] == ["a", "b", "c"]
    query = "select part from messenger.delivery_receipts where delivery_id = $1 order by part"
    assert [row["part"] for row in await running.database.fetch(query, delivery)] == [1, 2, 3]


# --- certainty policies ----------------------------------------------------------------------------------------------


def mail(message: str = "hello") -> dict[str, Any]:
    return wish(message, channel="email", recipient=FRIEND, subject="s")


async def test_mail_that_may_have_arrived_is_looked_for_first(running: RunningSystem) -> None:
    await mail_fault(running, phase="dot", kind="drop_after")
    await later(running, mail())
    await as_time_passes(running, lambda: with_status(running, "delivered"))
    first, second = await attempts(running)
    assert (first["certainty"], second["certainty"]) == ("uncertain", "sent")
    assert second["provider_response"] == {"found": True}
    assert len(await mails(running)) == 1


async def test_mail_that_cannot_be_looked_for_is_sent_again_as_the_same_mail(running: RunningSystem) -> None:
    await mail_fault(running, server="imap", command="CONNECT", kind="drop_before", times=None)
    await mail_fault(running, phase="dot", kind="drop_after")
    await later(running, mail())
    await as_time_passes(running, lambda: with_status(running, "delivered"))
    assert [attempt["certainty"] for attempt in await attempts(running)] == ["uncertain", "sent"]
    first, second = await mails(running)
    assert first["message_id"] == second["message_id"]
    [row] = await rows(running)
    assert any(d["rule"] == "certainty" and d["verdict"] == "resend" for d in row["decisions"])


@pytest.mark.parametrize("policy", ["never_duplicate", "ask"])
async def test_mail_may_be_treated_like_a_chat(tmp_path: Path, postgres_server: EmbeddedPostgres, policy: str) -> None:
    async with standing_still(tmp_path, postgres_server, certainty(email=policy)) as running:
        await mail_fault(running, phase="dot", kind="drop_after")
        answer = await deliver(running, mail())
        assert answer["delivery"]["status"] == "uncertain"
        advance(running, 3600)
        await deliver(running, wish("meanwhile"))
        assert len(await mails(running)) == 1
        settled = await done(
            running, "delivery_settle", delivery_id=answer["delivery"]["delivery_id"], outcome="confirmed_sent"
        )
        assert settled["status"] == "delivered"
        assert len(await mails(running)) == 1


async def test_a_chat_may_be_treated_like_mail(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with standing_still(tmp_path, postgres_server, certainty(telegram="never_lose")) as running:
        await fault(running, "drop_after")
        await later(running, wish("twice rather than never"))
        await as_time_passes(running, lambda: with_status(running, "delivered"))
        assert await running.answers() == ["[health] twice rather than never"] * 2


# --- the owner is told -----------------------------------------------------------------------------------------------


async def test_the_owner_is_told_once_about_all_that_is_in_doubt(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server, shipped_limits=True) as running:
        doubtful = [await in_doubt(running, wish("?", recipient=str(n)), chat_id=n) for n in (61, 62, 63)]
        await as_time_passes(running, running.answers)
        [notice] = await running.answers()
        assert notice.startswith("[messenger] 3 deliveries need you:")
        assert all(f"butlers deliveries settle {delivery} confirmed_sent" in notice for delivery in doubtful)
        # Nothing new: nothing more is said, however long it takes.
        for _ in range(5):
            advance(running, 60)
            await deliver(running, wish("meanwhile", recipient="64"))
        assert len(await running.answers()) == 1
        # Something new is said, and only that.
        another = await in_doubt(running, wish("?", recipient="65"), chat_id=65)
        await as_time_passes(running, lambda: _notices(running, 2))
        assert another in (await running.answers())[1]
        assert doubtful[0] not in (await running.answers())[1]


async def test_there_is_no_notice_about_a_notice(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with standing_still(tmp_path, postgres_server, shipped_limits=True) as running:
        await in_doubt(running, wish("?", recipient="61"), chat_id=61)
        await fault(running, "drop_after", chat_id=OWNER_CHAT_ID)
        await as_time_passes(running, lambda: with_status(running, "uncertain", 2))
        for _ in range(5):
            advance(running, 60)
            await deliver(running, wish("meanwhile", recipient="64"))
        assert len(await running.answers()) == 1
        notices = [row for row in await rows(running) if row["origin_butler"] == "messenger"]
        assert [row["status"] for row in notices] == ["uncertain"]


async def _notices(running: RunningSystem, count: int) -> bool:
    return len(await running.answers()) >= count
