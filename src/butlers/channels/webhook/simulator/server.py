"""The gateway as a server inside the current event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.channels.webhook.simulator.control import ControlApi
from butlers.channels.webhook.simulator.gateway import (
    Callbacks,
    Fault,
    FaultKind,
    Gateway,
    Seen,
    is_signed,
    missing_fields,
)
from butlers.clock import Clock
from butlers.serving.server import GuestServer
from butlers.simulators.connection import DroppableHttpTools, DroppedConnection, Pauses, listen_as
from butlers.simulators.control import decoded, guarded, read_body


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
        return DroppedConnection() if fault.kind.drops else _response_of(fault)

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


def _response_of(fault: Fault) -> Response:
    headers = {"Content-Type": "application/json"} | dict(fault.headers)
    return Response(fault.body, status_code=fault.status, headers=headers)


def _refused(status: int, error: str) -> Response:
    return JSONResponse({"error": error}, status_code=status)


SIGNING_KEY = "simulated-signing-key"
RECEIPT_KEY = "simulated-receipt-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSimulator:
    """A running gateway."""

    base_url: str
    port: int
    gateway: Gateway
    callbacks: Callbacks

    @property
    def url(self) -> str:
        """Where messages are taken."""
        return f"{self.base_url}/messages"

    @property
    def status_url(self) -> str:
        return f"{self.base_url}/messages/{{delivery_id}}"


@contextlib.asynccontextmanager
async def serve_webhook(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    clock: Clock,
    signing_key: str = SIGNING_KEY,
    receipt_key: str = RECEIPT_KEY,
) -> AsyncIterator[WebhookSimulator]:
    """Serve until the block ends; port 0 takes a free one."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen_as("webhook simulator", host, port))
        gateway = Gateway(signing_key=signing_key, receipt_key=receipt_key)
        callbacks, pauses = Callbacks(gateway, clock), Pauses(clock)
        api = GatewayApi(gateway=gateway, clock=clock, pauses=pauses)
        control = ControlApi(gateway=gateway, callbacks=callbacks)
        app = Starlette(routes=[*control.routes(), *api.routes()])
        server = GuestServer(guarded(app, host), http=DroppableHttpTools)
        try:
            await server.open(listener)
            bound = listener.getsockname()[1]
            yield WebhookSimulator(base_url=f"http://{host}:{bound}", port=bound, gateway=gateway, callbacks=callbacks)
        finally:
            pauses.close()
            await callbacks.close()
            await server.close()
