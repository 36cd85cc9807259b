"""The tool box: who may call, and that arguments are checked without echoing them."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from butlers.butler.identity import Caller, TokenFile
from butlers.butler.toolbox import EnvelopeTool, Tool, ToolBox, authenticate
from butlers.clock import ManualClock
from butlers.contracts.envelope import Identity, Value
from butlers.errors import ErrorClass, InternalError, OverloadRejected, ValidationError
from butlers.operations.operation import BUTLERS, EVERY_ROLE, READS, NoArguments, Result, Role

SECRET = "correct horse battery staple"
OPERATOR = Caller(name="operator", role=Role.OPERATOR)


class Arguments(Value):
    name: Identity
    count: int = 1


async def echo(caller: Caller, arguments: Any) -> dict[str, Any]:
    return {"caller": caller.name, "arguments": arguments.to_wire()}


def box(**changes: Any) -> ToolBox:
    given: dict[str, Any] = {"name": "thing.do", "description": "d", "arguments": Arguments, "handler": echo}
    given |= {"returns": Result, "hints": READS}
    return ToolBox([Tool(**given | changes)])


async def test_a_call_reaches_its_handler_with_checked_arguments() -> None:
    answer = await box().call("thing.do", OPERATOR, {"name": "x"})
    assert answer == {"caller": "operator", "arguments": {"name": "x", "count": 1}}


@pytest.mark.parametrize("caller", [None, Caller(name="anna", role=Role.CLIENT), Caller(name="t", role=Role.CONNECTOR)])
async def test_who_may_not_call_is_told_so_before_the_arguments_are_looked_at(caller: Caller | None) -> None:
    with pytest.raises(ValidationError) as caught:
        await box(roles=BUTLERS).call("thing.do", caller, {"surprise": SECRET})
    assert [field.field for field in caught.value.fields] == ["authorization"]
    assert "thing.do" in caught.value.message


@pytest.mark.parametrize("role", list(Role))
async def test_a_tool_for_every_role_takes_every_role(role: Role) -> None:
    assert await box(roles=EVERY_ROLE).call("thing.do", Caller(name="x", role=role), {"name": "x"})


async def test_every_wrong_argument_is_named_and_none_is_echoed() -> None:
    with pytest.raises(ValidationError) as caught:
        await box().call("thing.do", OPERATOR, {"count": SECRET, "surprise": SECRET})
    assert {field.field for field in caught.value.fields} == {"name", "count", "surprise"}
    assert SECRET not in str(caught.value.describe())


@pytest.mark.parametrize("arguments", [{"count": "1", "name": "x"}, {"count": True, "name": "x"}, {"name": 5}])
async def test_arguments_are_not_coerced(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        await box().call("thing.do", OPERATOR, arguments)


async def test_a_tool_without_arguments_takes_none() -> None:
    tools = box(arguments=NoArguments)
    assert await tools.call("thing.do", OPERATOR, {}) == {"caller": "operator", "arguments": {}}
    with pytest.raises(ValidationError):
        await tools.call("thing.do", OPERATOR, {"name": "x"})


async def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(ValidationError, match="no such tool"):
        await box().call("thing.undo", OPERATOR, {})


async def test_a_failure_without_a_class_becomes_an_internal_error_without_its_text() -> None:
    async def broken(_caller: Caller, _arguments: Any) -> dict[str, Any]:
        raise KeyError(SECRET)

    with pytest.raises(InternalError) as caught:
        await box(handler=broken).call("thing.do", OPERATOR, {"name": "x"})
    assert caught.value.error_class is ErrorClass.INTERNAL_ERROR
    assert SECRET not in caught.value.message


async def test_a_classified_failure_stays_what_it_is() -> None:
    async def full(_caller: Caller, _arguments: Any) -> dict[str, Any]:
        raise OverloadRejected("full", retry_after=2)

    with pytest.raises(OverloadRejected):
        await box(handler=full).call("thing.do", OPERATOR, {"name": "x"})


async def test_an_envelope_tool_judges_caller_and_arguments_itself() -> None:
    seen: list[Any] = []

    async def take(caller: Caller | None, arguments: dict[str, Any]) -> dict[str, Any]:
        seen.append((caller, arguments))
        return {}

    tools = ToolBox(
        [
            EnvelopeTool(
                name="route.execute", description="d", arguments=Arguments, returns=Result, hints=READS, call=take
            )
        ]
    )
    await tools.call("route.execute", None, {"anything": 1})
    assert seen == [(None, {"anything": 1})]


def test_two_tools_of_one_name_are_refused_and_all_are_listed() -> None:
    tools = box()
    with pytest.raises(ValueError, match=r"thing\.do"):
        tools.add(*box())
    tools.add(Tool(name="a", description="d", returns=Result, hints=READS, handler=echo))
    assert tools.names() == ["a", "thing.do"]
    assert [tool.name for tool in tools] == ["a", "thing.do"]


def test_a_schema_says_what_is_closed() -> None:
    (tool,) = box()
    assert tool.input_schema()["additionalProperties"] is False
    assert tool.input_schema()["required"] == ["name"]


def request(header: str | None) -> Request:
    headers = [(b"authorization", header.encode("latin-1"))] if header is not None else []
    return Request({"type": "http", "headers": headers})


def test_a_token_names_the_caller(tmp_path: Any) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", ManualClock())
    secret = tokens.issue("anna", Role.CLIENT).secret
    anna = Caller(name="anna", role=Role.CLIENT)
    assert authenticate(request(f"Bearer {secret}"), tokens) == anna
    assert authenticate(request(f"bearer  {secret} "), tokens) == anna
    assert authenticate(request(None), tokens) is None
    assert authenticate(None, tokens) is None


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", f"Bearer {SECRET}", f"Basic {SECRET}", "Bearer \xff"])
def test_a_wrong_token_is_refused_and_not_taken_for_none(tmp_path: Any, header: str) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", ManualClock())
    tokens.issue("anna", Role.CLIENT)
    with pytest.raises(ValidationError) as caught:
        authenticate(request(header), tokens)
    assert SECRET not in str(caught.value.describe())
