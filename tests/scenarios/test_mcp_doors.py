"""The MCP doors from outside: who is let in, what is refused, and that a refusal leaves no trace."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import (
    MCP_HEADERS,
    changed_roster,
    forget,
    official_call,
    official_execute,
    route,
    stored,
    wish,
)
from tests.system import RunningSystem, running_system

EMPTY = {"delivery_requests": 0, "delivery_attempts": 0, "delivery_receipts": 0, "route_inbox": 0}
CALLERS = r'trusted_route_callers = \["switchboard"\]'
PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("system"), postgres_server) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    await forget(system)
    return system


async def test_the_official_client_lists_messengers_tools(running: RunningSystem) -> None:
    async with running.mcp("messenger", caller="switchboard") as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"route.execute", "status", "trace", "messenger_delivery_settle"} <= listed.keys()
    assert listed["route.execute"].input_schema["additionalProperties"] is False
    async with running.mcp("messenger", caller="switchboard", path="/mcp/llm") as client:
        underscored = {tool.name for tool in (await client.list_tools()).tools}
    assert underscored == {name.replace(".", "_") for name in listed}


async def test_a_caller_without_a_token_is_named_missing_and_nothing_is_stored(running: RunningSystem) -> None:
    response = await official_execute(running, route(running, wish()), caller=None)
    assert response["schema_version"] == "route_response.v1"
    assert response["status"] == "error"
    assert "result" not in response
    error = response["error"]
    assert (error["class"], error["retryable"]) == ("validation_error", False)
    assert "caller is missing" in error["message"]
    assert await stored(running) == EMPTY
    assert await running.answers() == []


@pytest.mark.scenario("M1-047")
async def test_trusted_route_callers_default_custom_and_empty_list(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path / "default", postgres_server) as running:
        await _refused(running, "general")
        await _refused(running, "operator")
        assert (await official_execute(running, route(running, wish("by default"))))["status"] == "ok"
        assert await running.answers() == ["[health] by default"]

    custom = changed_roster(
        tmp_path / "a", "messenger", (CALLERS, 'trusted_route_callers = ["switchboard", "control_plane"]')
    )
    async with running_system(tmp_path / "custom", postgres_server, roster_dir=custom) as running:
        token = running.issue_token("control_plane", Role.CLIENT)
        assert (await official_execute(running, route(running, wish("by another plane")), token=token))[
            "status"
        ] == "ok"
        assert (await official_execute(running, route(running, wish("by default"))))["status"] == "ok"
        assert await running.answers() == ["[health] by another plane", "[health] by default"]

    nobody = changed_roster(tmp_path / "b", "messenger", (CALLERS, "trusted_route_callers = []"))
    async with running_system(tmp_path / "nobody", postgres_server, roster_dir=nobody) as running:
        await _refused(running, "switchboard")
        await _refused(running, "general")


async def _refused(running: RunningSystem, caller: str) -> None:
    before = await stored(running)
    response = await official_execute(running, route(running, wish()), caller=caller)
    assert (response["error"]["class"], response["error"]["retryable"]) == ("validation_error", False)
    assert repr(caller) in response["error"]["message"]
    assert await stored(running) == before


async def test_every_butler_refuses_untrusted_routes(running: RunningSystem) -> None:
    for butler in running.roster:
        envelope = route(running, wish()) | {"target": {"butler": butler}}
        response = await official_call(running, butler, "route.execute", envelope, caller="travel")
        assert response["error"]["class"] == "validation_error", butler
        assert "'travel'" in response["error"]["message"]
        assert await running.database.fetchval(f"select count(*) from {butler}.sessions") == 0


async def test_what_is_addressed_to_another_butler_is_refused(running: RunningSystem) -> None:
    envelope = route(running, wish()) | {"target": {"butler": "health"}}
    response = await official_execute(running, envelope)
    assert [field["field"] for field in response["error"]["fields"]] == ["target.butler"]
    assert await stored(running) == EMPTY


async def test_unknown_and_revoked_tokens_are_refused_at_once(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        old = running.token("switchboard")
        assert (await official_execute(running, route(running, wish("one"))))["status"] == "ok"
        running.issue_token("switchboard", Role.BUTLER)
        for token in (old, "never-issued", old.upper()):
            assert await _answer_to(running, token) == 401
        assert (await official_execute(running, route(running, wish("three"))))["status"] == "ok"
        running.tokens.revoke("switchboard")
        assert await _answer_to(running, old) == 401
        assert await running.answers() == ["[health] one", "[health] three"]


async def _answer_to(running: RunningSystem, token: str) -> int:
    """The status of a call with this token; whatever is answered does not repeat it."""
    params = {"name": "route.execute", "arguments": route(running, wish("two"))}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = MCP_HEADERS | {"Authorization": f"Bearer {token}"}
    response = await running.http.post(running.url("messenger", "/mcp"), json=asked, headers=headers)
    assert token not in response.text
    return response.status_code


async def test_a_web_page_cannot_reach_the_doors(running: RunningSystem) -> None:
    for path in ("/mcp", "/mcp/llm"):
        url = running.url("messenger", path)
        assert await _status(running, url, {}) == 200
        assert await _status(running, url, {"Host": "evil.example"}) == 421
        assert await _status(running, url, {"Host": "127.0.0.1.evil.example:40104"}) == 421
        assert await _status(running, url, {"Origin": "https://evil.example"}) == 403
        assert await _status(running, url, {"Content-Type": "text/plain"}) in (400, 415)


async def _status(running: RunningSystem, url: str, headers: dict[str, str]) -> int:
    return (await running.http.post(url, json=PING, headers=MCP_HEADERS | headers)).status_code


async def test_a_huge_body_is_refused(running: RunningSystem) -> None:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * 5_000_000 + b'"}'
    url = running.url("messenger", "/mcp")
    assert (await running.http.post(url, content=body, headers=MCP_HEADERS)).status_code == 413
    with contextlib.suppress(httpx2.WriteError, httpx2.ReadError):  # it may hang up in the middle of it
        assert (await running.http.post(url, content=_chunks(body), headers=MCP_HEADERS)).status_code == 413
    assert (await running.http.get(running.url("messenger", "/healthz"))).status_code == 200
    assert await stored(running) == EMPTY


async def _chunks(body: bytes) -> Any:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]


async def test_what_is_not_mcp_gets_a_4xx_without_a_stack_trace(running: RunningSystem) -> None:
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"jsonrpc": "1.0"}', b"null"):
        response = await running.http.post(running.url("messenger", "/mcp"), content=body, headers=MCP_HEADERS)
        assert 400 <= response.status_code < 500
        assert "Traceback" not in response.text
        assert 'File "' not in response.text


async def test_a_long_body_without_a_token_is_refused_before_it_is_taken_apart(running: RunningSystem) -> None:
    url, long = running.url("messenger", "/mcp"), PING | {"params": {"x": "x" * 70_000}}
    refused = await running.http.post(url, json=long, headers=MCP_HEADERS)
    assert (refused.status_code, refused.json()["error"]["fields"][0]["field"]) == (413, "body")
    with_token = await running.http.post(url, json=long, headers=MCP_HEADERS | running.bearer())
    assert with_token.status_code == 200
