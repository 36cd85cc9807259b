"""One message, however often and through whichever door it comes, is one request with one answer."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from butlers.ids import made_at
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import all_finished, call, counts, post, row, rows
from tests.system import OWNER_CHAT_ID, RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOT = "butlers_sim_bot"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("ingress"), postgres_server) as system:
        yield system


async def answers_with(running: RunningSystem, words: str, *, chat: int = OWNER_CHAT_ID) -> list[str]:
    return [text for text in await running.answers(chat) if words in text]


def ingress_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the ingest door logged, by field."""
    return [record.__dict__["butlers_fields"] for record in caplog.records if record.name == "butlers.ingress"]


async def settled(running: RunningSystem, reply: dict[str, Any]) -> dict[str, Any]:
    trace = await running.finished(reply["request_id"])
    assert trace["lifecycle_state"] == "parsed", trace["lifecycle_error"]
    return trace


# --- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-084")
async def test_ingestion_api_response(running: RunningSystem) -> None:
    document = running.envelope("remember that the blue key is in the drawer")

    first, second = await post(running, document), await post(running, document)

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == {"request_id": first.json()["request_id"], "status": "accepted", "duplicate": False}
    assert second.json() == first.json() | {"duplicate": True}
    await settled(running, first.json())
    assert await answers_with(running, "blue key") == ["[general] Noted: remember that the blue key is in the drawer"]


async def test_a_specialist_answers_in_its_own_name(running: RunningSystem) -> None:
    reply = await running.ingest("I paid the dentist's invoice of March")
    trace = await settled(running, reply)

    assert [dispatch["target_butler"] for dispatch in trace["routing"]["dispatches"]] == ["finance"]
    assert await answers_with(running, "invoice of March") == ["[finance] Noted: I paid the dentist's invoice of March"]


# --- dedupe keys -----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-047")
async def test_api_mcp_dedup_key(running: RunningSystem) -> None:
    keyed = running.envelope("first wording of the plan") | {"control": {"idempotency_key": "plan-1"}}
    reworded = running.envelope("second wording of the plan") | {"control": {"idempotency_key": "plan-1"}}
    other_key = keyed | {"control": {"idempotency_key": "plan-2"}}
    without_key = running.envelope("second wording of the plan")
    event = without_key["event"]["external_event_id"]
    repeated = running.envelope("  second wording of the plan\r\n", external_event_id=event)
    another_event = running.envelope("second wording of the plan")
    elsewhere = without_key | {"sender": {"identity": "somebody else"}}

    documents = [keyed, reworded, other_key, without_key, repeated, elsewhere, another_event]
    replies = [(await post(running, document)).json() for document in documents]

    first, same_key, new_key, by_content, same_content, another_source, another = (r["request_id"] for r in replies)
    assert first == same_key  # the caller's key decides, whatever the content
    assert by_content == same_content  # without one the event's id, the normalised content and its source decide
    assert len({first, new_key, by_content, another_source, another}) == 5  # two events are two, whatever their text
    assert [reply["duplicate"] for reply in replies] == [False, True, False, False, True, False, False]
    await all_finished(running)


@pytest.mark.scenario("S3-047")
async def test_content_counts_as_repeated_within_a_bounded_time_only(running: RunningSystem) -> None:
    document = running.envelope("the gardener came today")
    first = (await post(running, document)).json()
    window = timedelta(seconds=running.settings.content_dedupe_window_s)
    age = "UPDATE switchboard.ingress_dedupe SET received_at = $2 WHERE request_id = $1"
    await running.database.execute(age, UUID(first["request_id"]), datetime.now(UTC) - window + timedelta(seconds=5))
    within = (await post(running, document)).json()
    await running.database.execute(age, UUID(first["request_id"]), datetime.now(UTC) - window - timedelta(seconds=5))
    after = (await post(running, document)).json()
    repeated = (await post(running, document)).json()

    assert within == first | {"duplicate": True}
    assert after["request_id"] != first["request_id"]
    assert not after["duplicate"]
    assert repeated == after | {"duplicate": True}
    await all_finished(running)


@pytest.mark.scenario("S3-045")
async def test_telegram_dedup_key(running: RunningSystem) -> None:
    def update(number: int, bot: str, text: str) -> dict[str, Any]:
        document = running.envelope(text, external_event_id=str(number), external_thread_id=str(OWNER_CHAT_ID))
        return document | {"source": {"channel": "telegram", "provider": "telegram", "endpoint_identity": bot}}

    documents = [
        update(900_001, BOT, "ok then"),
        update(900_001, BOT, "other words"),  # the same update and bot: the same event
        update(900_002, BOT, "ok then"),  # the same words in another update: another message
        update(900_001, "another_bot", "ok then"),  # another bot numbers its own updates
    ]
    replies = [(await post(running, document)).json() for document in documents]

    assert [reply["duplicate"] for reply in replies] == [False, True, False, False]
    assert replies[0]["request_id"] == replies[1]["request_id"]
    assert len({reply["request_id"] for reply in replies}) == 3
    await all_finished(running)
    assert len(await answers_with(running, "ok then")) == 3


@pytest.mark.scenario("S3-048")
async def test_duplicate_event_handling(running: RunningSystem, caplog: pytest.LogCaptureFixture) -> None:
    document = running.envelope("the spare tyre is flat")
    with caplog.at_level(logging.INFO, logger="butlers.ingress"):
        first, second = (await post(running, document)).json(), (await post(running, document)).json()
    await settled(running, first)

    assert second["request_id"] == first["request_id"]
    stored = await row(running, "switchboard.message_inbox", first["request_id"])
    decisions = ingress_lines(caplog)
    assert [line["dedupe_action"] for line in decisions] == ["accepted", "deduped"]
    assert {line["dedupe_key"] for line in decisions} == {stored["dedupe_key"]}
    assert {str(line["request_id"]) for line in decisions} == {first["request_id"]}
    assert len(await answers_with(running, "spare tyre")) == 1


# --- MCP -------------------------------------------------------------------------------------------------------------


async def test_mcp_ingest_is_the_same_door(running: RunningSystem) -> None:
    document = running.envelope("water the ferns") | {"control": {"idempotency_key": "ferns"}}
    async with running.mcp("switchboard") as client:
        first, second = await call(client, "ingest", document), await call(client, "ingest", document)
    third = (await post(running, document)).json()

    assert (first["duplicate"], second["duplicate"], third["duplicate"]) == (False, True, True)
    assert {first["request_id"]} == {second["request_id"], third["request_id"]}
    await settled(running, first)
    assert len(await answers_with(running, "water the ferns")) == 1
    assert (await row(running, "switchboard.message_inbox", first["request_id"]))["submitted_by"] == "operator"


async def test_mcp_ingest_needs_a_token(running: RunningSystem) -> None:
    before = await counts(running)
    async with running.mcp("switchboard", caller=None) as client:
        answer = await call(client, "ingest", running.envelope("let me in"))

    refused_for_its_token(answer)
    assert await counts(running) == before


@pytest.mark.parametrize("path", ["/mcp", "/mcp/llm"])
async def test_mcp_ingest_needs_a_known_token(running: RunningSystem, path: str) -> None:
    before = await counts(running)
    asked = {"name": "ingest", "arguments": running.envelope("let me in")}
    document = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
    headers = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer no such token"}
    response = await running.http.post(running.url(path=path), json=document, headers=headers)

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="butlers", error="invalid_token"'
    refused_for_its_token(response.json())
    assert await counts(running) == before

    known = headers | running.bearer()
    response = await running.http.post(running.url(path=path), json=document, headers=known)
    assert (response.status_code, response.json()["result"]["isError"]) == (200, False), "only the token was wrong"
    await all_finished(running)


def refused_for_its_token(answer: dict[str, Any]) -> None:
    assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
    assert [field["field"] for field in answer["error"]["fields"]] == ["authorization"]


# --- Telegram --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-001", "S3-002")
async def test_canonical_context_assignment_with_telegram_identity(running: RunningSystem) -> None:
    started = datetime.now(UTC)
    chat = 4711
    await running.says("my passport expires in June", chat=chat)
    await running.until(lambda: running.answers(chat))
    await all_finished(running)

    inbox = await running.database.fetch(
        "SELECT * FROM switchboard.message_inbox WHERE normalized_text = 'my passport expires in June'"
    )
    assert len(inbox) == 1
    context = inbox[0]["request_context"]
    request_id, received_at = UUID(context["request_id"]), datetime.fromisoformat(context["received_at"])
    assert (request_id, received_at) == (inbox[0]["request_id"], inbox[0]["received_at"])
    assert request_id.version == 7
    assert abs(made_at(request_id) - received_at) < timedelta(seconds=1)
    assert received_at.utcoffset() == timedelta(0)
    assert started - timedelta(seconds=1) < received_at <= datetime.now(UTC)
    assert context["source_channel"] == "telegram"
    assert context["source_endpoint_identity"] == BOT
    assert context["source_sender_identity"] == str(chat)  # Telegram's user id
    assert context["source_thread_identity"] == str(chat)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]", context["trace_context"]["traceparent"])


async def test_saying_the_same_twice_is_two_messages(running: RunningSystem) -> None:
    chat = 4712
    for _ in range(2):
        await running.says("ok", chat=chat)

    async def both() -> bool:
        return len(await running.answers(chat)) == 2

    await running.until(both)
    texts = "SELECT request_id FROM switchboard.message_inbox WHERE request_context->>'source_thread_identity' = $1"
    assert len(await running.database.fetch(texts, str(chat))) == 2


async def test_an_update_that_telegram_sends_again_is_answered_once(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The connector goes down after the message is stored and before the update is confirmed."""
    async with running_system(tmp_path_factory.mktemp("again"), postgres_server) as running:
        await running.until(lambda: poll_hangs(running))
        # The poll that hangs delivers the update; every later one, which would confirm it, fails.
        await running.control("POST", "/faults", {"method": "getUpdates", "kind": "error_5xx", "times": None})
        with caplog.at_level(logging.INFO, logger="butlers.ingress"):
            await running.says("call the plumber")
            await running.until(running.answers)
            await all_finished(running)
            await running.stop()
            await running.control("DELETE", "/faults")
            await running.start()
            await running.says("and the electrician")
            await running.until(lambda: answers_with(running, "electrician"))
            await all_finished(running)

        assert [line["dedupe_action"] for line in ingress_lines(caplog)] == ["accepted", "deduped", "accepted"]
        assert await counts(running) == {"ingress_dedupe": 2, "message_inbox": 2}
        assert len(await answers_with(running, "plumber")) == 1


async def poll_hangs(running: RunningSystem) -> bool:
    return any(running.telegram.polls.is_waiting(bot) for bot in running.telegram.world.state.bots)


# --- many at once ----------------------------------------------------------------------------------------------------


async def test_a_hundred_posts_of_one_event_at_once_are_one_request(running: RunningSystem) -> None:
    before = await counts(running)
    document = running.envelope("the one and only storm warning")
    replies = [reply.json() for reply in await asyncio.gather(*(post(running, document) for _ in range(100)))]
    await settled(running, replies[0])

    assert len({reply["request_id"] for reply in replies}) == 1
    assert sorted(reply["duplicate"] for reply in replies) == [False] + [True] * 99
    after = await counts(running)
    assert {table: after[table] - before[table] for table in after} == {"ingress_dedupe": 1, "message_inbox": 1}
    assert len(await answers_with(running, "storm warning")) == 1
    assert len(await rows(running, "general.route_inbox", replies[0]["request_id"])) == 1


@pytest.mark.timeout(600)  # on a busy machine; it waits as long as requests are finished
async def test_two_hundred_different_messages_at_once_are_two_hundred_requests(running: RunningSystem) -> None:
    before = await counts(running)
    texts = [f"print page {number} of the manual" for number in range(200)]
    replies = await asyncio.gather(*(running.ingest(text) for text in texts))

    assert len({reply["request_id"] for reply in replies}) == 200
    assert not any(reply["duplicate"] for reply in replies)
    after = await counts(running)
    assert {table: after[table] - before[table] for table in after} == {"ingress_dedupe": 200, "message_inbox": 200}
    await all_finished(running)
    heard = await answers_with(running, "of the manual")
    assert sorted(heard) == sorted(f"[general] Noted: {text}" for text in texts)
