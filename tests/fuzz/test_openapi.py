"""`/api` is as its OpenAPI says: schemathesis calls it as the description allows and as it does not, and finds nothing.

The whole proof (`BUTLERS_FUZZ=100000`) takes 50 examples of each operation and the edges of every schema; otherwise two
examples each. NUL is refused in every place of every operation and in every argument of every tool.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from butlers.butler.identity import Caller
from butlers.errors import ClassifiedError
from butlers.operations.operation import Role
from butlers.storage.embedded import EmbeddedPostgres
from tests.fuzz.tries import TOTAL, WHOLE_PROOF
from tests.system import RunningSystem, running_system

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800)]

NUL = "a\x00b"
UUID = "019b76da-a800-7000-8000-000000000001"
# What a schema cannot say (a cursor of another page, a version that is not on trial) is refused with 422 all the same,
# and two long parameters are more than an address may hold.
CONFIGURATION = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 414, 415, 422, 429]

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 414, 422, 429]
"""
OPEN_TO_ALL_TOOLS = {"/ingest", "/ingest/batch", "/requests", "/requests/{request_id}", "/butlers", "/status"}

Operation = tuple[str, str, dict[str, Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    folder = tmp_path_factory.mktemp("openapi")
    async with running_system(folder, postgres_server, api_token_required=True) as system:
        yield system


async def description(running: RunningSystem) -> dict[str, Any]:
    response = await running.http.get(running.url(path="/api/openapi.json"))
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield verb.upper(), path, operation


def body_of(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = (
        operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    )
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"].get(name, schema)
    return found


async def test_every_operation_says_what_it_takes_answers_and_refuses(running: RunningSystem) -> None:
    document = await description(running)
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for verb, path, operation in operations(document):
        where = f"{verb} {path}"
        assert operation["security"] == [{"bearer": []}], where
        statuses = set(operation["responses"])
        assert {"401", "403", "422", "503"} <= statuses, where
        for status, response in operation["responses"].items():
            schema = response["content"]["application/json"]["schema"]
            assert schema, (where, status)
            if status >= "400":
                assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, where
        success = operation["responses"][min(statuses)]["content"]["application/json"]["schema"]
        assert "$ref" in success or path in OPEN_TO_ALL_TOOLS, where  # the model that answers
        if "requestBody" in operation:
            body = body_of(document, operation)
            assert body.get("properties") or "notify.v1" in body["description"], where
            assert {"413", "415"} <= statuses, where
    assert "x-tool" not in json.dumps(document)
    references = {part.split('"')[0] for part in json.dumps(document).split('"$ref": "')[1:]}
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references <= known


async def test_schemathesis_finds_nothing(running: RunningSystem, tmp_path: Path) -> None:
    whole = TOTAL >= WHOLE_PROOF
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "st"),
        *("--config-file", str(tmp_path / "schemathesis.toml"), "--no-color"),
        *("run", running.url(path="/api/openapi.json")),
        *("-H", f"Authorization: Bearer {running.token()}"),
        *("--phases", "examples,coverage,fuzzing" if whole else "fuzzing"),
        *("--max-examples", "50" if whole else "2"),
        *("--seed", "12", "--workers", "1"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode(errors="replace")
    print(said.strip().splitlines()[-1])
    assert process.returncode == 0, said[-20_000:]
    assert "Selected: " in said


async def test_nul_is_422_in_every_place_of_every_operation(running: RunningSystem) -> None:
    document, found = await description(running), []
    for verb, path, operation in operations(document):
        for address, body in _with_nul(document, path, operation):
            response = await running.http.request(
                verb, running.url(path=f"/api{address}"), json=body, headers=running.bearer()
            )
            if response.status_code != 422:
                found.append(f"{verb} {address!r} {body!r}: {response.status_code} {response.text[:200]}")
    assert not found, "\n".join(found)


def _with_nul(document: dict[str, Any], path: str, operation: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each parameter and each field of the body in turn; the rest as it should be."""
    body = body_of(document, operation)
    given = {name: _some(document, schema) for name, schema in body.get("properties", {}).items()}
    parameters = operation.get("parameters", [])
    plain = _filled(path, parameters)
    for parameter in parameters:
        if parameter["in"] == "path":
            others = [one for one in parameters if one is not parameter]
            yield _filled(path.replace(f"{{{parameter['name']}}}", "a%00b"), others), given or None
        else:
            yield f"{plain}?{parameter['name']}=a%00b", given or None
    for name in given:
        yield plain, given | {name: NUL}


def _filled(path: str, parameters: list[dict[str, Any]]) -> str:
    for parameter in parameters:
        path = path.replace(f"{{{parameter['name']}}}", "pause" if parameter["name"] == "deed" else UUID)
    return path


def _some(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """A value of the right kind, as far as it matters: something is wrong with the call in any case."""
    if "$ref" in schema:
        return _some(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    return kinds.get(schema.get("type", ""), "some")


async def test_nul_is_refused_in_every_argument_of_every_tool(running: RunningSystem) -> None:
    found = []
    for butler in running.system.butlers:
        for tool in butler.tools:
            for name in tool.input_schema().get("properties", {}):
                for caller in (Caller(name=butler.name, role=Role.BUTLER), Caller(name="o", role=Role.OPERATOR)):
                    for value in (NUL, {"deep": [NUL]}):
                        said = await _said(butler.tools, tool.name, caller, {name: value})
                        if said not in ("validation_error", "error"):
                            found.append(f"{butler.name} {tool.name} {name}: {said}")
    assert not found, "\n".join(found)


async def _said(tools: Any, tool: str, caller: Caller, arguments: dict[str, Any]) -> str:
    try:
        answer = await tools.call(tool, caller, arguments)
    except ClassifiedError as refused:
        return refused.error_class.value
    error = answer.get("error")
    return str(error["class"] if isinstance(error, dict) else answer.get("status", "accepted"))
