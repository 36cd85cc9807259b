"""The courier in a running system: remote butlers, the inboxes of local ones, and life-cycle events."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.courier.client import CourierClient
from butlers.errors import ClassifiedError, Forbidden, TargetUnavailable
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.courier.gateway import envelope
from tests.integration.courier.remote_butler import attached, operator, registered
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLES = Path(__file__).parents[3] / "examples"
REQUESTS = "SELECT * FROM switchboard.message_inbox WHERE normalized_text LIKE '%' || $1 || '%'"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("courier"), postgres_server, heartbeat_s=1) as system:
        yield system


# --- remote butlers --------------------------------------------------------------------------------------------------


def node() -> list[str]:
    """How Node runs a script that opens a WebSocket; skips where it cannot."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    version = int(subprocess.check_output([found, "--version"], text=True).removeprefix("v").split(".")[0])
    if version < 20:
        pytest.skip(f"node {version} has no WebSocket")
    return [found] if version >= 22 else [found, "--experimental-websocket"]


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_a_remote_butler_answers_a_chat(running: RunningSystem, language: str):
    """The examples, each in a process of its own, as a user runs them."""
    name, programs = f"garden_{language}", {"python": [sys.executable], "javascript": []}
    script = EXAMPLES / ("remote_butler.py" if language == "python" else "remote_butler.mjs")
    command = [*(programs[language] or node()), str(script)]
    where = {"COURIER": running.url("courier").replace("http", "ws"), "NAME": name}
    environment = os.environ | where | {"TOKEN": running.issue_token(name, Role.BUTLER)}
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    try:
        row = await running.until(lambda: registered(running, name))
        assert (row["transport"], row["eligibility_state"]) == ("courier", "active")
        words = f"Please think of watering the tomatoes in the garden, in {language}"
        await running.says(words)

        async def answers() -> list[str]:
            return [text for text in await running.answers() if language in text]

        assert await running.until(answers) == [f"[{name}] The garden has noted: {words}"]
        (request,) = await running.database.fetch(REQUESTS, f"in {language}")
        assert (await running.finished(str(request["request_id"])))["lifecycle_state"] == "parsed"
    finally:
        process.terminate()
        await process.wait()
    await running.database.execute("DELETE FROM switchboard.butler_registry WHERE name = $1", name)


async def test_a_request_waits_for_a_remote_butler_that_is_away_and_is_done_once(running: RunningSystem):
    async with attached(running, "cellar") as remote:
        await remote.register("claret", "burgundy")
    await running.says("Put the claret beside the burgundy")
    (request,) = await running.until(lambda: running.database.fetch(REQUESTS, "the claret"))
    request_id = str(request["request_id"])

    async def is_put_off() -> bool:
        return (await running.database.fetch(REQUESTS, "the claret"))[0]["not_before"] is not None

    await running.until(is_put_off)
    async with attached(running, "cellar") as remote:
        first = await remote.next("route.v1")  # and then the machine loses its power
    async with attached(running, "cellar") as remote:
        second = await remote.next("route.v1")
        assert second["deliver"]["id"] == first["deliver"]["id"]
        assert second["attempt"] == 2
        await remote.answer(second)
        ended = await running.finished(request_id)
    assert ended["lifecycle_state"] == "parsed"
    (outcome,) = (await running.database.fetch(REQUESTS, "the claret"))[0]["dispatch_outcomes"]
    assert (outcome["target_butler"], outcome["success"]) == ("cellar", True)


async def test_work_that_a_remote_butler_calls_poison_ends_with_its_reason(running: RunningSystem):
    async with attached(running, "attic") as remote:
        await remote.register("suitcase", "attic")
        await running.says("The suitcase belongs into the attic")
        frame = await remote.next("route.v1")
        await remote.socket.say(nack=frame["deliver"]["id"], lease=frame["lease"], **{"as": "poison"}, reason="no room")
        (request,) = await running.database.fetch(REQUESTS, "The suitcase")
        ended = await running.finished(str(request["request_id"]))
    assert ended["lifecycle_state"] == "errored"
    assert "attic gave the work back: no room" in json.dumps(ended)


async def test_what_a_remote_butler_may_not_or_cannot_is_refused(running: RunningSystem):
    for to in ("agents/cellar/outbox", "agents/porch/inbox", "agents/finance/inbox", "events/requests"):
        async with attached(running, "porch") as remote:
            await remote.socket.say(enqueue=envelope("x", to=to))
            assert await remote.socket.error() == "Forbidden"
            assert await remote.socket.closed() == 1008
    async with attached(running, "porch") as remote:
        card = {"name": "finance", "transport": "courier", "endpoint_url": "-", "description": "Another's name"}
        await remote.send("register_butler", card)
        refused = (await remote.next("tool_result"))["deliver"]["payload"]["error"]
        assert refused["fields"] == [{"field": "name", "error": "is not the caller, who is 'porch'"}]
        await remote.send("butler.hold", {"butler": "finance", "reason": "mine"})  # for operators
        refused = (await remote.next("tool_result"))["deliver"]["payload"]["error"]
        assert refused["class"] == "validation_error"
        assert "porch" in refused["message"] or "role" in refused["message"], refused
        await remote.send("sing", {"song": "no tool"})
        async with operator(running) as client:

            async def dead() -> Any:
                found = (await client.get("/v1/dead", stream="agents/porch/outbox"))["messages"]
                return next((one["reason"] for one in found if one["envelope"]["type"] == "sing"), None)

            assert await running.until(dead) == "sing is neither route_response.v1 nor a tool of Switchboard"
    assert (await registered(running, "finance"))["transport"] == "mcp"
    for name, role in (("visitor", Role.CLIENT), ("poller", Role.CONNECTOR)):
        client = CourierClient(running.url("courier"), token=running.issue_token(name, role))
        async with client:
            with pytest.raises(Forbidden):
                await client.get("/v1/stats")
    async with CourierClient(running.url("courier")) as client:
        with pytest.raises(ClassifiedError, match="token"):
            await client.get("/v1/stats")  # also on this machine: the system has tokens


async def test_an_outbox_that_an_operator_watches_is_dealt_with_from_its_first_message(running: RunningSystem):
    async with operator(running) as client, client.subscribe("agents/*/outbox") as watch:
        await watch.grant(10)
        async with attached(running, "loft") as remote:
            await remote.register("pigeons")
            assert (await anext(watch.frames()))["deliver"]["type"] == "register_butler"
    async with operator(running) as client:
        await client.post("/v1/groups/remove", {"stream": "agents/loft/outbox", "group": "default"})


async def test_a_watcher_is_not_the_butler(running: RunningSystem):
    async with attached(running, "dairy") as remote:
        await remote.register("cheese")
    async with operator(running) as client, client.subscribe("agents/dairy/inbox", group="watch") as watch:
        await watch.grant(10)
        await running.says("The cheese is ripe")
        (request,) = await running.until(lambda: running.database.fetch(REQUESTS, "The cheese"))

        async def is_put_off() -> bool:
            return (await running.database.fetch(REQUESTS, "The cheese"))[0]["not_before"] is not None

        await running.until(is_put_off)  # the butler is away, whoever looks
        async with attached(running, "dairy") as remote:
            frame = await remote.next("route.v1")
            seen = await anext(watch.frames())
            await watch.say(nack=seen["deliver"]["id"], lease=seen["lease"], **{"as": "poison"}, reason="not mine")
            await remote.answer(frame)
            ended = await running.finished(str(request["request_id"]))
    assert ended["lifecycle_state"] == "parsed"


async def acked(running: RunningSystem, stream: str, count: int) -> bool:
    async with operator(running) as client:
        groups = (await client.get("/v1/audit", stream=stream))["groups"]
    return bool(sum(group["acked"] for group in groups.values()) >= count)


async def test_a_call_whose_caller_is_gone_is_joined_and_its_late_answer_is_found(running: RunningSystem):
    """The dispatcher's own transport, with callers that do not wait."""
    transport = running.butler("switchboard").transport
    accepted = await running.ingest("I paid 3 euros for the late bill")
    await running.finished(accepted["request_id"])
    route = await running.database.fetchval(
        "SELECT envelope FROM finance.route_inbox WHERE request_id = $1", UUID(accepted["request_id"])
    )

    async def call(butler: str = "mill") -> dict[str, Any]:
        return await transport.call(butler, "route.execute", route)

    async with attached(running, "mill") as remote:
        await remote.register("flour")
        callers = [asyncio.create_task(call()), asyncio.create_task(call())]
        first = await remote.next("route.v1")
        callers[0].cancel()
        await asyncio.gather(callers[0], return_exceptions=True)
        assert not callers[1].done()  # one that leaves takes no other with it
        callers[1].cancel()
        await remote.answer(first)
        await running.until(lambda: acked(running, "agents/mill/outbox", 2))
        assert (await call())["result"] == {"by": "mill"}  # the late answer, and nothing was sent again
        again = asyncio.create_task(call())
        second = await remote.next("route.v1")
        await remote.ack(second)  # and its answer is lost
        await running.until(lambda: acked(running, "agents/mill/inbox", 3))
        again.cancel()
        third = asyncio.create_task(call())
        frame = await remote.next("route.v1")
        assert frame["deliver"]["id"] != second["deliver"]["id"]
        third.cancel()
        await asyncio.gather(again, third, return_exceptions=True)
        await remote.socket.say(
            nack=frame["deliver"]["id"], lease=frame["lease"], **{"as": "poison"}, reason="too late"
        )
        async with operator(running) as client:

            async def dead() -> Any:
                return (await client.get("/v1/dead", stream="agents/mill/inbox"))["messages"]

            await running.until(dead)
        with pytest.raises(TargetUnavailable, match="too late"):
            await call()


async def test_an_answer_waits_for_no_tool(running: RunningSystem):
    async with attached(running, "forge") as remote:
        await remote.register("anvil", "horseshoe")
        release, tools = asyncio.Event(), running.butler("switchboard").tools
        own = tools.call

        async def slow(name: str, caller: Any, arguments: Any) -> dict[str, Any]:
            if name == "list_butlers":
                await release.wait()
            return await own(name, caller, arguments)

        with patch.object(tools, "call", slow):
            await remote.send("list_butlers", {})
            await running.says("The horseshoe lies on the anvil")
            await remote.answer(await remote.next("route.v1"))
            (request,) = await running.database.fetch(REQUESTS, "The horseshoe")
            ended = await running.finished(str(request["request_id"]))
            release.set()
        assert ended["lifecycle_state"] == "parsed"


async def test_a_revoked_token_ends_its_socket_and_its_live_reader(running: RunningSystem):
    token = running.issue_token("visitor_of_views", Role.OPERATOR)
    address = running.url("courier", "/v1/live?view=latestPerAgent")
    bearer = {"Authorization": f"Bearer {token}"}
    async with (
        attached(running, "shed") as remote,
        attached(running, "barn") as other,
        running.http.stream("GET", address, headers=bearer) as live,
    ):
        lines = live.aiter_lines()
        assert (await anext(lines)).startswith("id: ")
        running.tokens.revoke("shed")
        running.tokens.revoke("visitor_of_views")
        assert await remote.socket.closed() == 1008
        async with asyncio.timeout(60):
            async for _ in lines:
                pass  # until it ends
        await other.register("hay")


# --- local butlers ---------------------------------------------------------------------------------------------------


async def test_a_route_in_the_inbox_of_a_local_butler_is_carried_out(running: RunningSystem):
    accepted = await running.ingest("I paid 12 euros for the electricity bill")
    await running.finished(accepted["request_id"])
    route = await running.database.fetchval(
        "SELECT envelope FROM finance.route_inbox WHERE request_id = $1", UUID(accepted["request_id"])
    )
    route["subrequest"] |= {"segment_id": "by-the-courier", "subrequest_id": str(uuid4())}
    async with operator(running) as client, client.subscribe("agents/finance/outbox") as outbox:
        await outbox.grant(1)
        routed = envelope("r-1", to="agents/finance/inbox", type="route.v1", payload=route)
        assert (await client.post("/v1/enqueue", {"envelope": routed}))["id"] == "r-1"
        answer = (await anext(outbox.frames()))["deliver"]
        assert (answer["type"], answer["corr"]) == ("route_response.v1", "r-1")
        assert answer["payload"]["status"] == "ok"
        note = envelope("note-1", to="agents/finance/inbox", type="note")
        await client.post("/v1/enqueue", {"envelope": note})

        async def dead() -> Any:
            return (await client.get("/v1/dead", stream="agents/finance/inbox"))["messages"]

        (refused,) = await running.until(dead)
    assert (refused["id"], refused["failures"]) == ("note-1", 0)
    assert "takes route.v1" in refused["reason"]
    stored = await running.database.fetch(
        "SELECT lifecycle_state FROM finance.route_inbox WHERE segment_id = 'by-the-courier'"
    )
    assert [row["lifecycle_state"] for row in stored] == ["processed"]


# --- life-cycle events -----------------------------------------------------------------------------------------------


async def test_what_becomes_of_a_request_and_its_answer_is_published_once(running: RunningSystem):
    accepted = await running.ingest("I paid 30 euros for the water bill")
    request_id = accepted["request_id"]
    await running.finished(request_id)
    await running.until(running.answers)
    async with operator(running) as client:
        seen = await events(client, "events/requests", request_id, "request.parsed")
        assert set(seen.values()) <= {"request.accepted", "request.progress", "request.parsed"}
        seen = await events(client, "events/deliveries", request_id, "delivery.delivered")
        assert list(seen.values())[-1] == "delivery.delivered"
        await running.restart()
        later = await running.ingest("I paid 40 euros for the gas bill")
        await running.finished(later["request_id"])
        seen = await events(client, "events/requests", later["request_id"], "request.parsed")
        assert list(seen.values())[-1] == "request.parsed"


async def events(client: CourierClient, stream: str, request_id: str, last: str) -> dict[str, str]:
    """The type by id of what a stream has about a request, once the last one is there; nothing is taken away, and no
    event is there twice.
    """
    seen: dict[str, str] = {}
    ids: list[str] = []
    async with client.subscribe(stream, group="test") as subscription:
        await subscription.grant(1_000)
        async with asyncio.timeout(60):
            async for frame in subscription.frames():
                event = frame["deliver"]
                ids.append(event["id"])
                if event["payload"]["request_id"] == request_id:
                    seen[event["id"]] = event["type"]
                    if event["type"] == last:
                        break
    assert len(ids) == len(set(ids))
    return seen
