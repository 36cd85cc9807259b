"""From the door to the butler and back out: every hop stored, one request id throughout."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx2
import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.switchboard_door import all_finished, as_switchboard, call, counts, post, route, row, rows
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("path"), postgres_server) as system:
        yield system


async def answered(running: RunningSystem, document: dict[str, Any]) -> dict[str, Any]:
    """Hand in and wait for the good end; the trace."""
    reply = (await post(running, document)).json()
    trace = await running.finished(reply["request_id"])
    assert trace["lifecycle_state"] == "parsed", trace["lifecycle_error"]
    return trace


# --- storage ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-005")
async def test_month_partitioned_message_inbox_storage(running: RunningSystem) -> None:
    document = running.envelope("I paid the rent of November")
    trace = await answered(running, document)

    partition, stored = await in_partition(running, trace["request_id"])
    assert partition == f"message_inbox_p{stored['received_at']:%Y%m}"
    kind = "SELECT partstrat FROM pg_partitioned_table WHERE partrelid = 'switchboard.message_inbox'::regclass"
    assert await running.database.fetchval(kind) == b"r"
    assert stored["request_context"]["request_id"] == trace["request_id"]
    assert stored["raw_payload"] == document["payload"]["raw"]
    assert stored["normalized_text"] == "I paid the rent of November"
    assert stored["routing_output"]["segments"][0]["butler"] == "finance"
    [outcome] = stored["dispatch_outcomes"]
    assert (outcome["target_butler"], outcome["success"]) == ("finance", True)
    assert stored["aggregated_reply"] == {"answers": {"finance": "Noted: I paid the rent of November"}}
    assert (stored["lifecycle_state"], stored["lifecycle_error"]) == ("parsed", None)


async def in_partition(running: RunningSystem, request_id: str) -> tuple[str, Any]:
    found = await running.database.fetch(
        "SELECT tableoid::regclass::text AS partition, * FROM switchboard.message_inbox WHERE request_id = $1",
        UUID(request_id),
    )
    assert len(found) == 1
    return found[0]["partition"].removeprefix("switchboard."), found[0]


@pytest.mark.scenario("S3-054", "S3-083")
async def test_ingest_envelope_structure_and_versioning(running: RunningSystem) -> None:
    document = {
        "schema_version": "ingest.v1",
        "source": {"channel": "email", "provider": "imap", "endpoint_identity": "butler@home.example"},
        "event": {
            "external_event_id": "<1@mail.example>",
            "external_thread_id": "<0@mail.example>",
            "observed_at": running.clock.now().isoformat(),
        },
        "sender": {"identity": "ann@mail.example"},
        "payload": {"raw": {"headers": {"Subject": "hello"}}, "normalized_text": "hello from the mail"},
        "control": {"idempotency_key": "k1", "trace_context": TRACEPARENT, "policy_tier": "high_priority"},
    }
    reply = (await post(running, document)).json()

    stored = await row(running, "switchboard.message_inbox", reply["request_id"])
    context = stored["request_context"]
    assert stored["schema_version"] == "ingest.v1"
    assert stored["policy_tier"] == "high_priority"
    assert stored["raw_payload"] == {"headers": {"Subject": "hello"}}
    assert context["source_channel"] == "email"
    assert context["source_endpoint_identity"] == "butler@home.example"
    assert context["source_sender_identity"] == "ann@mail.example"
    assert context["source_thread_identity"] == "<0@mail.example>"
    assert context["trace_context"] == TRACEPARENT
    for part in ("source", "event", "sender", "payload"):
        incomplete = {name: value for name, value in document.items() if name != part}
        refusal = await post(running, incomplete)
        assert (refusal.status_code, refusal.json()["error"]["fields"]) == (
            422,
            [{"field": part, "error": "is required"}],
        )
    await all_finished(running)


# --- what travels ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-055", "S3-085")
async def test_canonical_route_envelope_shape(running: RunningSystem) -> None:
    document = running.envelope("my subscription costs ten euros", external_thread_id="thread-1")
    trace = await answered(running, document | {"control": {"trace_context": TRACEPARENT}})

    envelope = (await row(running, "finance.route_inbox", trace["request_id"]))["envelope"]
    assert envelope["schema_version"] == "route.v1"
    assert envelope["request_context"] == trace["ingress"]["request_context"]
    assert envelope["request_context"]["source_thread_identity"] == "thread-1"
    subrequest = envelope["subrequest"]
    assert (subrequest["segment_id"], subrequest["fanout_mode"]) == ("s1", "parallel")
    assert UUID(subrequest["subrequest_id"]) != UUID(trace["request_id"])
    assert envelope["target"] == {"butler": "finance", "tool": "route.execute"}
    assert envelope["input"] == {"prompt": "my subscription costs ten euros"}
    assert TRACE_ID in envelope["trace_context"]["traceparent"]


@pytest.mark.scenario("S3-044")
async def test_notify_dispatch_via_messenger(running: RunningSystem) -> None:
    chat = 5150
    await running.says("my salary came today", chat=chat)
    await running.until(lambda: running.answers(chat))
    await all_finished(running)
    [inbox] = await running.database.fetch(
        "SELECT * FROM switchboard.message_inbox WHERE request_context ->> 'source_thread_identity' = $1", str(chat)
    )

    [delivery] = await rows(running, "messenger.delivery_requests", str(inbox["request_id"]))
    notify = delivery["envelope"]
    assert (notify["schema_version"], notify["origin_butler"]) == ("notify.v1", "finance")
    assert notify["request_context"] == inbox["request_context"]
    assert (delivery["intent"], delivery["target_identity"]) == ("reply", str(chat))
    [notification] = await rows(running, "switchboard.notifications", str(inbox["request_id"]))
    assert (notification["source_butler"], notification["status"]) == ("finance", "sent")
    said, answer = await running.transcript(chat)
    assert (answer["text"], answer["reply_to"]) == ("[finance] Noted: my salary came today", said["message_id"])


@pytest.mark.scenario("S3-044")
async def test_messenger_takes_a_notify_only_inside_a_route_of_switchboard(running: RunningSystem) -> None:
    notify = {
        "schema_version": "notify.v1",
        "origin_butler": "finance",
        "delivery": {"intent": "send", "channel": "telegram", "message": "the bill is due"},
    }
    document = route(running, "messenger", "Execute outbound delivery request through Messenger.")
    document["input"]["context"] = {"notify_request": notify, "authenticated_origin": "finance"}
    async with running.mcp("messenger", caller="finance") as client:
        refused = await call(client, "route.execute", document)
    async with as_switchboard(running, "messenger") as client:
        answer = await call(client, "route.execute", document)

    assert (refused["status"], refused["error"]["class"]) == ("error", "validation_error")
    assert answer["status"] == "ok"
    assert answer["result"]["notify_response"]["delivery"]["status"] == "delivered"
    assert [text for text in await running.answers() if "bill is due" in text] == ["[finance] the bill is due"]


async def test_one_request_id_in_every_table(running: RunningSystem) -> None:
    trace = await answered(running, running.envelope("the bank charged me twice"))
    request_id = trace["request_id"]

    for table in (
        "switchboard.ingress_dedupe",
        "switchboard.message_inbox",
        "switchboard.routing_log",
        "switchboard.notifications",
        "finance.route_inbox",
        "finance.entries",
        "messenger.delivery_requests",
    ):
        assert len(await rows(running, table, request_id)) == 1, table
    assert [hop["target_butler"] for hop in trace["routing"]["dispatches"]] == ["finance"]
    assert [hop["lifecycle_state"] for hop in trace["butlers"]["finance"]["route_inbox"]] == ["processed"]
    assert [notification["source_butler"] for notification in trace["notifications"]] == ["finance"]
    [delivery] = trace["deliveries"]
    assert [attempt["outcome"] for attempt in delivery["attempts"]] == ["sent"]
    assert [receipt["receipt_type"] for receipt in delivery["receipts"]] == ["sent"]


async def test_a_pinned_target_is_obeyed_and_an_impossible_one_fails_visibly(running: RunningSystem) -> None:
    document = running.envelope("I paid the gym")
    trace = await answered(running, document | {"control": {"pinned_target": "health"}})
    assert trace["routing"]["decision"]["router"] == "policy"
    assert len(await rows(running, "health.entries", trace["request_id"])) == 1

    reply = (await post(running, running.envelope("hello") | {"control": {"pinned_target": "messenger"}})).json()
    failed = await running.finished(reply["request_id"])
    assert failed["lifecycle_state"] == "errored"
    assert failed["lifecycle_error"]["class"] == "routing_error"
    assert "messenger" in failed["lifecycle_error"]["message"]


# --- route.execute ---------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-056")
async def test_route_response_versioning(running: RunningSystem) -> None:
    good = route(running, "travel", "my flight leaves at nine")
    bad = good | {"target": {"butler": "health", "tool": "route.execute"}}
    async with as_switchboard(running, "travel") as client:
        answer, refusal = await call(client, "route.execute", good), await call(client, "route.execute", bad)

    for response in (answer, refusal):
        assert response["schema_version"] == "route_response.v1"
        assert response["request_context"] == {"request_id": good["request_context"]["request_id"]}
        assert response["timing"]["duration_ms"] >= 0
    assert (answer["status"], answer["result"]["answer"]) == ("ok", "Noted: my flight leaves at nine")
    assert refusal["status"] == "error"
    assert {"class", "message", "retryable"} <= refusal["error"].keys()
    assert "result" not in refusal and "error" not in answer


@pytest.mark.parametrize("version", ["route.v0", "route.v2", "ingest.v1", None])
async def test_a_route_of_another_version_is_refused_and_nothing_stored(
    running: RunningSystem, version: str | None
) -> None:
    document = route(running, "travel", "my flight leaves at ten") | {"schema_version": version}
    async with as_switchboard(running, "travel") as client:
        answer = await call(client, "route.execute", document)

    assert (answer["schema_version"], answer["status"]) == ("route_response.v1", "error")
    assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
    assert await rows(running, "travel.route_inbox", document["request_context"]["request_id"]) == []


@pytest.mark.scenario("S3-042")
async def test_at_least_once_delivery(running: RunningSystem) -> None:
    document = route(running, "health", "my knee hurts since Monday")
    request_id = document["request_context"]["request_id"]
    again = document | {"subrequest": document["subrequest"] | {"subrequest_id": "0" * 32}}
    async with as_switchboard(running, "health") as client:
        first = await call(client, "route.execute", document)
        second = await call(client, "route.execute", again)  # the same request and segment, sent anew

    assert first["status"] == "ok"
    assert second["result"] == first["result"]
    assert len(await rows(running, "health.route_inbox", request_id)) == 1
    assert len(await rows(running, "health.entries", request_id)) == 1
    assert len(await rows(running, "messenger.delivery_requests", request_id)) == 1
    assert [text for text in await running.answers() if "knee" in text] == [
        "[health] Noted: my knee hurts since Monday"
    ]


@pytest.mark.scenario("S3-042")
async def test_duplicate_subrequests_at_the_same_time_are_one_piece_of_work(running: RunningSystem) -> None:
    document = route(running, "health", "my elbow hurts since Tuesday")
    request_id = document["request_context"]["request_id"]
    async with as_switchboard(running, "health") as client:
        answers = await asyncio.gather(*(call(client, "route.execute", document) for _ in range(10)))

    assert [answer["status"] for answer in answers] == ["ok"] * 10
    assert all(answer["result"] == answers[0]["result"] for answer in answers)
    assert (await row(running, "health.route_inbox", request_id))["attempts"] == 1
    assert len([text for text in await running.answers() if "elbow" in text]) == 1


async def test_another_segment_of_the_same_request_is_another_piece_of_work(running: RunningSystem) -> None:
    document = route(running, "health", "my hip hurts")
    other = document | {
        "input": {"prompt": "my toe hurts"},
        "subrequest": document["subrequest"] | {"segment_id": "s2"},
    }
    async with as_switchboard(running, "health") as client:
        answers = [await call(client, "route.execute", one) for one in (document, other)]

    assert [answer["result"]["answer"] for answer in answers] == ["Noted: my hip hurts", "Noted: my toe hurts"]


@pytest.mark.parametrize("caller", [None, "operator", "finance"])
async def test_only_trusted_callers_may_route(running: RunningSystem, caller: str | None) -> None:
    document = route(running, "health", "I am not who I say")
    async with running.mcp("health", caller=caller) as client:
        answer = await call(client, "route.execute", document)

    assert (answer["error"]["class"], answer["error"]["retryable"]) == ("validation_error", False)
    assert (caller or "missing") in answer["error"]["message"]
    assert await rows(running, "health.route_inbox", document["request_context"]["request_id"]) == []


# --- reading ---------------------------------------------------------------------------------------------------------


async def test_requests_are_listed_newest_first_page_by_page(running: RunningSystem) -> None:
    replies = [await running.ingest(f"note number {number} for the list") for number in range(7)]
    await all_finished(running)
    total = (await counts(running))["message_inbox"]

    listed: list[str] = []
    query = "limit=3"
    while True:
        page = (await running.http.get(running.url(path=f"/api/requests?{query}"))).json()
        assert len(page["requests"]) <= 3
        listed += [request["request_id"] for request in page["requests"]]
        if page["next_cursor"] is None:
            break
        query = f"limit=3&before={page['next_cursor']}"
    assert listed[:7] == [reply["request_id"] for reply in reversed(replies)]
    assert len(listed) == len(set(listed)) == total

    errored = (await running.http.get(running.url(path="/api/requests?state=errored"))).json()["requests"]
    assert {request["lifecycle_state"] for request in errored} <= {"errored"}


async def test_the_api_describes_itself(running: RunningSystem) -> None:
    document = (await running.http.get(running.url(path="/api/openapi.json"))).json()

    assert document["openapi"].startswith("3.")
    assert document["servers"] == [{"url": "/api"}]
    assert {"/ingest", "/requests", "/requests/{request_id}", "/butlers", "/status"} <= document["paths"].keys()
    references = set(re.findall(r'"#/([^"]+)"', httpx2.Response(200, json=document).text))
    assert "components/schemas/IngestEnvelope.Source" in references, "parts are named after their owner"
    for reference in references:
        target: Any = document
        for key in reference.split("/"):
            assert key in target, f"#/{reference} leads nowhere"
            target = target[key]


async def test_metrics_count_what_happened(running: RunningSystem) -> None:
    document = running.envelope("I paid for the metrics")
    await answered(running, document)
    before = await metrics(running, "switchboard")
    await post(running, document)
    await answered(running, running.envelope("I paid for more metrics"))
    after = await metrics(running, "switchboard")

    def grown(name: str) -> float:
        return total(after, name) - total(before, name)

    assert grown("butlers_switchboard_message_received_total") == 2
    assert grown("butlers_switchboard_message_deduplicated_total") == 1
    assert total(await metrics(running, "finance"), "butlers_butler_route_executed_total") >= 2


async def metrics(running: RunningSystem, butler: str) -> str:
    return (await running.http.get(running.url(butler, "/metrics"))).text


def total(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line))


async def test_status_counts_requests_by_state(running: RunningSystem) -> None:
    await all_finished(running)
    counted = (await running.http.get(running.url(path="/api/status"))).json()["requests"]
    assert sum(counted.values()) == (await counts(running))["message_inbox"]
    assert counted.keys() <= {"parsed", "errored"}
