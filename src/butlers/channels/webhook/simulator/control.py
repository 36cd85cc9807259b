"""The control API, `/control/...`: look at what came in, inject faults, send receipts back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.routing import Route

from butlers.channels.webhook.simulator.gateway import Callbacks, Fault, FaultKind, Gateway
from butlers.simulators.control import Body, Endpoint, control_route, parsed_body


class FaultRequest(Body):
    kind: Annotated[FaultKind, Field(strict=False)]
    times: Annotated[int, Field(ge=1)] | None = 1
    recipient: str | None = None
    seconds: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 1.0
    status: Annotated[int, Field(ge=200, le=599)] = 500
    body: str = '{"error": "the gateway failed"}'
    headers: dict[str, str] = Field(default_factory=dict)


class SettingsRequest(Body):
    conflict_on_repeat: bool | None = None
    gone: list[str] | None = None


class ReceiptRequest(Body):
    url: str  # where receipts are taken
    receipt: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlApi:
    gateway: Gateway
    callbacks: Callbacks

    def routes(self) -> list[Route]:
        table: tuple[tuple[str, str, Endpoint], ...] = (
            ("GET", "/messages", self._messages),
            ("POST", "/faults", self._add_fault),
            ("DELETE", "/faults", self._clear_faults),
            ("POST", "/settings", self._settings),
            ("POST", "/receipts", self._receipt),
            ("POST", "/reset", self._reset),
        )
        return [control_route(*row) for row in table]

    async def _messages(self, _request: Request) -> Any:
        return self.gateway.report()

    async def _add_fault(self, request: Request) -> Any:
        fault = Fault(**(await parsed_body(request, FaultRequest)).model_dump())
        return {"fault_id": self.gateway.add_fault(fault)} | asdict(fault)

    async def _clear_faults(self, _request: Request) -> Any:
        self.gateway.faults.clear()
        return {"faults": []}

    async def _settings(self, request: Request) -> Any:
        body = await parsed_body(request, SettingsRequest)
        if body.conflict_on_repeat is not None:
            self.gateway.conflict_on_repeat = body.conflict_on_repeat
        if body.gone is not None:
            self.gateway.gone = set(body.gone)
        return {"conflict_on_repeat": self.gateway.conflict_on_repeat, "gone": sorted(self.gateway.gone)}

    async def _receipt(self, request: Request) -> Any:
        body = await parsed_body(request, ReceiptRequest)
        status, answer = await self.callbacks.send(body.url, body.receipt)
        return {"status": status, "answer": answer}

    async def _reset(self, _request: Request) -> Any:
        self.gateway.reset()
        return {"reset": True}
