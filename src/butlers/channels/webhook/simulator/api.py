"""The gateway's own door.

faults that refuse -> signature -> key -> JSON -> take it -> faults that come after -> answer, or drop
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.channels.webhook.simulator.faults import Fault, FaultKind
from butlers.channels.webhook.simulator.gateway import Gateway, Seen, is_signed, missing_fields
from butlers.clock import Clock
from butlers.simulators.connection import DroppedConnection
from butlers.simulators.control import read_body
from butlers.simulators.pauses import Pauses
from butlers.simulators.wire import decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayApi:
    gateway: Gateway
    clock: Clock
    pauses: Pauses

    def routes(self) -> list[Route]:
        return [
            Route("/messages", self.post, methods=["POST"]),
            Route("/messages/{delivery_id}", self.find, methods=["GET"]),
        ]

    async def post(self, request: Request) -> Response:
        body = await read_body(request, kind="application/json")
        message = _message(body)
        recipient = message.get("recipient") if isinstance(message, dict) else None
        fault = await self._faults(recipient)
        response = self._struck(fault, request, body, message) if fault else self._taken(request, body, message)
        self._note(request, recipient, response)
        return response

    def _struck(self, fault: Fault, request: Request, body: bytes, message: Any) -> Response:
        if fault.kind.takes:
            self._taken(request, body, message)
        return DroppedConnection() if fault.kind.drops else _as_told(fault)

    async def find(self, request: Request) -> Response:
        if not self._is_signed(request, b""):
            return _refused(401, "not signed")
        taken = self.gateway.find(request.path_params["delivery_id"])
        if taken is None:
            return _refused(404, "no such message")
        return JSONResponse({"id": taken.id, "delivery_id": taken.delivery_id})

    async def _faults(self, recipient: object) -> Fault | None:
        """Sit out the delays; the fault that is left, if any."""
        chosen = self.gateway.use_faults(recipient)
        for fault in chosen:
            if fault.kind is FaultKind.DELAY:
                await self.pauses.sleep(fault.seconds)
        return next((fault for fault in chosen if fault.kind is not FaultKind.DELAY), None)

    def _taken(self, request: Request, body: bytes, message: Any) -> Response:
        if not self._is_signed(request, body):
            return _refused(401, "not signed")
        key = request.headers.get("idempotency-key")
        if missing := missing_fields(message):
            return _refused(422, f"missing: {', '.join(missing)}")
        if key is None or key != message["idempotency_key"]:
            return _refused(400, "the key in the header is not the key in the body")
        status, answer = self.gateway.take(key, message, self.clock.now().isoformat())
        return JSONResponse(answer, status_code=status)

    def _is_signed(self, request: Request, body: bytes) -> bool:
        headers: Mapping[str, str] = request.headers
        stamp, signature = headers.get("butlers-timestamp", ""), headers.get("butlers-signature", "")
        return is_signed(self.gateway.signing_key, stamp, signature, body, now=self.clock.now())

    def _note(self, request: Request, recipient: Any, response: Response) -> None:
        dropped = isinstance(response, DroppedConnection)
        self.gateway.seen.append(
            Seen(
                at=self.clock.now().isoformat(),
                recipient=recipient,
                idempotency_key=request.headers.get("idempotency-key"),
                outcome="dropped" if dropped else _outcome(response.status_code),
                status=None if dropped else response.status_code,
            )
        )


def _message(body: bytes) -> Any:
    try:
        return decoded(body)
    except (ValueError, RecursionError):
        return None


def _outcome(status: int) -> str:
    return {202: "taken", 200: "repeated"}.get(status, "refused")


def _as_told(fault: Fault) -> Response:
    headers = {"Content-Type": "application/json"} | dict(fault.headers)
    return Response(fault.body, status_code=fault.status, headers=headers)


def _refused(status: int, error: str) -> Response:
    return JSONResponse({"error": error}, status_code=status)
