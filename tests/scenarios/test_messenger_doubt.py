"""A doubt stays until it is resolved: nothing that may have arrived is sent beside itself, ends as if it had not, or is
forgotten (decisions 0005, 0007, 0043).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from butlers.roster import ButlerConfig
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import attempts, beside, call, deliver, fault, mail_fault, mails, rows, sends, wish
from tests.scenarios.messenger_time import (
    NO_BREAKER,
    advance,
    as_time_passes,
    ended_attempts,
    later,
    running,
    standing_still,
    system,
    tool,
    tool_refused,
    with_status,
)
from tests.scenarios.test_messenger_replay import CHAT, done, in_doubt, mail
from tests.system import RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

CHANGES = (NO_BREAKER,)


async def set_aside(running: RunningSystem, delivery_id: str) -> str:
    answer = await tool(running, "dead_letter_quarantine", delivery_id=delivery_id, reason="later")
    letter: str = answer["dead_letter_id"]
    return letter


async def obstacles(running: RunningSystem, letter: str) -> list[str]:
    reasons: list[str] = (await tool(running, "dead_letter_inspect", dead_letter_id=letter))["replay_eligibility"][
        "reasons"
    ]
    return reasons


async def the_row(running: RunningSystem) -> dict[str, Any]:
    [row] = await rows(running)
    return row


def within(running: RunningSystem, seconds: float) -> str:
    """The end of a message's time."""
    return (running.clock.now() + timedelta(seconds=seconds)).isoformat()


async def explained(running: RunningSystem, delivery_id: Any) -> str:
    return "\n".join((await tool(running, "delivery_why", delivery_id=str(delivery_id)))["lines"])


# --- never two at once -----------------------------------------------------------------------------------------------


async def test_what_goes_out_again_by_itself_is_not_replayed_beside_it(running: RunningSystem) -> None:
    delivery = await in_doubt(running, wish("once", recipient=str(CHAT)), "drop_before")
    letter = await set_aside(running, delivery)
    # On its way again, and not there yet: the answer of the provider takes its time.
    await fault(running, "too_many_requests", retry_after=30, chat_id=CHAT)
    settle = asyncio.create_task(
        call(running, "messenger", "messenger_delivery_settle", {"delivery_id": delivery, "outcome": "send_again"})
    )
    await as_time_passes(running, lambda: with_status(running, "awaiting_retry"))
    assert await obstacles(running, letter) == ["replay_in_progress"]
    assert "replay_in_progress" in await tool_refused(running, "dead_letter_replay", dead_letter_id=letter)
    await as_time_passes(running, lambda: with_status(running, "delivered"))
    await settle
    assert "already_delivered" in await tool_refused(running, "dead_letter_replay", dead_letter_id=letter)
    assert await running.answers(CHAT) == ["[health] once"]
    assert len(await rows(running)) == 1


async def test_the_letters_of_one_family_are_replayed_one_at_a_time(running: RunningSystem) -> None:
    """A dead letter and its dead replay are two letters about one message."""
    first = await set_aside(running, await in_doubt(running, wish("once", recipient=str(CHAT)), "drop_before"))
    original = await the_row(running)
    await fault(running, "error_5xx", times=6, chat_id=CHAT)
    await done(running, "delivery_settle", delivery_id=str(original["id"]), outcome="send_again")
    await as_time_passes(running, lambda: with_status(running, "dead_lettered"))
    await done(running, "dead_letter_replay", dead_letter_id=first)
    await as_time_passes(running, lambda: with_status(running, "dead_lettered", 2))
    query = "select id from messenger.delivery_dead_letter where delivery_id <> $1"
    second = str(await running.database.fetchval(query, original["id"]))
    asked = [
        call(running, "messenger", "messenger_dead_letter_replay", {"dead_letter_id": letter})
        for letter in (first, second, first, second)
    ]
    replays = asyncio.gather(*asked)
    await as_time_passes(running, lambda: with_status(running, "delivered"))
    assert [answer["status"] for answer in await replays].count("error") == 3
    assert await running.answers(CHAT) == ["[health] once"]


async def test_a_second_doubt_is_a_doubt_again(running: RunningSystem) -> None:
    delivery = await in_doubt(running, wish("doubt", recipient=str(CHAT)), "drop_before")
    await fault(running, "drop_after", chat_id=CHAT)
    again = await done(running, "delivery_settle", delivery_id=delivery, outcome="send_again")
    assert again["status"] == "uncertain"
    row = await the_row(running)
    assert (row["settled_at"], row["settled_by"], row["tell_owner"]) == (None, None, True)
    letter = await set_aside(running, delivery)
    assert await obstacles(running, letter) == ["uncertain_not_settled"]
    assert "uncertain_not_settled" in await tool_refused(running, "dead_letter_replay", dead_letter_id=letter)
    assert f"settle {delivery} confirmed_sent" in await explained(running, delivery)
    # It can be settled as the first one could.
    said = await done(running, "delivery_settle", delivery_id=delivery, outcome="confirmed_sent")
    assert said["status"] == "delivered"
    verdicts = [line["verdict"] for line in (await the_row(running))["decisions"] if line["rule"] == "settle"]
    assert verdicts == ["send_again", "confirmed_sent"]
    assert await running.answers(CHAT) == ["[health] doubt"]


# --- what was confirmed has arrived ----------------------------------------------------------------------------------


async def test_what_somebody_saw_arrive_does_not_expire_afterwards(running: RunningSystem) -> None:
    delivery = await in_doubt(running, wish("seen", recipient=str(CHAT), not_after=within(running, 60)))
    advance(running, 120)
    said = await tool(running, "delivery_settle", delivery_id=delivery, outcome="confirmed_sent")
    assert (said["status"], said["provider_delivery_id"], said["error"]) == (
        "delivered",
        "confirmed by operator",
        None,
    )
    row = await the_row(running)
    assert (row["status"], row["attempts"], row["settled_by"]) == ("delivered", 1, "operator")
    assert row["terminal_at"] is not None
    advance(running, 5)
    await deliver(running, wish("meanwhile", recipient="64"))
    assert (await rows(running))[0]["status"] == "delivered"
    assert await running.answers(CHAT) == ["[health] seen"]


async def test_what_somebody_saw_arrive_needs_no_admission(running: RunningSystem) -> None:
    """Neither a full budget nor a closed way can undo it."""
    delivery = await in_doubt(running, wish("seen", recipient=str(CHAT)))
    await running.database.execute(
        "update messenger.channel_states set state = 'open', probe_at = $1 where name = 'telegram.bot'",
        running.clock.now() + timedelta(days=1),
    )
    said = await tool(running, "delivery_settle", delivery_id=delivery, outcome="confirmed_sent")
    await running.database.execute("update messenger.channel_states set state = 'closed', probe_at = null")
    assert said["status"] == "delivered"
    assert await sends(running) == 1


async def test_a_process_that_ended_in_the_last_part_leaves_nothing_to_send(running: RunningSystem) -> None:
    """The evidence of a dead worker names the part, not how many there are."""
    delivery = await in_doubt(running, wish("seen", recipient=str(CHAT)))
    await running.database.execute(
        "update messenger.delivery_attempts set provider_response = $1", {"phase": "process ended", "part": 1}
    )
    said = await tool(running, "delivery_settle", delivery_id=delivery, outcome="confirmed_sent")
    assert (said["status"], (await the_row(running))["attempts"]) == ("delivered", 1)


LONG = "\n\n".join(letter * 3000 for letter in "abc")


async def test_the_rest_that_came_too_late_does_not_deny_what_was_sent(running: RunningSystem) -> None:
    limited = wish(LONG, recipient=str(CHAT), not_after=within(running, 60))
    delivery = await in_doubt(running, limited, "drop_after", skip=1)
    advance(running, 120)
    said = await done(running, "delivery_settle", delivery_id=delivery, outcome="confirmed_sent")
    assert said["status"] == "expired"
    assert said["error"]["message"] == "it was too late to send the rest; already sent: part 1, 2"
    assert "What was certainly sent of it: part 1, 2." in await explained(running, delivery)
    assert len(await running.answers(CHAT)) == 2


async def test_the_rest_for_somebody_who_may_not_be_written_to_any_more(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server) as running:
        short = await in_doubt(running, wish("seen", recipient=str(CHAT)))
        longer = await in_doubt(running, wish(LONG, recipient=str(CHAT)), "drop_after", skip=1)
        await running.stop()
        async with beside(replace(running, roster=denying(running, f"telegram:{CHAT}")), ["messenger"]) as now:
            assert (await confirmed(now, short))["status"] == "delivered"
            said = await confirmed(now, longer)
            assert said["status"] == "failed"
            assert said["error"]["message"] == "the recipient is on the deny list; already sent: part 1, 2"


def denying(running: RunningSystem, pattern: str) -> dict[str, ButlerConfig]:
    config = running.roster["messenger"]
    recipients = config.delivery.recipients.model_copy(update={"deny": [pattern]})
    delivery = config.delivery.model_copy(update={"recipients": recipients})
    return {**running.roster, "messenger": config.model_copy(update={"delivery": delivery})}


async def confirmed(running: RunningSystem, delivery: str) -> dict[str, Any]:
    return await done(running, "delivery_settle", delivery_id=delivery, outcome="confirmed_sent")


# --- a doubt outlives its attempt ------------------------------------------------------------------------------------


async def test_what_may_have_arrived_does_not_expire(running: RunningSystem) -> None:
    await mail_fault(running, phase="dot", kind="drop_after")
    await later(running, mail() | {"not_after": within(running, 200)})
    await ended_attempts(running, 1)
    assert (await the_row(running))["status"] == "awaiting_retry"
    # Nobody takes it in time, as when its channel is in trouble.
    advance(running, 300)
    [row] = await as_time_passes(running, lambda: with_status(running, "uncertain"))
    assert (row["tell_owner"], row["terminal_error_class"], row["terminal_retryable"]) == (True, "timeout", False)
    assert (row["decisions"][-1]["rule"], row["decisions"][-1]["verdict"]) == ("expiry", "uncertain")
    found = (await tool(running, "delivery_search", status="uncertain"))["deliveries"]
    assert [delivery["id"] for delivery in found] == [str(row["id"])]
    levels = (await tool(running, "service_levels"))["uncertain"]
    assert (levels["uncertain"], levels["unsettled"]) == (1, 1)
    assert (await confirmed(running, str(row["id"])))["status"] == "delivered"
    assert len(await mails(running)) == 1


async def test_what_certainly_did_not_arrive_expires_as_before(running: RunningSystem) -> None:
    await fault(running, "too_many_requests", retry_after=30, chat_id=CHAT)
    await later(running, wish("late", recipient=str(CHAT), not_after=within(running, 60)))
    await ended_attempts(running, 1)
    advance(running, 90)
    [row] = await as_time_passes(running, lambda: with_status(running, "expired"))
    assert (row["tell_owner"], row["terminal_error_message"]) == (False, "it was too late to send it")


async def test_a_refusal_does_not_undo_a_doubt(running: RunningSystem) -> None:
    await mail_fault(running, server="imap", command="CONNECT", kind="drop_before", times=None)
    await mail_fault(running, phase="dot", kind="drop_after")
    await later(running, mail())
    await ended_attempts(running, 1)
    await mail_fault(running, phase="mail", kind="reply", code=550, text="5.7.1 go away")
    [row] = await as_time_passes(running, lambda: with_status(running, "uncertain"))
    assert [attempt["certainty"] for attempt in await attempts(running)] == ["uncertain", "not_sent"]
    assert (row["tell_owner"], row["terminal_retryable"]) == (True, False)
    assert "550 5.7.1" in row["terminal_error_message"]
    assert len(await mails(running)) == 1
    said = await tool(running, "delivery_settle", delivery_id=str(row["id"]), outcome="confirmed_sent")
    assert said["status"] == "delivered"


async def test_a_refusal_after_somebody_said_send_it_again_is_a_refusal(running: RunningSystem) -> None:
    delivery = await in_doubt(running, wish("again", recipient=str(CHAT)), "drop_before")
    await running.control("POST", f"/users/{CHAT}/block")
    said = await done(running, "delivery_settle", delivery_id=delivery, outcome="send_again")
    await running.control("POST", f"/users/{CHAT}/unblock")
    assert said["status"] == "failed"
