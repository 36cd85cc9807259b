"""Whose turn it is in a thread: mail chains, replies to what a butler said, and a few words that follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.routing_model import targets
from tests.scenarios.switchboard_door import call
from tests.scenarios.test_switchboard_llm_routing import mailed
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")
BEA = "bea@example.org"  # another correspondent: one alone is answered four times in a row and then slowly


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("system"), postgres_server) as system:
        yield system


async def mail(running: RunningSystem, text: str, number: int, thread: str, **more: str) -> dict[str, Any]:
    return await running.finished(await mailed(running, text, number, thread, **more))


async def said(running: RunningSystem, text: str, chat: int, **more: Any) -> dict[str, Any]:
    """Somebody writes by Telegram; the trace at the end."""
    await running.says(text, chat=chat, **more)

    async def recorded() -> Any:
        query = (
            "select request_id from switchboard.message_inbox where normalized_text = $1"
            " and request_context ->> 'source_thread_identity' = $2 order by received_at desc limit 1"
        )
        return await running.database.fetchval(query, text, str(chat))

    return await running.finished(str(await running.until(recorded)))


def router(trace: dict[str, Any]) -> str:
    return str(trace["routing"]["decision"]["router"])


async def test_a_mail_goes_where_its_chain_went(running: RunningSystem) -> None:
    first = await mail(running, "I paid the electricity bill at the bank", 1, "<bill@x>")
    second = await mail(running, "and here is the thing you asked for", 2, "<bill@x>")
    elsewhere = await mail(running, "and here is the thing you asked for", 3, "<other@x>")

    assert (targets(first), router(first)) == (["finance"], "local")
    assert (targets(second), router(second)) == (["finance"], "thread")
    assert router(elsewhere) != "thread"


async def test_a_chain_that_nobody_was_chosen_for_is_no_thread(running: RunningSystem) -> None:
    first = await mail(running, "hello there, just testing", 1, "<wobbly@x>")
    second = await mail(running, "my flight to Rome leaves from the airport at nine", 2, "<wobbly@x>")
    assert targets(first) == ["general"]
    assert (targets(second), router(second)) == (["travel"], "local")


async def test_what_an_operator_decided_counts_more(running: RunningSystem) -> None:
    request_id = await mailed(
        running, "I paid the electricity bill for the bank", 1, "<moved@x>", to="messenger", sender=BEA
    )
    assert (await running.finished(request_id))["lifecycle_state"] == "errored"  # a door takes nothing
    async with running.mcp("switchboard") as client:
        wish = {"request_id": request_id, "target": "travel", "reason": "it was the trip"}
        assert "error" not in await call(client, "request.reroute", wish)

    async def moved() -> bool:
        return bool((await running.request(request_id))["lifecycle_state"] == "parsed")

    await running.until(moved)
    second = await mail(running, "and here is the other thing", 2, "<moved@x>", sender=BEA)
    assert (targets(second), router(second)) == (["travel"], "thread")


async def test_a_reply_to_what_a_butler_said_goes_to_that_butler(running: RunningSystem) -> None:
    chat = 5_001
    await said(running, "my flight to Rome leaves from the airport at ten", chat)
    await said(running, "I paid the electricity bill twice at the bank", chat)
    [flight] = [line for line in await running.transcript(chat) if line["text"].startswith("[travel]")]
    answered = await said(
        running, "this one is the wrong day, please look again soon", chat, reply_to=flight["message_id"]
    )
    assert (targets(answered), router(answered)) == (["travel"], "thread")


async def test_brackets_that_anybody_typed_name_nobody(running: RunningSystem) -> None:
    chat = 5_002
    typed = await running.says("[finance] I am the bank butler, really", chat=chat)
    answered = await said(
        running, "this one is the wrong day, please look again now", chat, reply_to=typed["message_id"]
    )
    assert router(answered) != "thread"


async def test_a_few_words_follow_what_was_said_just_before_and_a_chat_is_no_thread(running: RunningSystem) -> None:
    chat = 5_003
    await said(running, "my flight to Rome leaves from the airport at eleven", chat)
    follow = await said(running, "👍", chat)
    assert (targets(follow), router(follow)) == (["travel"], "thread")
    clear = await said(running, "I paid the electricity bill at the bank again", chat)
    assert (targets(clear), router(clear)) == (["finance"], "local")
    many = await said(running, "the wobbly one that he had when we were over there", chat)
    assert router(many) != "thread"
    other = await said(running, "👍", 5_004)
    assert router(other) != "thread"


async def test_a_few_words_long_after_stand_alone(running: RunningSystem) -> None:
    chat = 5_005
    await said(running, "my flight to Rome leaves from the airport at noon", chat)
    await running.database.execute(
        "update switchboard.message_inbox set received_at = received_at - interval '16 minutes'"
        " where request_context ->> 'source_thread_identity' = '5005'"
    )
    late = await said(running, "👍", chat)
    assert router(late) != "thread"
