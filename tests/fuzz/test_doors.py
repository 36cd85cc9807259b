"""The same malformed envelopes at the doors of a running system: the tool boxes, MCP over HTTP, and the ingest API.

Whatever comes, the answer has a class, and the class is never `internal_error`; nor is that of any attempt that a
malformed envelope led to, and no loop fails meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from benchmarks.chaos.messenger import LIFTED
from benchmarks.chaos.roster import lifted_roster

from butlers.butler.identity import Caller
from butlers.errors import ClassifiedError
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.fuzz.corpus import CONTACT, INGESTS, NOTIFIES, REQUEST, ROUTES
from tests.fuzz.mutation import as_json, hostile, mangled, mutated
from tests.fuzz.tries import Findings, dice_of, tries
from tests.scenarios.messenger_door import MCP_HEADERS
from tests.system import RunningSystem, running_system

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

AT_ONCE = 40
CALLERS = (Caller(name="switchboard", role=Role.BUTLER),) * 8 + (Caller(name="health", role=Role.BUTLER), None)
PLAUSIBLE = (REQUEST, CONTACT, 1, 10, "telegram", "uncertain", "failed", "1h", "a", "2026-01-01T00:00:00Z", "* * * * *")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    folder = tmp_path_factory.mktemp("fuzz")
    roster = lifted_roster(folder / "roster", LIFTED, route_timeout_s=3.0)
    async with running_system(folder, postgres_server, roster_dir=roster, messenger_patience_s=0.0) as system:
        yield system
        await _nothing_failed_behind_the_doors(system)


async def _nothing_failed_behind_the_doors(running: RunningSystem) -> None:
    broken = await running.database.fetch(
        """SELECT DISTINCT error_class, error_message FROM messenger.delivery_attempts
           WHERE error_class = 'internal_error'"""
    )
    assert [dict(row) for row in broken] == []
    assert [failing for butler in running.system.butlers if (failing := butler.supervisor.failures())] == []


async def _all(kind: str, one: Callable[[int], Awaitable[None]]) -> None:
    numbers = iter(range(tries(kind)))

    async def work() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def test_malformed_envelopes_in_the_tool_boxes(running: RunningSystem) -> None:
    findings = Findings("tool_box")
    doors = (
        ("messenger", "route.execute", ROUTES),
        ("switchboard", "notify", NOTIFIES),
        ("general", "route.execute", ROUTES),
        ("switchboard", "ingest", INGESTS),
    )

    async def one(number: int) -> None:
        dice = dice_of("tool_box", number)
        [(butler, tool, corpus)] = dice.choices(doors, weights=(6, 2, 1, 1))
        document = mutated(dice.choice(corpus), dice)
        arguments = document if isinstance(document, dict) else {"document": document}
        visit = _Visit(butler=butler, tool=tool, caller=dice.choice(CALLERS), arguments=arguments)
        await _call(findings, number, running, visit)

    await _all("tool_box", one)
    findings.check()


async def test_nonsense_as_arguments_of_every_tool(running: RunningSystem) -> None:
    findings = Findings("tools")
    tools = [
        (butler.name, tool)
        for butler in running.system.butlers
        if butler.name in ("messenger", "switchboard", "general")
        for tool in butler.tools
    ]

    async def one(number: int) -> None:
        dice = dice_of("tools", number)
        butler, tool = tools[number % len(tools)]
        names = list(tool.input_schema().get("properties", {}))
        caller = dice.choice((Caller(name=butler, role=Role.BUTLER), Caller(name="operator", role=Role.OPERATOR)))
        visit = _Visit(butler=butler, tool=tool.name, caller=caller, arguments=_nonsense(names, dice))
        await _call(findings, number, running, visit)

    await _all("tools", one)
    findings.check()


def _nonsense(names: list[str], dice: random.Random) -> dict[str, Any]:
    chosen = [name for name in names if dice.random() < 0.7]
    return {name: hostile(dice) if dice.random() < 0.5 else dice.choice(PLAUSIBLE) for name in chosen}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visit:
    butler: str
    tool: str
    caller: Caller | None
    arguments: dict[str, Any]


async def _call(findings: Findings, number: int, running: RunningSystem, visit: _Visit) -> None:
    tools, where = running.butler(visit.butler).tools, f"{visit.butler} {visit.tool}"
    try:
        async with asyncio.timeout(30):
            answer = await tools.call(visit.tool, visit.caller, visit.arguments)
    except ClassifiedError as error:
        answer = {"error": error.describe()}
    except Exception as error:
        findings.add(number, f"{where}: {type(error).__name__}: {str(error)[:150]}")
        return
    error_of = answer.get("error")
    if isinstance(error_of, dict) and error_of.get("class") == "internal_error":
        findings.add(number, f"{where}: internal_error: {error_of.get('message')}")


async def test_malformed_requests_over_http(running: RunningSystem) -> None:
    findings = Findings("door")
    tokens = {name: running.bearer(name) for name in ("switchboard", "health")}

    async def one(number: int) -> None:
        dice = dice_of("door", number)
        url, headers, body = _request(running, tokens, dice)
        try:
            response = await running.http.post(url, content=body, headers=headers)
        except Exception as error:
            findings.add(number, f"{url[-9:]} {type(error).__name__}")
            return
        if response.status_code >= 500:
            findings.add(number, f"{url[-9:]} status {response.status_code} {response.text[:150]}")
        if b"internal_error" in response.content and b"internal_error" not in body:
            findings.add(number, f"{url[-9:]} {response.text[:200]}")

    await _all("door", one)
    findings.check()


def _request(
    running: RunningSystem, tokens: dict[str, dict[str, str]], dice: random.Random
) -> tuple[str, dict[str, str], bytes]:
    if dice.random() < 0.4:
        document: Any = dice.choice(INGESTS)
        url, headers = running.url(path="/api/ingest"), {"Content-Type": "application/json"}
    else:
        path, tool = dice.choice((("/mcp", "route.execute"), ("/mcp/llm", "route_execute")))
        params = {"name": tool, "arguments": dice.choice(ROUTES)}
        document = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        url, headers = running.url("messenger", path), MCP_HEADERS | dice.choice(list(tokens.values()))
    body = mangled(as_json(document), dice) if dice.random() < 0.5 else as_json(mutated(document, dice))
    return url, headers, body
