"""What people and operators do about messages: explain, mute, acknowledge, cancel, replay, digests, templates, mail."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butlers.storage.embedded import EmbeddedPostgres
from tests.redis_server import RedisServer
from tests.scenarios.messenger_door import fault, mails
from tests.scenarios.outbound_door import (
    AheadClock,
    attempts,
    cli,
    cli_json,
    get,
    person,
    post,
    prefer,
    put_forward,
    running,
    send,
    system,
    until_state,
    work,
)
from tests.scenarios.test_outbound_messages import _address, _chat
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running", "system"]  # fixtures


async def test_an_explanation_says_what_is_then_done_and_sends_nothing(running: RunningSystem) -> None:
    chat = _chat()
    asleep = await person(running, "Asleep", telegram=chat, email=_address())
    out = await person(running, "Out", telegram=_chat())
    now = running.clock.now()
    start, end = now - timedelta(hours=1), now + timedelta(hours=2)
    window = {"start_time": f"{start:%H:%M}", "end_time": f"{end:%H:%M}", "timezone": "Asia/Kathmandu"}
    local = {"start_time": "00:00", "end_time": "00:00", "timezone": "UTC"}
    await prefer(running, asleep, {"quietHours": [local | {"days_of_week": [now.isoweekday()]}]})
    await prefer(running, out, {"notifications": {"matrix": {"news": {"telegram": False}}}, "quietHours": [window]})
    body = {"message": "Hello", "recipient_ids": [asleep, out], "event_type": "news"}

    explained = await post(running, "/messages/explain", body)
    assert await running.database.fetchval("SELECT count(*) FROM outbound.messages") == 0
    answer = await post(running, "/messages", body)

    [first, second] = explained["recipients"]
    assert [(each["channel"], each["kept"], each["rule"]) for each in first["candidates"]] == [
        ("telegram", True, "enabled"),
        ("email", True, "enabled"),
    ]
    assert first["quiet_hours"][0]["is_quiet"]
    assert first["throttle_headroom"] == {"minute": 60, "hour": 500, "day": 1000}
    assert {"recipient_id": asleep, "channel": first["channel"], "scheduled_at": first["scheduled_at"]} in answer[
        "queued"
    ]
    assert first["leaves_at"] == first["scheduled_at"]
    assert (second["reason"], second["candidates"][0]["rule"]) == ("no-channel", "opted-out")
    assert answer["blocked"] == [{"recipient_id": out, "reason": second["reason"], "detail": second["detail"]}]
    printed = (await cli(running, "send", "Hello", "--to", asleep, "--to", out, "--event", "news", "--explain")).stdout
    assert "nothing was sent" in printed
    assert "drops telegram: opted-out" in printed
    assert re.search(r"quiet hours 00:00-00:00 in UTC, where it is .*: quiet until ", printed)
    assert await running.answers(int(chat)) == []


async def test_a_mute_on_the_chat_holds_messages_until_it_is_ended(running: RunningSystem) -> None:
    chat = _chat()
    ann = await person(running, f"Ann {chat}", telegram=chat)
    await running.says("/mute 2h", chat=int(chat))
    await running.until(lambda: running.answers(int(chat)))
    answer = await send(running, ann)
    await running.run_service("switchboard", "outbound feeder")
    assert (await work(running, answer, ann))["state"] == "queued"

    await running.says("/unmute", chat=int(chat))
    await until_state(running, answer, ann, "delivered")

    assert [text for text in await running.answers(int(chat)) if "Hello" in text] == ["[switchboard] Hello"]


async def test_an_important_message_is_repeated_until_ack_on_the_chat(running: RunningSystem) -> None:
    chat = _chat()
    ann = await person(running, f"Ann {chat}", telegram=chat)
    answer = await send(running, ann, policy={"repeat": {"every_seconds": 600, "max_times": 5}})

    async def said(times: int) -> bool:
        return (await running.answers(int(chat))).count("[switchboard] Hello") == times

    async def repeats(times: int) -> bool:
        row = await work(running, answer, ann)
        return bool(row["state"] == "queued" and row["repeats"] == times)

    await running.until(lambda: repeats(1))
    assert await said(1)
    put_forward(running, minutes=10)
    await running.until(lambda: repeats(2))
    assert await said(2)
    await running.says("/ack", chat=int(chat))
    row = await until_state(running, answer, ann, "delivered")
    put_forward(running, minutes=30)
    await running.run_service("switchboard", "outbound feeder")

    assert row["acknowledged_at"] is not None
    assert await said(2)

    async def told() -> bool:
        return any("Acknowledged: 1 message" in text for text in await running.answers(int(chat)))

    await running.until(told)


async def test_a_digest_carries_its_messages_and_nothing_arrives_twice(running: RunningSystem) -> None:
    chat = _chat()
    ann = await person(running, "Ann", telegram=chat)
    await prefer(running, ann, {"notifications": {"digests": {"news": 3600}}})
    answers = [await send(running, ann, event_type="news", message=f"News {n}") for n in range(3)]
    rows = [await until_state(running, answer, ann, "digested") for answer in answers]
    assert len({row["digest_id"] for row in rows}) == 1

    put_forward(running, hours=1)
    [text] = await running.until(lambda: running.answers(int(chat)))

    assert [f"News {n}" in text for n in range(3)] == [True] * 3
    assert text.startswith("[switchboard] 3 messages (news):")
    await until_state(running, {"message_id": str(rows[0]["digest_id"])}, ann, "delivered")
    shown = await get(running, f"/messages/{rows[0]['digest_id']}")
    assert [row["state"] for row in shown["recipients"]] == ["delivered"]


async def test_what_has_not_left_can_be_cancelled_and_a_dead_letter_replayed(running: RunningSystem) -> None:
    chat = _chat()
    ann = await person(running, "Ann", telegram=chat)
    await prefer(running, ann, {"mutes": [{"until": (running.clock.now() + timedelta(hours=1)).isoformat()}]})
    held = await send(running, ann)
    cancelled = await cli_json(running, "messages", "cancel", held["message_id"])
    assert cancelled["changed"] == 1
    assert (await work(running, held, ann))["state"] == "cancelled"
    assert await running.database.fetchval("SELECT count(*) FROM outbound.queue") == 0

    await prefer(running, ann, {})
    await fault(running, "error_5xx", times=1)
    dead = await send(running, ann, policy={"retry": {"backoff_strategy": "none"}})
    await until_state(running, dead, ann, "dead_lettered")
    listed = await cli_json(running, "messages", "list", "--state", "dead_lettered")
    assert [row["id"] for row in listed["messages"]] == [dead["message_id"]]
    replayed = await cli_json(running, "messages", "replay", dead["message_id"], "--to", ann)
    assert replayed["changed"] == 1
    await until_state(running, dead, ann, "delivered")

    assert await running.answers(int(chat)) == ["[switchboard] Hello"]
    assert [each["outcome"] for each in await attempts(running, dead)] == ["failed", "delivered"]
    foreign = await running.http.post(
        running.url(path=f"/api/messages/{dead['message_id']}/replay"), json={}, headers=running.bearer()
    )
    assert (foreign.status_code, foreign.json()["error"]["message"]) == (409, "message_id: has no dead letter")


async def test_a_template_is_rendered_for_the_channel_and_the_language_with_a_way_to_unsubscribe(
    running: RunningSystem,
) -> None:
    address = _address()
    ann = await person(running, "Ann", email=address)
    await running.database.execute("UPDATE shared.contacts SET locale = 'de-CH' WHERE id = $1::text::uuid", ann)
    template = {
        "id": f"invoice-{uuid4().hex[:8]}",
        "variables": {"amount": {"type": "number"}},
        "default_locale": "en",
        "locales": {
            "en": {"default": {"subject": "Invoice", "text": "You owe {{ amount }}."}},
            "de": {
                "default": {"subject": "Rechnung", "text": "Sie schulden {{ amount }}."},
                "email": {
                    "subject": "Rechnung",
                    "text": "Sie schulden {{ amount }}.",
                    "html": "<p>Sie schulden <b>{{ amount }}</b>.</p>",
                },
            },
        },
    }
    await post(running, "/templates", template)
    wrong = {"template_id": template["id"], "recipient_ids": [ann], "variables": {"wat": 1}}
    bad = await post(running, "/messages", wrong, may_fail=True)
    assert {each["field"] for each in bad["error"]["fields"]} == {"variables.amount", "variables.wat"}
    assert await running.database.fetchval("SELECT count(*) FROM outbound.messages") == 0

    answer = await post(
        running,
        "/messages",
        {"template_id": template["id"], "recipient_ids": [ann], "variables": {"amount": 12}, "event_type": "invoice"},
    )
    await until_state(running, answer, ann, "delivered")

    [mail] = [mail for mail in await mails(running) if mail["recipients"][0]["address"] == address]
    assert (mail["subject"], mail["text"].strip()) == ("[switchboard] Rechnung", "Sie schulden 12.")
    raw = await _raw(running, mail)
    assert "<b>12</b>" in raw
    assert "List-Unsubscribe-Post: List-Unsubscribe=One-Click" in raw
    url = re.search(r"List-Unsubscribe: <([^>]+)>", raw.replace("\r\n ", ""))
    assert url is not None
    path = url[1].removeprefix("http://127.0.0.1:1")
    looked = await running.http.get(running.url(path=path))
    assert looked.status_code == 200
    again = {"message": "x", "recipient_ids": [ann], "event_type": "invoice"}
    # A mail filter fetched the link, and nothing changed.
    assert (await post(running, "/messages/explain", again))["recipients"][0]["outcome"] == "queued"
    clicked = await running.http.post(running.url(path=path), data={"List-Unsubscribe": "One-Click"})
    assert clicked.status_code == 200, clicked.text
    refused = await post(running, "/messages", again)
    assert [row["reason"] for row in refused["blocked"]] == ["no-channel"]


async def _raw(running: RunningSystem, mail: dict[str, Any]) -> str:
    response = await running.http.get(f"{running.mail.control_url}/accepted/{mail['number']}/raw")
    assert response.status_code == 200, response.text
    return response.text


async def test_service_levels_of_the_runtime_are_told(running: RunningSystem) -> None:
    ann = await person(running, "Ann", telegram=_chat())
    answer = await send(running, ann)
    await until_state(running, answer, ann, "delivered")

    levels = await cli_json(running, "messages", "levels")

    assert (levels["delivered"], levels["open"]) == (1, 0)
    assert levels["goals"]["success_ratio"] == {"value": 1.0, "goal": 0.995, "met": True}
    assert levels["goals"]["on_time_ratio"]["met"] is True
    conversation = await send(running, ann, conversation_id="c-1", message="second")
    listed = await get(running, "/conversations/c-1")
    assert [row["id"] for row in listed["messages"]] == [conversation["message_id"]]


@pytest.mark.scenario("D4-020")
async def test_a_message_is_complete_when_the_queue_has_taken_it(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    with RedisServer(durable=True) as redis:
        options: dict[str, Any] = {"clock": AheadClock(), "outbound_queue": redis.url}
        async with running_system(tmp_path, postgres_server, **options) as running:
            await _send_while_the_queue_is_away(running, redis)


async def _send_while_the_queue_is_away(running: RunningSystem, redis: RedisServer) -> None:
    chat = _chat()
    ann = await person(running, "Ann", telegram=chat)
    # Given a queue that is away: the call says so, and the record does not claim to be queued.
    redis.stop()
    answer = await send(running, ann)
    assert (answer["queued"], [row["reason"] for row in answer["blocked"]]) == ([], ["queue-error"])
    assert (await work(running, answer, ann))["state"] == "planned"
    assert await running.answers(int(chat)) == []

    # When it is back, what was accepted is queued and delivered, once.
    redis.start()
    await until_state(running, answer, ann, "delivered")
    assert await running.answers(int(chat)) == ["[switchboard] Hello"]

    # A call that the queue has taken says so.
    again = await send(running, ann, message="again")
    assert [row["recipient_id"] for row in again["queued"]] == [ann]
    await until_state(running, again, ann, "delivered")


async def test_the_command_line_refuses_and_tells_as_the_doors_do(running: RunningSystem) -> None:
    before = len(await running.answers())
    sent = await cli_json(running, "send", "To the owner")  # names nobody
    await until_state(running, sent, sent["queued"][0]["recipient_id"], "delivered")
    assert (await running.answers())[before:] == ["[switchboard] To the owner"]

    refused = await cli(running, "send", "x {{ b }}", "--to", "owner", "--set", "a=1", code=2)
    assert "b" in refused.stderr
    assert await running.database.fetchval("SELECT count(*) FROM outbound.messages") == 1

    chat, address = _chat(), _address()
    ann = await person(running, f"Ann {chat}", telegram=chat)
    await person(running, "Bo", email=address)
    taken = await cli(running, "senders", "allow", "email", address, "--of", ann, code=2)
    assert "is another contact's" in taken.stderr

    await prefer(running, ann, {"mutes": [{"until": (running.clock.now() + timedelta(hours=1)).isoformat()}]})
    held = await send(running, ann)
    printed = (await cli(running, "messages", "show", held["message_id"])).stdout
    assert "for the end of quiet hours or of a mute" in printed
    await prefer(running, ann, {"notifications": {"matrix": {"message": {"telegram": False}}}})
    blocked = await cli(running, "send", "x", "--to", ann, code=1)
    assert "blocked: no-channel" in blocked.stdout
    listed = await cli_json(running, "messages", "list", "--state", "blocked", "--to", ann)
    assert [row["blocked"] for row in listed["messages"]] == [1]


async def test_a_queue_in_memory_is_filled_again_at_a_start(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    options: dict[str, Any] = {"clock": AheadClock(), "outbound_queue": "memory"}
    async with running_system(tmp_path, postgres_server, **options) as running:
        chat = _chat()
        ann = await person(running, "Ann", telegram=chat)
        await prefer(running, ann, {"mutes": [{"until": (running.clock.now() + timedelta(hours=1)).isoformat()}]})
        answer = await send(running, ann)
        assert (await work(running, answer, ann))["state"] == "queued"

        await running.restart()
        put_forward(running, hours=1)
        await until_state(running, answer, ann, "delivered")

        assert await running.answers(int(chat)) == ["[switchboard] Hello"]


async def test_the_rows_of_an_audience_plan_are_sent_by_the_same_worker(running: RunningSystem) -> None:
    """As `audience-plan` with load=yes writes them: its columns, and no other."""
    chat, message_id, now = _chat(), uuid4(), running.clock.now()
    ann = await person(running, "Ann", telegram=chat)
    document = {"id": str(message_id), "sender_id": "campaigns", "body": "To everybody"}
    await running.database.execute(
        "INSERT INTO outbound.messages (id, sender_id, document, created_at) VALUES ($1, 'campaigns', $2, $3)",
        message_id,
        document,
        now,
    )
    await running.database.execute(
        "INSERT INTO outbound.scheduled_messages (dedupe_key, message_id, recipient_id, sender_id, channel,"
        " scheduled_at, priority, created_at) VALUES ($1, $2, $3, 'campaigns', 'telegram', $4, 'normal', $4)",
        f"{message_id}:{ann}",
        message_id,
        ann,
        now,
    )

    await running.run_service("switchboard", "outbound feeder")
    await until_state(running, {"message_id": str(message_id)}, ann, "delivered")

    assert await running.answers(int(chat)) == ["[switchboard] To everybody"]


async def test_an_operator_acknowledges_for_a_person(running: RunningSystem) -> None:
    ann = await person(running, "Ann", telegram=_chat())
    answer = await send(running, ann, policy={"repeat": {"every_seconds": 600, "max_times": 5}})

    async def repeats() -> bool:
        row = await work(running, answer, ann)
        return bool(row["state"] == "queued" and row["repeats"] == 1)

    await running.until(repeats)
    done = await cli_json(running, "messages", "acknowledge", answer["message_id"], "--to", ann)

    assert done["changed"] == 1
    assert (await until_state(running, answer, ann, "delivered"))["acknowledged_at"] is not None
