"""Only Messenger touches the outside; Switchboard hands it every intent, and the lineage stays with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from butlers.daemon.settings import shipped_roster
from butlers.roster import load_roster
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    call,
    deliver,
    execute,
    lineage,
    mails,
    route,
    rows,
    sends,
    stored,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def dispatched(running: RunningSystem, butler: str, notify: Mapping[str, Any]) -> dict[str, Any]:
    """A butler hands its wish to Switchboard, with its own token."""
    return await call(running, "switchboard", "notify.dispatch", dict(notify), caller=butler)


@pytest.mark.scenario("M1-001")
async def test_switchboard_hands_every_intent_to_messenger_and_only_messenger_sends(running: RunningSystem) -> None:
    answer = await dispatched(running, "health", wish("take your pills", recipient="81", idempotency_key="pills"))
    assert (answer["schema_version"], answer["status"]) == ("notify_response.v1", "ok")
    [row] = await rows(running)
    assert (str(row["id"]), row["origin_butler"]) == (answer["delivery"]["delivery_id"], "health")
    assert await running.answers(81) == ["[health] take your pills"]
    # No other schema holds deliveries: nobody else has anything to send with.
    schemas = await running.database.fetch(
        "select table_schema from information_schema.tables where table_name like 'delivery%'"
        " and not (table_schema = 'pipeline' and table_name = 'delivery_stats')"  # counts, made from these
    )
    assert {found["table_schema"] for found in schemas} == {"messenger"}


@pytest.mark.scenario("M1-001")
async def test_without_messenger_nothing_leaves(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    names = [name for name in load_roster(shipped_roster()) if name != "messenger"]
    async with running_system(tmp_path, postgres_server, names=names) as running:
        for notify in (wish("by chat", recipient="80"), wish("by mail", channel="email", subject="s")):
            answer = await dispatched(running, "health", notify)
            assert answer["status"] == "error"
            assert answer["error"]["class"] == "target_unavailable"
        assert (await sends(running), await mails(running)) == (0, [])


@pytest.mark.scenario("M1-001")
async def test_a_whole_request_leaves_by_messenger(running: RunningSystem) -> None:
    await running.says("I paid the electricity bill")
    said = await running.until(running.answers)
    [row] = [row for row in await rows(running) if row["intent"] == "reply"]
    assert (row["origin_butler"], said) == ("finance", [row["message"]])
    # Every call that Telegram saw belongs to a delivery on record.
    report = await running.control("GET", "/requests")
    spoken = [r for r in report["requests"] if r["method"] in ("sendMessage", "setMessageReaction")]
    assert len(spoken) <= sum(row["attempts"] for row in await rows(running))


@pytest.mark.scenario("M1-001")
async def test_switchboard_refuses_to_register_another_butler_with_channel_tools(running: RunningSystem) -> None:
    registry = "select * from switchboard.butler_registry order by name"
    journal = "select count(*) from switchboard.butler_eligibility_log"
    before = [dict(row) for row in await running.database.fetch(registry)]
    logged = await running.database.fetchval(journal)
    card = {
        "name": "health",
        "endpoint_url": running.url("health", "/mcp"),
        "transport": "mcp",
        "description": "wants to speak for itself",
    }
    for tool in (
        "telegram_send_message",
        "telegram_reply_to_message",
        "email_send_message",
        "email_reply_to_thread",
        "sms_send_message",
        "user_telegram_send_message",
        "bot_email_reply_to_thread",
    ):
        offered = card | {"capabilities": ["route.execute", tool]}
        refused = await call(running, "switchboard", "register_butler", offered, caller="health")
        assert (refused["error"]["class"], refused["error"]["retryable"]) == ("validation_error", False)
        assert tool in refused["error"]["message"]
    stranger = card | {"name": "stranger", "capabilities": ["telegram_send_message"]}
    assert "error" in await call(running, "switchboard", "register_butler", stranger)
    now = [dict(row) for row in await running.database.fetch(registry)]
    # Signs of life go on; nothing else moved.
    assert [{**row, "last_seen_at": None} for row in now] == [{**row, "last_seen_at": None} for row in before]
    assert await running.database.fetchval(journal) == logged
    # Names that only look alike are nobody's business.
    harmless = card | {"capabilities": ["route.execute", "email_search_inbox", "telegraph_send"]}
    answer = await call(running, "switchboard", "register_butler", harmless, caller="health")
    assert answer["status"] == "ok"
    await call(running, "switchboard", "register_butler", running.butler("health").card(), caller="health")


@pytest.mark.scenario("M0-004")
async def test_lineage_is_preserved_from_the_intent_to_the_record(running: RunningSystem) -> None:
    context = lineage(running)
    reply = wish("so it is", intent="reply", request_context=context, origin_butler="travel")
    answer = await deliver(running, reply)
    assert answer["request_context"]["request_id"] == context["request_id"]
    send = await deliver(running, wish("unasked", recipient="82"))
    answered, sent = await rows(running)
    assert (answered["origin_butler"], str(answered["request_id"])) == ("travel", context["request_id"])
    assert (answered["intent"], answered["target_identity"]) == ("reply", str(OWNER_CHAT_ID))
    kept = answered["envelope"]["request_context"]
    for name in ("source_channel", "source_endpoint_identity", "source_sender_identity", "source_thread_identity"):
        assert kept[name] == context[name]
    assert answered["envelope"]["delivery"]["message"] == "so it is"
    assert (sent["intent"], sent["request_id"], sent["target_identity"]) == ("send", None, "82")
    assert send["request_context"].get("request_id") is None


@pytest.mark.scenario("M0-004")
async def test_the_same_request_gets_the_same_payload(running: RunningSystem) -> None:
    notify = wish("the same", recipient="83", idempotency_key="same")
    envelope = route(running, notify)
    first, second = await execute(running, envelope), await execute(running, envelope)
    told, repeated = first["result"]["notify_response"], second["result"]["notify_response"]
    assert repeated == told | {"delivery": told["delivery"] | {"deduplicated": True}}
    assert second == first | {"timing": second["timing"], "result": second["result"]}
    assert await deliver(running, notify) == repeated
    # And the same mistake the same error.
    wrong = wish("x", channel="pigeon", recipient="83")
    errors = [(await execute(running, route(running, wrong)))["error"] for _ in range(2)]
    assert errors[0] == errors[1]
    assert (errors[0]["class"], errors[0]["retryable"]) == ("validation_error", False)
    assert errors[0]["fields"][0]["field"] == "delivery.channel"
    # What failed once has failed: no second try, the same words.
    await running.control("POST", "/users/84/block")
    failing = wish("unwanted", recipient="84", idempotency_key="unwanted")
    one, two = await deliver(running, failing), await deliver(running, failing)
    assert one["error"] == two["error"]
    assert one["delivery"]["delivery_id"] == two["delivery"]["delivery_id"]
    assert (await running.answers(83), await running.answers(84)) == (["[health] the same"], [])
    assert await sends(running) == 2


@pytest.mark.scenario("M0-004")
async def test_messenger_cannot_ask_itself_to_speak(running: RunningSystem) -> None:
    async with running.mcp("messenger", caller="messenger") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert not names & {"notify", "send_message", "remind"}
    before = await stored(running)
    for name in ("notify", "send_message", "remind"):
        answer = await call(running, "messenger", name, {"message": "again"}, caller="messenger")
        assert "no such tool" in answer["error"]["message"]
    assert await stored(running) == before
    # It sends by itself: one wish is one call of the provider and one row.
    await deliver(running, wish("once", recipient="85"))
    assert (await running.answers(85), await sends(running), len(await rows(running))) == (["[health] once"], 1, 1)
