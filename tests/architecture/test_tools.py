"""What a language model sees of the tools: each parameter of each tool of each butler says what it is."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from butlers.butler.surface import AnyTool
from butlers.storage.embedded import EmbeddedPostgres
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
