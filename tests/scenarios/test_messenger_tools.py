"""Messenger's operational tools at its MCP door, over deliveries that were really made (seeds 000 and 001)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    attempts,
    call,
    deliver,
    execute,
    fault,
    lineage,
    mail_fault,
    mails,
    official_call,
    route,
    rows,
    sends,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures

FRIEND = "friend@elsewhere.example"


async def tool(running: RunningSystem, name: str, **arguments: Any) -> dict[str, Any]:
    answer = await call(running, "messenger", f"messenger_{name}", arguments)
    assert answer.get("status") != "error" or "error" not in answer, answer
    return answer


async def refused(running: RunningSystem, name: str, *, caller: str = "operator", **arguments: Any) -> str:
    answer = await call(running, "messenger", f"messenger_{name}", arguments, caller=caller)
    assert (answer["status"], answer["error"]["class"]) == ("error", "validation_error"), answer
    message: str = answer["error"]["message"]
    return message


async def delivered(running: RunningSystem, message: str = "hello", **fields: Any) -> str:
    answer = await deliver(running, wish(message, **fields))
    assert answer["delivery"]["status"] == "delivered", answer
    identity: str = answer["delivery"]["delivery_id"]
    return identity


async def failed(running: RunningSystem, chat: str, **fields: Any) -> str:
    """A delivery to somebody who has blocked the bot."""
    await running.control("POST", f"/users/{chat}/block")
    answer = await deliver(running, wish("unwanted", recipient=chat, **fields))
    assert answer["delivery"]["status"] == "failed", answer
    identity: str = answer["delivery"]["delivery_id"]
    return identity


async def refused_mail(running: RunningSystem, recipient: str, **fields: Any) -> str:
    """A mail whose recipient the server does not know."""
    await mail_fault(running, phase="rcpt", kind="reply", code=550)
    answer = await deliver(running, wish("mail", channel="email", recipient=recipient, subject="s", **fields))
    assert answer["delivery"]["status"] == "failed", answer
    identity: str = answer["delivery"]["delivery_id"]
    return identity


async def set_aside(running: RunningSystem, delivery_id: str) -> str:
    answer = await tool(running, "dead_letter_quarantine", delivery_id=delivery_id, reason="look at it later")
    identity: str = answer["dead_letter_id"]
    return identity


# --- tracking --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-023")
@pytest.mark.scenario("M1-006")
async def test_delivery_status_lookup(running: RunningSystem) -> None:
    await fault(running, "error_5xx", status=502)
    delivery = await delivered(running, "second time")
    status = await official_call(running, "messenger", "messenger_delivery_status", {"delivery_id": delivery})
    [row] = await rows(running)
    assert (status["delivery_id"], status["status"]) == (str(row["id"]), "delivered")
    for name in ("created_at", "updated_at", "terminal_at"):
        assert status[name] == row[name].isoformat().replace("+00:00", "Z")
    latest = status["latest_attempt"]
    assert (latest["attempt_number"], latest["outcome"], latest["error_class"]) == (2, "sent", None)
    assert latest["latency_ms"] == (await attempts(running))[1]["latency_ms"]
    # The id is the one under which the message stands in the chat.
    [line] = [line for line in await running.transcript() if line["from"] == "bot"]
    assert str(line["message_id"]) in status["provider_delivery_id"].split(":")
    assert "no such delivery" in await refused(running, "delivery_status", delivery_id=str(uuid4()))


async def test_the_status_of_a_failed_delivery_names_the_error_and_no_provider_id(running: RunningSystem) -> None:
    status = await tool(running, "delivery_status", delivery_id=await failed(running, "71"))
    assert (status["status"], status["provider_delivery_id"]) == ("failed", None)
    latest = status["latest_attempt"]
    assert (latest["outcome"], latest["certainty"], latest["retryable"]) == ("rejected", "not_sent", False)
    assert (latest["error_class"], status["terminal_error_class"]) == ("target_unavailable", "target_unavailable")


@pytest.mark.scenario("M0-024")
@pytest.mark.scenario("M1-007")
async def test_delivery_search(running: RunningSystem) -> None:
    first = await delivered(running, "one")
    second = await delivered(running, "two", origin_butler="finance", recipient="72")
    answer = lineage(running)
    third = await delivered(running, "three", intent="reply", request_context=answer)
    fourth = await delivered(running, "four", channel="email", recipient=FRIEND, subject="s")
    fifth = await failed(running, "73")

    async def found(**filters: Any) -> list[str]:
        return [row["id"] for row in (await tool(running, "delivery_search", **filters))["deliveries"]]

    assert await found() == [fifth, fourth, third, second, first]
    assert await found(origin_butler="finance") == [second]
    assert await found(channel="email") == [fourth]
    assert await found(intent="reply") == [third]
    assert await found(status="failed") == [fifth]
    assert await found(request_id=answer["request_id"]) == [third]
    made = {str(row["id"]): row["created_at"] for row in await rows(running)}
    assert await found(since=made[third].isoformat()) == [fifth, fourth, third]
    assert await found(since=made[second].isoformat(), until=made[fourth].isoformat()) == [third, second]
    # A page at a time, while more comes in.
    page = await tool(running, "delivery_search", limit=2)
    assert [row["id"] for row in page["deliveries"]] == [fifth, fourth]
    await delivered(running, "six")
    rest = await tool(running, "delivery_search", limit=10, cursor=page["next_cursor"])
    assert ([row["id"] for row in rest["deliveries"]], rest["next_cursor"]) == ([third, second, first], None)
    assert "limit" in await refused(running, "delivery_search", limit=501)


@pytest.mark.scenario("M0-025")
@pytest.mark.scenario("M1-008")
async def test_attempt_log(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=2, status=502)
    delivery = await delivered(running, "third time")
    log = await tool(running, "delivery_attempts", delivery_id=delivery)
    assert log["delivery_id"] == delivery
    stored = await attempts(running, delivery)
    assert [a["attempt_number"] for a in log["attempts"]] == [a["attempt_number"] for a in stored] == [1, 2, 3]
    for told, row in zip(log["attempts"], sorted(stored, key=lambda a: a["attempt_number"]), strict=True):
        for name in ("latency_ms", "outcome", "certainty", "error_class", "retryable", "provider_response"):
            assert told[name] == row[name], name
    assert [a["outcome"] for a in log["attempts"]] == ["rejected", "rejected", "sent"]
    assert [a["error_class"] for a in log["attempts"]] == ["target_unavailable", "target_unavailable", None]
    assert [a["retryable"] for a in log["attempts"]][:2] == [True, True]
    assert log["attempts"][2]["provider_response"]
    assert await sends(running) == 3


@pytest.mark.scenario("M0-026")
@pytest.mark.scenario("M1-009")
async def test_end_to_end_trace(running: RunningSystem) -> None:
    await running.says("I paid the electricity bill")
    await running.until(running.answers)
    [request] = {str(row["request_id"]) for row in await rows(running)}
    await running.finished(request)
    trace = await tool(running, "delivery_trace", request_id=request)
    assert trace["request_id"] == request
    assert trace["ingress"]["request_context"]["source_channel"] == "telegram"
    assert trace["ingress"]["normalized_text"] == "I paid the electricity bill"
    assert [segment["butler"] for segment in trace["routing"]["decision"]["segments"]] == ["finance"]
    assert [dispatch["success"] for dispatch in trace["routing"]["dispatches"]] == [True]
    [delivery] = [d for d in trace["deliveries"] if d["intent"] != "react"]
    assert (delivery["origin_butler"], delivery["status"]) == ("finance", "delivered")
    assert delivery["envelope"]["schema_version"] == "notify.v1"
    assert [attempt["outcome"] for attempt in delivery["attempts"]] == ["sent"]
    [receipt] = delivery["receipts"]
    [line] = [line for line in await running.transcript() if line["from"] == "bot"]
    assert str(line["message_id"]) in receipt["provider_delivery_id"].split(":")


async def test_a_trace_of_what_did_not_come_in_says_that_the_way_in_is_unknown(running: RunningSystem) -> None:
    answer = lineage(running)
    await delivered(running, "hello", intent="reply", request_context=answer)
    trace = await tool(running, "delivery_trace", request_id=answer["request_id"])
    assert trace["ingress"].keys() == trace["routing"].keys() == {"unknown"}
    assert len(trace["deliveries"]) == 1
    assert "no such request" in await refused(running, "delivery_trace", request_id=lineage(running)["request_id"])


# --- dead letters ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-019")
async def test_dead_letter_listing(running: RunningSystem) -> None:
    first = await set_aside(running, await failed(running, "74"))
    second = await set_aside(running, await failed(running, "75", origin_butler="finance"))
    third = await set_aside(running, await refused_mail(running, FRIEND))
    everything = (await tool(running, "dead_letter_list"))["dead_letters"]
    assert [letter["id"] for letter in everything] == [third, second, first]
    for letter in everything:
        assert (letter["quarantine_reason"], letter["total_attempts"]) == ("manually_quarantined", 1)
        assert isinstance(letter["replay_eligible"], bool)
    assert everything[2]["error_class"] == "target_unavailable"

    async def found(**filters: Any) -> list[str]:
        return [row["id"] for row in (await tool(running, "dead_letter_list", **filters))["dead_letters"]]

    assert await found(channel="email") == [third]
    assert await found(origin_butler="finance") == [second]
    classes = {letter["id"]: letter["error_class"] for letter in everything}
    for error_class in set(classes.values()):
        assert await found(error_class=error_class) == [i for i in (third, second, first) if classes[i] == error_class]
    page = await tool(running, "dead_letter_list", limit=2)
    assert [row["id"] for row in page["dead_letters"]] == [third, second]
    assert await found(cursor=page["next_cursor"]) == [first]


async def test_a_delivery_that_uses_up_its_attempts_is_listed(running: RunningSystem) -> None:
    await fault(running, "error_5xx", times=3, status=502)
    answer = await deliver(running, wish("never"))
    assert answer["delivery"]["status"] == "dead_lettered"
    [letter] = (await tool(running, "dead_letter_list"))["dead_letters"]
    assert (letter["delivery_id"], letter["quarantine_reason"]) == (
        answer["delivery"]["delivery_id"],
        "retries_exhausted",
    )
    assert (letter["total_attempts"], letter["error_class"]) == (3, "target_unavailable")
    assert letter["replay_eligible"]


@pytest.mark.scenario("M0-020")
async def test_dead_letter_inspection(running: RunningSystem) -> None:
    delivery = await failed(running, "76")
    letter = await set_aside(running, delivery)
    shown = await tool(running, "dead_letter_inspect", dead_letter_id=letter)
    [row] = await rows(running)
    assert (shown["dead_letter_id"], shown["delivery_id"], row["status"]) == (letter, delivery, "dead_lettered")
    assert shown["original_envelope"] == row["envelope"]
    assert shown["original_envelope"]["delivery"]["message"] == "unwanted"
    [tried] = shown["attempts"]
    assert (tried["outcome"], tried["certainty"]) == ("rejected", "not_sent")
    assert [outcome["attempt_number"] for outcome in shown["all_attempt_outcomes"]] == [1]
    assert shown["replay_eligibility"] == {"eligible": True, "reasons": [], "replay_count": 0}
    assert "no such dead letter" in await refused(running, "dead_letter_inspect", dead_letter_id=str(uuid4()))


async def test_what_may_have_arrived_is_not_eligible(running: RunningSystem) -> None:
    await fault(running, "drop_after")
    answer = await deliver(running, wish("did it arrive?"))
    assert answer["delivery"]["status"] == "uncertain"
    letter = await set_aside(running, answer["delivery"]["delivery_id"])
    shown = await tool(running, "dead_letter_inspect", dead_letter_id=letter)
    assert shown["replay_eligibility"]["reasons"] == ["uncertain_not_settled"]
    assert await running.answers() == ["[health] did it arrive?"]


async def test_the_replay_heeds_what_the_inspection_says(running: RunningSystem) -> None:
    letter = await set_aside(running, await failed(running, "80"))
    await running.control("POST", "/users/80/unblock")
    await tool(running, "recipient_release", channel="telegram", target="80")
    await fault(running, "drop_after")
    replay = await tool(running, "dead_letter_replay", dead_letter_id=letter)
    assert replay["status"] == "uncertain"
    shown = await tool(running, "dead_letter_inspect", dead_letter_id=letter)
    assert shown["replay_eligibility"]["reasons"] == ["uncertain_not_settled"]
    # The first replay may have arrived (it did), so there is no second one before somebody has looked.
    assert "uncertain_not_settled" in await refused(running, "dead_letter_replay", dead_letter_id=letter)
    assert await running.answers(80) == ["[health] unwanted"]


@pytest.mark.scenario("M0-022")
async def test_dead_letter_discard(running: RunningSystem) -> None:
    letter = await set_aside(running, await failed(running, "78"))
    kept = await set_aside(running, await failed(running, "79"))
    answer = await tool(running, "dead_letter_discard", dead_letter_id=letter, reason="he has moved away")
    assert (answer["status"], answer["reason"]) == ("discarded", "he has moved away")
    listed = (await tool(running, "dead_letter_list"))["dead_letters"]
    assert [row["id"] for row in listed] == [kept]
    assert len((await tool(running, "dead_letter_list", include_discarded=True))["dead_letters"]) == 2
    shown = await tool(running, "dead_letter_inspect", dead_letter_id=letter)
    assert (shown["discard_reason"], shown["discarded_by"]) == ("he has moved away", "operator")
    assert shown["replay_eligibility"]["reasons"] == ["discarded"]
    stored = await running.database.fetchrow("select * from messenger.delivery_dead_letter where id = $1", letter)
    assert stored is not None
    assert (stored["discard_reason"], stored["replay_eligible"]) == ("he has moved away", False)
    assert "may not call" in await refused(
        running, "dead_letter_discard", caller="health", dead_letter_id=kept, reason="x"
    )


# --- health ----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-029")
@pytest.mark.scenario("M1-015")
async def test_queue_depth_monitoring(running: RunningSystem) -> None:
    assert (await tool(running, "queue_depth"))["total"] == 0
    await fault(running, "delay", seconds=2, chat_id=OWNER_CHAT_ID)
    await mail_fault(running, phase="rcpt", kind="delay", seconds=2)
    slow = asyncio.create_task(deliver(running, wish("slow")))

    async def in_call() -> int:
        depth = await tool(running, "queue_depth")
        phase: int = depth["by_phase"]["in_provider_call"]
        return phase

    await running.until(in_call)
    behind = asyncio.create_task(deliver(running, wish("behind it")))  # the same conversation: it has to wait
    mail = asyncio.create_task(deliver(running, wish("mail", channel="email", recipient=FRIEND, subject="s")))

    async def three() -> dict[str, Any]:
        depth = await tool(running, "queue_depth")
        return depth if depth["by_phase"]["in_provider_call"] == 2 and depth["total"] == 3 else {}

    depth = await running.until(three)
    assert depth["by_status"] == {"pending": 1, "in_progress": 2, "awaiting_retry": 0}
    assert (depth["by_phase"]["admitted"], depth["by_phase"]["awaiting_retry"]) == (1, 0)
    assert {name: counts["total"] for name, counts in depth["by_channel"].items()} == {"email": 1, "telegram": 2}
    assert 0 < depth["oldest_age_s"] < 60
    telegram = await tool(running, "queue_depth", channel="telegram")
    assert (telegram["total"], telegram["by_channel"].keys()) == (2, {"telegram"})
    for answer in await asyncio.gather(slow, behind, mail):
        assert answer["delivery"]["status"] == "delivered"
    assert (await tool(running, "queue_depth"))["total"] == 0
    assert await running.answers() == ["[health] slow", "[health] behind it"]
    assert len(await mails(running)) == 1


async def test_what_waits_for_its_next_attempt_is_counted_beside_what_is_in_flight(running: RunningSystem) -> None:
    await fault(running, "too_many_requests", retry_after=2)
    waiting = asyncio.create_task(deliver(running, wish("patience")))

    async def parked() -> dict[str, Any]:
        depth = await tool(running, "queue_depth")
        return depth if depth["by_status"]["awaiting_retry"] else {}

    depth = await running.until(parked)
    assert (depth["total"], depth["by_phase"]["awaiting_retry"]) == (0, 1)
    assert (await waiting)["delivery"]["status"] == "delivered"


@pytest.mark.scenario("M0-030")
@pytest.mark.scenario("M1-016")
async def test_delivery_statistics(running: RunningSystem) -> None:
    nothing = await tool(running, "delivery_stats")
    assert (nothing["total"], nothing["success_rate"], nothing["p50_ms"]) == (0, None, None)
    began = running.clock.now()
    for number in range(3):
        await delivered(running, f"message {number}", recipient=f"8{number}")
    await fault(running, "error_5xx", status=502)
    await delivered(running, "second time", origin_butler="finance")
    await failed(running, "85")
    await delivered(running, "mail", channel="email", recipient=FRIEND, subject="s")
    stats = await tool(running, "delivery_stats", since=began.isoformat(), group_by="channel")
    assert (stats["total"], stats["delivered"], stats["failed"], stats["dead_lettered"]) == (6, 5, 1, 0)
    assert (stats["success_rate"], stats["retry_rate"], stats["dead_letter_rate"]) == (
        pytest.approx(5 / 6, abs=1e-6),
        pytest.approx(1 / 6, abs=1e-6),
        0.0,
    )
    took = {
        channel: sorted(
            (row["terminal_at"] - row["created_at"]) / timedelta(milliseconds=1)
            for row in await rows(running)
            if row["status"] == "delivered" and row["channel"] == channel
        )
        for channel in ("telegram", "email")
    }
    everything = sorted(took["telegram"] + took["email"])
    assert stats["p50_ms"] == pytest.approx(everything[2], abs=0.01)  # the third of five
    assert stats["p95_ms"] == pytest.approx(everything[3] + 0.8 * (everything[4] - everything[3]), abs=0.01)
    groups = {group["key"]: group for group in stats["groups"]}
    assert {key: group["total"] for key, group in groups.items()} == {"telegram": 5, "email": 1}
    assert groups["email"]["p95_ms"] == pytest.approx(took["email"][0], abs=0.01)
    for group_by, wanted in (
        ("origin_butler", {"health": 5, "finance": 1}),
        ("intent", {"send": 6}),
        ("outcome", {"delivered": 5, "failed": 1}),
        ("error_class", {None: 5, "target_unavailable": 1}),
    ):
        stats = await tool(running, "delivery_stats", since=began.isoformat(), group_by=group_by)
        assert {group["key"]: group["total"] for group in stats["groups"]} == wanted
    before = await tool(running, "delivery_stats", until=began.isoformat())
    assert (before["total"], before["success_rate"]) == (0, None)
    assert len(await mails(running)) == 1


@pytest.mark.scenario("M1-014")
async def test_rate_limit_status_with_consumed_total_reset_and_anti_flood_state(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, shipped_limits=True) as running:
        whole = await tool(running, "rate_limit_status")
        assert (whole["global"]["consumed"], whole["global"]["total"], whole["global"]["resets_at"]) == (0, 60, None)
        assert whole["recipients"]["active"] is False
        for number in range(10):
            await delivered(running, f"message {number}", recipient="90")
        limits = await tool(running, "rate_limit_status", channel="telegram", identity_scope="bot")
        telegram = limits["channels"]["telegram.bot"]
        assert (telegram["total"], limits["channels"].keys()) == (30.0, {"telegram.bot"})
        for layer in (limits["global"], telegram):
            assert 0 < layer["consumed"] <= 10
            assert layer["consumed"] + layer["remaining"] == pytest.approx(layer["total"], abs=0.01)
            assert layer["resets_at"] > running.clock.now().isoformat().replace("+00:00", "Z")
        recipients = limits["recipients"]
        assert (recipients["active"], recipients["at_limit"], recipients["total"]) == (True, 1, 10.0)
        assert [row["target"] for row in recipients["worst"]] == ["90"]
        refusal = await execute(running, route(running, wish("one too many", recipient="90")))
        assert refusal["error"]["class"] == "overload_rejected"
        assert len(await running.answers(90)) == 10


@pytest.mark.scenario("M1-013")
async def test_circuit_status_with_trip_reason_time_and_recovery_timeout(running: RunningSystem) -> None:
    closed = (await tool(running, "circuit_status"))["channels"]
    assert {name: circuit["state"] for name, circuit in closed.items()} == {
        "telegram.bot": "closed",
        "email.bot": "closed",
    }
    await fault(running, "error_5xx", times=5, status=502)
    tasks = [asyncio.create_task(deliver(running, wish("into the void", recipient=chat))) for chat in ("95", "96")]

    async def tripped() -> dict[str, Any]:
        seen: dict[str, Any] = (await tool(running, "circuit_status", channel="telegram"))["channels"]["telegram.bot"]
        return seen if seen["state"] != "closed" else {}

    circuit = await running.until(tripped)
    for task in tasks:  # what is left waits for the circuit, and nobody waits for that here
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (circuit["state"], circuit["recovery_timeout_s"]) == ("open", 60.0)
    assert "502" in circuit["trip_reason"] or "Bad Gateway" in circuit["trip_reason"]
    assert circuit["tripped_at"] <= running.clock.now().isoformat().replace("+00:00", "Z")
    assert 0 < circuit["retry_after_s"] <= 60


# --- why -------------------------------------------------------------------------------------------------------------


async def test_why_tells_each_attempt_and_what_can_be_done(running: RunningSystem) -> None:
    await fault(running, "drop_after")
    answer = await deliver(running, wish("did it arrive?"))
    delivery = answer["delivery"]["delivery_id"]
    why = await tool(running, "delivery_why", delivery_id=delivery)
    assert why["status"] == "uncertain"
    text = "\n".join(why["lines"])
    assert why["lines"][0].startswith("health asked at ")
    assert "Attempt 1" in text
    assert "it may or may not have arrived" in text
    assert f"butlers deliveries settle {delivery} confirmed_sent" in text
