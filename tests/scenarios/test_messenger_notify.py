"""What Messenger makes of a `notify.v1`: validation, targets, presentation and the answer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.contracts.notify import NotifyResponse
from butlers.contracts.route import RouteResponse
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    attempts,
    call,
    deliver,
    execute,
    fault,
    lineage,
    mails,
    refusal,
    route,
    rows,
    stored,
    wish,
)
from tests.scenarios.shared_system import running, system
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

OWNER_MAIL = "owner@butlers.example"

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


@pytest.mark.scenario("M1-002")
async def test_a_notify_request_travels_in_the_context_of_a_route_and_comes_back_as_its_result(
    running: RunningSystem,
) -> None:
    envelope = route(running, wish("take your pill"))
    raw = await execute(running, envelope)
    response = RouteResponse.parse(raw)
    assert response.status == "ok"
    assert response.request_context is not None
    assert str(response.request_context.request_id) == envelope["request_context"]["request_id"]
    notify = NotifyResponse.parse(raw["result"]["notify_response"])
    assert notify.status == "ok"
    assert await running.answers() == ["[health] take your pill"]

    missing: dict[str, Any]
    for missing in ({"notify_request": None}, {"notify_request": "text"}, {"notify_request": []}):
        error = await refusal(running, wish(), **missing)
        assert [f["field"] for f in error["fields"]] == ["input.context.notify_request"]
    bare = route(running, wish())
    del bare["input"]["context"]
    assert (await execute(running, bare))["error"]["class"] == "validation_error"


@pytest.mark.scenario("M1-017")
async def test_version_origin_intent_channel_and_message_are_mandatory(running: RunningSystem) -> None:
    good = wish("hello")
    for version in ("notify.v2", "notify.v0", "route.v1", 1, None):
        error = await refusal(running, good | {"schema_version": version})
        assert "schema_version" in _fields(error)
    for field in ("schema_version", "origin_butler", "delivery"):
        broken = {key: value for key, value in good.items() if key != field}
        assert field in _fields(await refusal(running, broken, authenticated_origin="health"))
    for field in ("intent", "channel", "message"):
        delivery = {key: value for key, value in good["delivery"].items() if key != field}
        assert f"delivery.{field}" in _fields(await refusal(running, good | {"delivery": delivery}))
    for field, value in (("intent", "shout"), ("channel", "fax"), ("message", " \n "), ("message", 5)):
        delivery = good["delivery"] | {field: value}
        assert f"delivery.{field}" in _fields(await refusal(running, good | {"delivery": delivery}))
    assert "delivery.channel" in _fields(await refusal(running, wish(channel="sms", recipient="+1")))
    assert "surprise" in _fields(await refusal(running, good | {"surprise": 1}))
    assert await running.answers() == []


async def test_every_wrong_field_is_named_at_once_and_no_value_is_echoed(running: RunningSystem) -> None:
    broken = wish("fine", intent="zebrafish-intent", channel="zebrafish-channel", priority="zebrafish-priority")
    error = await refusal(running, broken)
    assert set(_fields(error)) == {"delivery.intent", "delivery.channel", "priority"}
    assert "zebrafish" not in str(error)


@pytest.mark.scenario("M1-018")
async def test_a_reply_needs_its_whole_lineage(running: RunningSystem) -> None:
    needed = ("request_id", "source_channel", "source_endpoint_identity", "source_sender_identity")
    for name in (*needed, "source_thread_identity"):
        context = lineage(running, **{name: None})
        error = await refusal(running, wish(intent="reply", request_context=context))
        assert f"request_context.{name}" in error["message"]
    error = await refusal(running, wish(intent="reply"))
    assert all(f"request_context.{name}" in error["message"] for name in needed)
    assert await running.answers() == []

    # Mail goes back to the person: it needs no thread.
    mail = lineage(running, source_channel="email", source_sender_identity=OWNER_MAIL, source_thread_identity=None)
    answer = await deliver(running, wish("so it is", intent="reply", channel="email", request_context=mail))
    assert answer["status"] == "ok"
    assert [m["recipients"][0]["address"] for m in await mails(running)] == [OWNER_MAIL]


@pytest.mark.scenario("M1-019")
async def test_contact_id_resolves_the_primary_contact_info_for_the_channel(running: RunningSystem) -> None:
    anna = await _contact(running, "Anna")
    await _info(running, anna, "telegram", "2001", primary=None, age_days=3)
    await _info(running, anna, "telegram", "2002", primary=True, age_days=1)
    await _info(running, anna, "email", "anna@butlers.example", primary=False, age_days=9)
    ben = await _contact(running, "Ben")
    await _info(running, ben, "telegram", "3002", primary=False, age_days=1)
    await _info(running, ben, "telegram", "3001", primary=False, age_days=5)

    # The contact goes before an explicit recipient; without a primary entry the oldest counts.
    await deliver(running, wish("for Anna", contact_id=str(anna), recipient="9999"))
    await deliver(running, wish("for Ben", contact_id=str(ben)))
    assert [row["target_identity"] for row in await rows(running)] == ["2002", "3001"]
    assert await running.answers(2002) == ["[health] for Anna"]
    assert await running.answers(3001) == ["[health] for Ben"]
    assert await running.answers(9999) == []


@pytest.mark.scenario("M1-020")
async def test_an_explicit_recipient_is_used_as_is(running: RunningSystem) -> None:
    await deliver(running, wish("to a chat", recipient="777"))
    await deliver(running, wish("to a mailbox", channel="email", recipient=OWNER_MAIL))
    assert await running.answers(777) == ["[health] to a chat"]
    assert [m["recipients"][0]["address"] for m in await mails(running)] == [OWNER_MAIL]
    assert [row["target_identity"] for row in await rows(running)] == ["777", OWNER_MAIL]


@pytest.mark.scenario("M1-021")
async def test_neither_contact_nor_recipient_means_the_owner(running: RunningSystem) -> None:
    await deliver(running, wish("good morning"))
    await deliver(running, wish("good morning", channel="email"))
    assert await running.answers() == ["[health] good morning"]
    assert [m["recipients"][0]["address"] for m in await mails(running)] == [OWNER_MAIL]


@pytest.mark.scenario("M1-051")
async def test_without_a_target_nothing_is_sent_to_anybody(running: RunningSystem) -> None:
    await deliver(running, wish("I know you", recipient="4001"))
    await running.database.execute("update shared.contacts set is_owner = false where is_owner")
    for channel in ("telegram", "email"):
        error = await refusal(running, wish("to whom?", channel=channel))
        assert _fields(error) == ["delivery.recipient"]
    assert "delivery.recipient" in _fields(await refusal(running, wish("to whom?", recipient="  ")))
    assert _fields(await refusal(running, wish("to whom?", contact_id=str(uuid4())))) == ["contact_id"]
    assert await running.answers() == []
    assert await running.answers(4001) == ["[health] I know you"]
    assert await mails(running) == []
    await running.database.execute(
        "update shared.contacts set is_owner = true where name = $1", running.settings.owner_name
    )


@pytest.mark.scenario("M1-023")
async def test_a_reply_goes_where_its_request_came_from(running: RunningSystem) -> None:
    context = lineage(running, source_sender_identity="50", source_thread_identity="51")
    await deliver(running, wish("in the conversation", intent="reply", request_context=context))
    assert await running.answers(51) == ["[health] in the conversation"]

    agreeing = wish("again", intent="reply", request_context=context, recipient=" 51 ")
    assert (await deliver(running, agreeing))["status"] == "ok"
    for recipient in ("50", "52"):
        astray = wish("astray", intent="reply", request_context=context, recipient=recipient)
        assert _fields(await refusal(running, astray)) == ["delivery.recipient"]
    elsewhere = wish("by mail", intent="reply", channel="email", request_context=context)
    assert _fields(await refusal(running, elsewhere)) == ["delivery.channel"]
    assert await running.answers(50) == await running.answers(52) == []
    assert await mails(running) == []


async def test_a_reply_quotes_the_message_it_answers(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        posted = await running.says("what is my weight?")
        await running.until(running.answers)
        answer = next(line for line in await running.transcript() if line["from"] == "bot")
        assert answer["reply_to"] == posted["message_id"]


@pytest.mark.scenario("M1-024")
async def test_the_origin_is_visible_once(running: RunningSystem) -> None:
    await deliver(running, wish("plain"))
    await deliver(running, wish("[health] marked already"))
    await deliver(running, wish("[travel] not me"))
    assert await running.answers() == [
        "[health] plain",
        "[health] marked already",
        "[health] [travel] not me",
    ]
    for subject in ("Your pills", None, "Re: [health] Your pills", "  ", "two\r\nBcc: x@evil.example"):
        mail = wish("body", channel="email", **({"subject": subject} if subject and subject.strip() else {}))
        await deliver(running, mail)
    accepted = await mails(running)
    assert [mail["subject"] for mail in accepted] == [
        "[health] Your pills",
        "[health] Message",
        "Re: [health] Your pills",
        "[health] Message",
        "[health] two  Bcc: x@evil.example",
    ]
    assert {mail["text"] for mail in accepted} == {"body"}


@pytest.mark.scenario("M1-025")
async def test_the_answer_echoes_the_request_and_carries_a_delivery_id_or_an_error(running: RunningSystem) -> None:
    context = lineage(running)
    answer = await deliver(running, wish("well", request_context=context))
    assert answer["schema_version"] == "notify_response.v1"
    assert answer["request_context"] == {"request_id": context["request_id"]}
    assert (answer["status"], answer["delivery"]["channel"]) == ("ok", "telegram")
    assert "error" not in answer
    (row,) = await rows(running)
    assert answer["delivery"]["delivery_id"] == str(row["id"])
    assert answer["delivery"]["provider_delivery_id"] == str((await running.transcript())[0]["message_id"])
    assert "request_id" not in (await deliver(running, wish("proactive")))["request_context"]

    await running.control("POST", "/users/77/block")
    failed = await deliver(running, wish("badly", recipient="77"))
    assert failed["status"] == "error"
    assert failed["error"]["class"] == "target_unavailable"
    assert failed["error"]["retryable"] is False
    assert failed["error"]["message"]
    assert failed["delivery"]["status"] == "failed"


@pytest.mark.scenario("M1-046")
async def test_origin_butler_is_verified_against_the_authenticated_caller(running: RunningSystem) -> None:
    # Switchboard's door: the bearer token says who asks.
    lie = wish("I am health", origin_butler="health")
    for caller in ("finance", "operator", None):
        response = await call(running, "switchboard", "notify.dispatch", lie, caller=caller)
        assert (response["status"], response["error"]["class"]) == ("error", "validation_error")
        assert response["error"]["retryable"] is False
    # Messenger's door: what Switchboard authenticated must be what the payload says.
    assert _fields(await refusal(running, lie, authenticated_origin="finance")) == ["origin_butler"]
    assert _fields(await refusal(running, lie, authenticated_origin=None)) == ["origin_butler"]
    assert _fields(await refusal(running, lie, authenticated_origin=["health"])) == ["origin_butler"]
    assert await running.answers() == []

    truth = await call(running, "switchboard", "notify.dispatch", lie, caller="health")
    assert truth["status"] == "ok"
    assert await running.answers() == ["[health] I am health"]


async def test_not_after_in_the_past_expires_and_nothing_is_sent(running: RunningSystem) -> None:
    past = (running.clock.now() - timedelta(seconds=1)).isoformat()
    answer = await deliver(running, wish("too late", not_after=past))
    assert (answer["status"], answer["delivery"]["status"]) == ("error", "expired")
    assert answer["error"]["retryable"] is False
    assert await running.answers() == []
    assert await attempts(running) == []

    # A retry that could only come too late is not waited for.
    await fault(running, "too_many_requests", retry_after=30)
    soon = (running.clock.now() + timedelta(seconds=10)).isoformat()
    answer = await deliver(running, wish("soon too late", not_after=soon))
    assert answer["delivery"]["status"] == "expired"
    assert await running.answers() == []


async def test_the_audit_rows_join_by_request_and_delivery(running: RunningSystem) -> None:
    context = lineage(running)
    await deliver(running, wish("kept", request_context=context))
    (row,) = await rows(running)
    (attempt,) = await attempts(running)
    assert str(row["request_id"]) == context["request_id"]
    assert (row["origin_butler"], row["channel"], row["intent"]) == ("health", "telegram", "send")
    assert (row["target_identity"], row["status"]) == (str(OWNER_CHAT_ID), "delivered")
    assert row["created_at"] <= attempt["started_at"] <= attempt["completed_at"] <= row["terminal_at"]
    assert (attempt["outcome"], attempt["certainty"], attempt["attempt_number"]) == ("sent", "sent", 1)
    receipt = await running.database.fetchrow("select * from messenger.delivery_receipts")
    assert receipt is not None
    assert receipt["delivery_id"] == row["id"] == attempt["delivery_id"]
    traced = await call(running, "messenger", "trace", {"request_id": context["request_id"]})
    assert traced["deliveries"][0]["receipts"][0]["provider_delivery_id"] == receipt["provider_delivery_id"]
    assert (await stored(running))["delivery_requests"] == 1


def _fields(error: dict[str, Any]) -> list[str]:
    return [field["field"] for field in error["fields"]]


async def _contact(running: RunningSystem, name: str) -> UUID:
    contact, now = uuid4(), running.clock.now()
    await running.database.execute(
        "insert into shared.contacts (id, name, is_owner, created_at, updated_at) values ($1, $2, false, $3, $3)",
        contact,
        name,
        now,
    )
    return contact


async def _info(
    running: RunningSystem, contact: UUID, kind: str, value: str, *, primary: bool | None, age_days: int
) -> None:
    await running.database.execute(
        "insert into shared.contact_info (id, contact_id, type, value, is_primary, created_at)"
        " values ($1, $2, $3, $4, coalesce($5, false), $6)",
        uuid4(),
        contact,
        kind,
        value,
        primary,
        running.clock.now() - timedelta(days=age_days),
    )
