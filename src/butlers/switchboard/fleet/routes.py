"""The fleet's tools over HTTP. Whoever may see the system may read; only a person with an operator's token may act;
connectors speak for themselves. What is not there is 404, what is not possible as things are 409.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from butlers.butler.identity import Caller
from butlers.butler.surface import BUTLERS, ToolBox
from butlers.contracts.envelope import invalid
from butlers.errors import ClassifiedError
from butlers.switchboard.answers import Refused, fields, json_answer, json_object, may_decide
from butlers.switchboard.proxy import BodyOf, CallerOf


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDoor:
    tools: ToolBox
    caller_of: CallerOf
    body_of: BodyOf

    async def told(self, request: Request, tool: str) -> Response:
        """An envelope; the tool itself judges whose it is."""
        caller = self.caller_of(request)
        body = await self.body_of(request)
        return await self._answered(tool, caller, lambda: json_object(body), status=202)

    async def act(self, request: Request, tool: str, *from_body: str, status: int = 200, **arguments: Any) -> Response:
        caller = self.caller_of(request)
        if not may_decide(caller):
            raise Refused(403, invalid("authorization", "only a person with an operator's token may decide this"))
        body = await self.body_of(request)
        return await self._answered(
            tool, caller, lambda: fields(body or b"{}", from_body) | _said(arguments), status=status
        )

    async def read(self, request: Request, tool: str, **arguments: Any) -> Response:
        caller = self.caller_of(request)
        if caller.role not in BUTLERS:
            raise Refused(403, invalid("authorization", f"{caller.role.value}s may not read this"))
        return await self._answered(tool, caller, lambda: _said(arguments))

    async def _answered(self, tool: str, caller: Caller, given: Any, *, status: int = 200) -> Response:
        try:
            return json_answer(await self.tools.call(tool, caller, given()), status)
        except ClassifiedError as error:
            raise Refused(error.http_status, error) from error


def _said(arguments: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in arguments.items() if value is not None}
    return {name: str(value) if isinstance(value, UUID) else value for name, value in given.items()}
