"""Many messages in one call, mail as it comes from a mailbox, and the thread that a message belongs to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from butlers.butler.identity import Grant
from butlers.operations.operation import Role
from butlers.operations.requests import MOST_MESSAGES
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.ingress.api import BODY_FACTOR
from tests.scenarios.messenger_door import call as tool
from tests.scenarios.overload import hand_in_all
from tests.scenarios.switchboard_door import all_finished, call, counts, post, row
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAILBOX, OWNER_MAIL = "butler@butlers.example", "owner@butlers.example"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("ingress"), postgres_server) as system:
        yield system


def keyed(running: RunningSystem, text: str, key: str) -> dict[str, Any]:
    return running.envelope(text) | {"control": {"idempotency_key": key}}


# --- batches ---------------------------------------------------------------------------------------------------------


async def test_a_batch_answers_for_each_message_and_a_bad_one_spoils_nothing(running: RunningSystem) -> None:
    before = await counts(running)
    known = (await post(running, keyed(running, "known already", "batch-known"))).json()
    nul = running.envelope("nul")
    nul["payload"]["raw"] = {"text": "a\x00b"}
    messages: list[Any] = [
        keyed(running, "the first", "batch-1"),
        running.envelope("no source") | {"source": {"channel": "pigeon", "provider": "internal"}},
        keyed(running, "known already", "batch-known"),
        "not an object",
        nul,
        keyed(running, "the first again", "batch-1"),
        running.envelope("for nobody") | {"control": {"pinned_target": "nobody"}},
        keyed(running, "the last", "batch-2"),
    ]
    results = await hand_in_all(running, messages)

    first, bad, repeated, no_object, with_nul, again, nobody, last = results
    assert first == {"request_id": first["request_id"], "status": "accepted", "duplicate": False}
    assert repeated == known | {"duplicate": True}
    assert again == first | {"duplicate": True}
    assert (last["duplicate"], last["request_id"] != first["request_id"]) == (False, True)
    wrong = {"source.channel", "source.endpoint_identity"}
    assert {field["field"] for field in bad["error"]["fields"]} == wrong
    for refused in (bad, no_object, with_nul, nobody):
        assert (refused["error"]["class"], refused["error"]["retryable"]) == ("validation_error", False)
    assert [field["field"] for field in nobody["error"]["fields"]] == ["control.pinned_target"]
    after = await counts(running)
    assert after == {table: number + 3 for table, number in before.items()}, "nothing is half-written"
    await all_finished(running)
    stored = await row(running, "switchboard.message_inbox", last["request_id"])
    assert (stored["normalized_text"], stored["lifecycle_state"]) == ("the last", "parsed")


async def test_a_batch_by_mcp_is_the_same_door(running: RunningSystem) -> None:
    messages = [keyed(running, "by tool", "mcp-batch-1"), {"schema_version": "ingest.v2"}]
    async with running.mcp("switchboard") as client:
        answer = await call(client, "ingest.batch", {"messages": messages})
        refused = await call(client, "ingest.batch", {"messages": []})
    (http,) = await hand_in_all(running, messages[:1])

    assert (answer["accepted"], answer["duplicates"], answer["refused"]) == (1, 0, 1)
    assert http == answer["results"][0] | {"duplicate": True}
    assert answer["results"][1]["error"]["fields"][0]["field"] == "schema_version"
    assert [field["field"] for field in refused["error"]["fields"]] == ["messages"]
    async with running.mcp("switchboard", caller=None) as client:
        nobody = await call(client, "ingest.batch", {"messages": messages})
    assert [field["field"] for field in nobody["error"]["fields"]] == ["authorization"]
    await all_finished(running)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{}] * (MOST_MESSAGES + 1)}, "messages"),
        ({"messages": [{}], "mode": "fast"}, "mode"),
        ([], ""),
    ],
)
async def test_what_is_no_batch_is_refused_as_a_whole(running: RunningSystem, document: Any, field: str) -> None:
    before = await counts(running)
    response = await running.http.post(running.url(path="/api/ingest/batch"), json=document)
    assert response.status_code == 422
    assert [wrong["field"] for wrong in response.json()["error"]["fields"]] == [field]
    assert await counts(running) == before


async def test_a_batch_has_a_largest_size(running: RunningSystem) -> None:
    body = b" " * (BODY_FACTOR * running.settings.max_body_bytes + 1)
    headers = {"Content-Type": "application/json"}
    response = await running.http.post(running.url(path="/api/ingest/batch"), content=body, headers=headers)
    assert (response.status_code, response.json()["error"]["class"]) == (413, "validation_error")


# --- email -----------------------------------------------------------------------------------------------------------


async def arrives(running: RunningSystem, text: str, **more: Any) -> None:
    body = {"from": OWNER_MAIL, "to": MAILBOX, "subject": "Garden", "text": text} | more
    response = await running.http.post(f"{running.mail.control_url}/messages", json=body)
    assert response.status_code == 201, response.text


async def look_into_mailbox(running: RunningSystem) -> dict[str, Any]:
    return await tool(running, "messenger", "email_check_and_route_inbox", {})


async def requests_of(running: RunningSystem, text: str) -> list[dict[str, Any]]:
    query = "select * from switchboard.message_inbox where normalized_text like '%' || $1 order by received_at"
    return [dict(found) for found in await running.database.fetch(query, text)]


@pytest.mark.scenario("S3-003")
async def test_email_channel_minimum_identity(running: RunningSystem) -> None:
    await arrives(running, "the roses are out")
    assert (await look_into_mailbox(running))["routed"] == 1
    (stored,) = await requests_of(running, "the roses are out")
    context = stored["request_context"]
    assert context["source_channel"] == "email"
    assert context["source_endpoint_identity"] == MAILBOX
    assert context["source_sender_identity"] == OWNER_MAIL
    assert UUID(context["request_id"]) == stored["request_id"]
    await all_finished(running)


@pytest.mark.scenario("S3-046")
async def test_email_dedup_key(running: RunningSystem) -> None:
    """The Message-ID and the mailbox, and nothing else: not the words, not the place in the mailbox."""
    name, text = "<tulips@far.example>", "the tulips are out"
    await arrives(running, text, message_id=name)
    await arrives(running, text, message_id="<tulips-too@far.example>")  # the same words in another mail
    await arrives(running, "other words", message_id=name)  # the same mail once more
    counted = await look_into_mailbox(running)
    assert (counted["routed"], counted["duplicates"]) == (2, 1)
    first, second = await requests_of(running, text)
    assert (first["dedupe_key"] != second["dedupe_key"], await requests_of(running, "other words")) == (True, [])

    def handed_in(mailbox: str, words: str) -> dict[str, Any]:
        source = {"channel": "email", "provider": "imap", "endpoint_identity": mailbox}
        return running.envelope(words, external_event_id=name) | {"source": source, "sender": {"identity": OWNER_MAIL}}

    token = running.issue_token("connector.imap", Role.CONNECTOR, Grant(channel="email"))
    headers = {"Authorization": f"Bearer {token}"}
    replies = [
        (await post(running, handed_in(mailbox, words), **headers)).json()
        for mailbox, words in ((MAILBOX, "one"), (MAILBOX, "two"), ("elsewhere@butlers.example", "one"))
    ]
    assert [reply["duplicate"] for reply in replies] == [False, True, False]
    assert len({reply["request_id"] for reply in replies}) == 2
    await all_finished(running)


# --- threads ---------------------------------------------------------------------------------------------------------


async def test_a_message_knows_its_thread(running: RunningSystem) -> None:
    in_thread = (await post(running, running.envelope("in a thread", external_thread_id="t-1"))).json()
    alone = (await post(running, running.envelope("alone"))).json()
    long = running.envelope("in a long thread", external_thread_id="t" * 400)
    keys = [
        (await row(running, "switchboard.message_inbox", reply["request_id"]))["thread_key"]
        for reply in (in_thread, alone, (await post(running, long)).json())
    ]
    assert keys[:2] == ["api:tests:t-1", None]
    assert len(keys[2]) == 64
    await all_finished(running)
