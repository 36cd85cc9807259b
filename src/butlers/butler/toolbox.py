"""The tools a butler offers, whichever door they are called by (`mcp_door`).

Arguments are checked here, strictly and all at once, from the raw JSON: an SDK would coerce them and echo rejected
values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

import pydantic
from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.requests import Request

from butlers.butler.identity import Caller, TokenFile
from butlers.contracts.envelope import Value, field_errors, holds_nul, invalid
from butlers.errors import ClassifiedError, Forbidden, InternalError, UnknownTool, ValidationError
from butlers.operations.operation import EVERY_ROLE, Hints, Operation, Result, Role, object_schema
from butlers.telemetry import get_logger

log = get_logger("butlers.surface")


class PendingApproval(Result):
    """What a tool behind the gate answers instead: a person decides first."""

    status: str = Field(description="pending_approval, or what became of the same call before")
    action_id: str | None = Field(description="the pending action, for approve_action and reject_action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Operation):
    """An operation and what carries it out."""

    handler: Callable[[Caller, Any], Awaitable[dict[str, Any]]]
    gated: bool = False  # a call may answer `PendingApproval`

    @classmethod
    def of(cls, operation: Operation, handler: Callable[[Caller, Any], Awaitable[dict[str, Any]]]) -> Tool:
        return cls(**_declared(operation), handler=handler)

    async def call(self, caller: Caller | None, arguments: dict[str, Any]) -> dict[str, Any]:
        if caller is None or not self.allows(caller):
            raise Forbidden.of("authorization", f"{_who(caller)} may not call {self.name}")
        return await self.handler(caller, parse_arguments(self.arguments, arguments))

    def allows(self, caller: Caller | None) -> bool:
        if caller is None:
            return False
        owned = self.owner is None or caller.role is not Role.BUTLER or caller.name == self.owner
        return owned and caller.role in self.roles

    def output_schema(self) -> dict[str, Any]:
        return object_schema(self.returns, PendingApproval) if self.gated else object_schema(self.returns)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeTool(Operation):
    """A tool whose arguments are an envelope: it reads the raw data, judges the caller and shapes its own errors."""

    call: Callable[[Caller | None, dict[str, Any]], Awaitable[dict[str, Any]]]
    roles: frozenset[Role] = EVERY_ROLE  # who finds it in the list; `call` decides who may call it
    callers: frozenset[str] | None = None  # of these, only callers of these names; None: all

    @classmethod
    def of(
        cls, operation: Operation, call: Callable[[Caller | None, dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> EnvelopeTool:
        return cls(**_declared(operation), call=call)

    def allows(self, caller: Caller | None) -> bool:
        named = self.callers is None or (caller is not None and caller.name in self.callers)
        return caller is not None and named and caller.role in self.roles


def _declared(operation: Operation) -> dict[str, Any]:
    return {field.name: getattr(operation, field.name) for field in dataclasses.fields(operation)}


AnyTool = Tool | EnvelopeTool


Method = TypeVar("Method", bound=Callable[..., Awaitable[dict[str, Any]]])


def tool(name: str, description: str, returns: type[BaseModel], hints: Hints) -> Callable[[Method], Method]:
    """A method `(self, caller, arguments)` is the handler of a tool; the annotation of its arguments is their model."""

    def declare(method: Method) -> Method:
        method.__tool__ = {  # type: ignore[attr-defined]
            "name": name,
            "description": description,
            "returns": returns,
            "hints": hints,
        }
        return method

    return declare


def tools_of(group: object, *, owner: str | None) -> list[Tool]:
    """The tools that the methods of a group carry out."""
    methods = [method for method in vars(type(group)).values() if hasattr(method, "__tool__")]
    return [
        Tool(
            **method.__tool__,
            arguments=list(get_type_hints(method).values())[1],
            handler=getattr(group, method.__name__),
            owner=owner,
        )
        for method in methods
    ]


class ToolBox:
    """All tools of one butler by name."""

    def __init__(self, tools: Iterable[AnyTool] = ()) -> None:
        self._tools: dict[str, AnyTool] = {}
        self.add(*tools)

    def add(self, *tools: AnyTool) -> None:
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are called {tool.name}")
            self._tools[tool.name] = tool

    def names(self) -> list[str]:
        return sorted(self._tools)

    def __getitem__(self, name: str) -> AnyTool:
        return self._tools[name]

    def allowed_to(self, caller: Caller | None) -> list[str]:
        """The names of the tools that a caller may call."""
        return [tool.name for tool in self if tool.allows(caller)]

    def find(self, name: str) -> AnyTool | None:
        return self._tools.get(name)

    def __iter__(self) -> Any:
        return iter(self._tools[name] for name in self.names())

    async def call(self, name: str, caller: Caller | None, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool; every failure is a `ClassifiedError`."""
        tool = self._tools.get(name)
        if tool is None:
            raise UnknownTool.of("name", "no such tool")
        try:
            return await tool.call(caller, arguments)
        except ClassifiedError:
            raise
        except Exception as error:
            log.error("tool failed", error=error, tool=name)
            raise InternalError(f"{name} failed unexpectedly ({type(error).__name__})") from error


def authenticate(request: Request | None, tokens: TokenFile) -> Caller | None:
    """The principal of a request; None without a token. A token that is not known is refused outright."""
    header = request.headers.get("authorization") if request is not None else None
    if header is None:
        return None
    scheme, _, secret = header.partition(" ")
    caller = tokens.caller_of(secret.strip()) if scheme.lower() == "bearer" else None
    if caller is None:
        raise invalid("authorization", "the token is not known here")
    return caller


def parse_arguments(model: type[Value], arguments: Mapping[str, Any], *, below: str = "") -> Value:
    """The arguments, checked; a `ValidationError` names every wrong field, `below` the field that holds them."""
    if nul := tuple(name for name, value in arguments.items() if holds_nul({name: value})):
        field = nul[0].replace("\x00", "")
        raise invalid(_joined(below, field), "must not contain NUL characters, which cannot be stored")
    try:
        encoded = to_json(arguments)
    except ValueError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        raise invalid(below, "must be text that UTF-8 can carry") from None
    try:
        return model.model_validate_json(encoded)
    except pydantic.ValidationError as error:
        fields = tuple(replace(field, field=_joined(below, field.field)) for field in field_errors(error))
        raise ValidationError("; ".join(f"{f.field} {f.error}" for f in fields), fields=fields) from None


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def _who(caller: Caller | None) -> str:
    return f"caller {caller.name!r} ({caller.role.value})" if caller else "a caller without a token"
