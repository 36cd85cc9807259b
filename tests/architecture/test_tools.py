"""What a language model sees of the tools: names, descriptions, annotations, schemas; and what it may call."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import fastmcp
import jsonschema  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from fastmcp.client.transports import StreamableHttpTransport

from butlers import __version__
from butlers.butler.toolbox import AnyTool
from butlers.contracts.notify import NotifyResponse
from butlers.contracts.route import RouteResponse
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import MCP_HEADERS
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

LLM_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    async with running_system(tmp_path_factory.mktemp("tools"), postgres_server) as system:
        yield system


def every_tool(running: RunningSystem) -> list[tuple[str, AnyTool]]:
    return [(butler.name, tool) for butler in running.system.butlers for tool in butler.tools]


def undescribed(schema: Mapping[str, Any], whole: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Properties without a description, at any depth."""
    for name, inner in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        if not inner.get("description", "").strip():
            yield here
        yield from undescribed(inner, whole, here)
    if reference := schema.get("$ref"):
        yield from undescribed(whole["$defs"][reference.rpartition("/")[2]], whole, path)
    for key in ("anyOf", "allOf", "oneOf"):
        for option in schema.get(key, ()):
            yield from undescribed(option, whole, path)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from undescribed(schema[key], whole, f"{path}[]")


async def test_every_parameter_of_every_tool_is_described(running: RunningSystem) -> None:
    schemas = [(butler, tool.name, tool.input_schema()) for butler, tool in every_tool(running)]
    wrong = {f"{butler} {name}": [*undescribed(schema, schema)] for butler, name, schema in schemas}
    assert len(schemas) > 100
    assert {where: found for where, found in wrong.items() if found} == {}


async def test_every_tool_has_a_name_that_llm_hosts_take_and_a_sentence(running: RunningSystem) -> None:
    for butler, tool in every_tool(running):
        assert LLM_NAME.fullmatch(tool.name.replace(".", "_")), (butler, tool.name)
        assert tool.description.endswith("."), (butler, tool.name)


async def test_every_tool_declares_what_it_answers_and_what_it_does(running: RunningSystem) -> None:
    for butler, tool in every_tool(running):
        where = f"{butler} {tool.name}"
        schema = tool.output_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object", where
        assert [*undescribed(schema, schema)] == [], where
        assert not (tool.hints.read_only and tool.hints.destructive), where


# --- as clients see it -----------------------------------------------------------------------------------------------


def fast_client(
    running: RunningSystem, butler: str, *, caller: str | None = "operator", path: str
) -> fastmcp.Client[Any]:
    headers = {"Authorization": f"Bearer {running.token(caller)}"} if caller else {}
    return fastmcp.Client(StreamableHttpTransport(running.url(butler, path), headers=headers))


@pytest.mark.parametrize(("path", "dotted"), [("/mcp", True), ("/mcp/llm", False)])
async def test_fastmcp_and_the_official_client_see_the_same_described_tools(
    running: RunningSystem, path: str, dotted: bool
) -> None:
    async with running.mcp("switchboard", path=path) as official:
        listed = {tool.name: tool for tool in (await official.list_tools()).tools}
        info, instructions = official.server_info, official.instructions
    async with fast_client(running, "switchboard", path=path) as fast:
        seen = {tool.name: tool for tool in await fast.list_tools()}
        answer = await fast.call_tool("list_butlers")
    assert info is not None
    assert (info.name, info.version) == ("butlers.switchboard", __version__)
    assert instructions is not None
    assert "bearer token" in instructions
    assert seen.keys() == listed.keys()
    assert ("request.retry" if dotted else "request_retry") in listed
    for name, tool in listed.items():
        assert dotted or LLM_NAME.fullmatch(name)
        assert tool.title, name
        assert tool.description, name
        assert tool.output_schema is not None, name
        assert tool.annotations is not None, name
        hints = tool.annotations
        assert None not in (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        assert seen[name].annotations == hints, name
        assert seen[name].output_schema == tool.output_schema, name
    hinted = {name: tool.annotations for name, tool in listed.items() if tool.annotations is not None}
    assert hinted["list_butlers"].read_only_hint is True
    assert hinted["state_set"].destructive_hint is True
    assert hinted["notify"].open_world_hint is True
    assert len(answer.structured_content["butlers"]) > 5


async def test_a_list_shows_what_the_caller_may_call(running: RunningSystem) -> None:
    client = running.issue_token("visitor", Role.CLIENT)

    async def names(**given: Any) -> set[str]:
        async with running.mcp("switchboard", **given) as door:
            return {tool.name for tool in (await door.list_tools()).tools}

    assert await names(caller=None) == set()
    assert await names(token=client) == {"ingest", "ingest.batch", "list_butlers", "status"}
    operator, butler = await names(), await names(caller="health")
    assert {"request.retry", "state_set", "ingest"} <= operator
    assert not operator & {"notify.dispatch", "audit.record", "backfill.poll", "route.execute"}
    assert {"notify.dispatch", "register_butler"} <= butler
    assert not butler & {"request.retry", "state_set", "routing.rollback"}
    async with running.mcp("health", caller="switchboard") as door:
        assert "route.execute" in {tool.name for tool in (await door.list_tools()).tools}


@pytest.mark.parametrize("path", ["/mcp", "/mcp/llm"])
@pytest.mark.parametrize("header", ["Bearer never-issued", "Bearer", "Basic b3BlcmF0b3I6eA==", "nonsense"])
async def test_a_bad_token_is_401_before_anything_else(running: RunningSystem, path: str, header: str) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    for butler in ("switchboard", "messenger", "health"):
        answer = await running.http.post(
            running.url(butler, path), json=asked, headers=MCP_HEADERS | {"Authorization": header}
        )
        assert answer.status_code == 401, (butler, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer ")
        assert answer.json()["error"]["class"] == "validation_error"
        assert "never-issued" not in answer.text


async def test_a_failed_notify_and_a_failed_route_are_errors_that_carry_their_envelope(running: RunningSystem) -> None:
    async with running.mcp("health") as door:
        failed = await door.call_tool("notify", {"message": "hello", "channel": "sms", "recipient": "+15550100"})
    assert failed.is_error is True
    content = failed.structured_content
    assert (content["schema_version"], content["status"]) == ("notify_response.v1", "error")
    NotifyResponse.parse(content)
    async with running.mcp("health", caller="switchboard") as door:
        refused = await door.call_tool("route.execute", {"schema_version": "route.v1"})
    assert refused.is_error is True
    assert refused.structured_content["error"]["class"] == "validation_error"
    RouteResponse.parse(refused.structured_content)
    async with running.mcp("health") as door:
        sent = await door.call_tool("notify", {"message": "hello"})
    assert sent.is_error is False
    assert sent.structured_content["delivery"]["status"] == "delivered"
