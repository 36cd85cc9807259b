"""A message gateway that lives on this machine: what an SMS or chat provider behind a webhook would be.

    POST /messages                signed; kept once for each Idempotency-Key
    GET  /messages/{delivery_id}  whether it is here
    /control/...                  what it received, faults, and receipts to send back

It checks signatures with code of its own, so that a mistake in ours is not made twice. It forgets when it stops.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import httpx2
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.clock import Clock
from butlers.http_client import BoundedAsyncClient, authorities
from butlers.simulators.engine import (
    Body,
    DroppedConnection,
    Fault,
    Faults,
    Pauses,
    control_routes,
    decoded,
    listen_as,
    parsed_body,
    read_body,
    serving,
)

SIGNING_KEY = "simulated-signing-key"
RECEIPT_KEY = "simulated-receipt-key"
TIMEOUT_S = 10.0
TOLERANCE_S = 300
MAX_REQUESTS = 10_000  # requests remembered
_NEEDED = ("delivery_id", "idempotency_key", "channel", "intent", "recipient", "message")
_OUTCOMES = {202: "taken", 200: "repeated"}


class FaultKind(StrEnum):
    DELAY = "delay"
    ANSWER = "answer"  # in place of taking the message
    ANSWER_AFTER = "answer_after"  # the message is taken all the same
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"


class GatewayFault(Fault):
    kind: Annotated[FaultKind, Field(strict=False)]
    recipient: str | None = None  # None: any
    status: Annotated[int, Field(ge=200, le=599)] = 500  # for the answers
    body: str = '{"error": "the gateway failed"}'
    headers: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    id: str
    at: str
    message: Mapping[str, Any]
    times: int = 1  # how often it was handed in

    @property
    def delivery_id(self) -> str:
        return str(self.message["delivery_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    at: str
    recipient: Any
    idempotency_key: str | None
    outcome: str  # taken | repeated | refused | dropped
    status: int | None  # None: no answer was sent


@dataclass(slots=True, kw_only=True)
class Gateway:
    signing_key: str = field(repr=False)  # checks what comes in
    conflict_on_repeat: bool = False  # answer 409 instead of 200 to a message it has
    taken: dict[str, Taken] = field(default_factory=dict)  # by key
    gone: set[str] = field(default_factory=set)  # recipients that are no more
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))
    faults: Faults[GatewayFault] = field(default_factory=lambda: Faults(GatewayFault))

    def reset(self) -> None:
        for held in (self.taken, self.gone, self.seen, self.faults):
            held.clear()
        self.conflict_on_repeat = False

    def take(self, key: str, message: Mapping[str, Any], at: str) -> tuple[int, dict[str, Any]]:
        """The status and the answer for a message that was handed in properly."""
        known = self.taken.get(key)
        if known is None:
            if message["recipient"] in self.gone:
                return 410, {"error": "no such recipient"}
            self.taken[key] = Taken(id=f"msg-{len(self.taken) + 1}", at=at, message=message)
            return 202, {"id": self.taken[key].id}
        answer = {"id": known.id, "delivery_id": known.delivery_id}
        if known.message != message:
            return 409, answer | {"error": "this key belongs to another message"}
        self.taken[key] = replace(known, times=known.times + 1)
        return (409, answer | {"error": "taken before"}) if self.conflict_on_repeat else (200, answer)


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
        try:
            message = decoded(body)
        except (ValueError, RecursionError):
            message = None
        recipient = message.get("recipient") if isinstance(message, dict) else None
        response: Response | None = None
        for fault in self.gateway.faults.take(lambda fault: fault.recipient in (None, recipient)):
            if fault.kind is FaultKind.DELAY:
                await self.pauses.sleep(fault.seconds)
                continue
            if fault.kind in (FaultKind.ANSWER_AFTER, FaultKind.DROP_AFTER):
                self._taken(request, body, message)
            drops = fault.kind in (FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER)
            headers = {"Content-Type": "application/json"} | fault.headers
            response = DroppedConnection() if drops else Response(fault.body, fault.status, headers)
        response = response or self._taken(request, body, message)
        self._note(request, recipient, response)
        return response

    async def find(self, request: Request) -> Response:
        if not self._is_signed(request, b""):
            return _refused(401, "not signed")
        delivery_id = request.path_params["delivery_id"]
        taken = next((taken for taken in self.gateway.taken.values() if taken.delivery_id == delivery_id), None)
        if taken is None:
            return _refused(404, "no such message")
        return JSONResponse({"id": taken.id, "delivery_id": taken.delivery_id})

    def _taken(self, request: Request, body: bytes, message: Any) -> Response:
        if not self._is_signed(request, body):
            return _refused(401, "not signed")
        key, given = request.headers.get("idempotency-key"), message if isinstance(message, dict) else {}
        if missing := [name for name in _NEEDED if not isinstance(given.get(name), str)]:
            return _refused(422, f"missing: {', '.join(missing)}")
        if key is None or key != given["idempotency_key"]:
            return _refused(400, "the key in the header is not the key in the body")
        status, answer = self.gateway.take(key, given, self.clock.now().isoformat())
        return JSONResponse(answer, status_code=status)

    def _is_signed(self, request: Request, body: bytes) -> bool:
        stamp, signature = (request.headers.get(f"butlers-{name}", "") for name in ("timestamp", "signature"))
        return is_signed(self.gateway.signing_key, stamp, signature, body, now=self.clock.now())

    def _note(self, request: Request, recipient: Any, response: Response) -> None:
        dropped, status = isinstance(response, DroppedConnection), response.status_code
        self.gateway.seen.append(
            Seen(
                at=self.clock.now().isoformat(),
                recipient=recipient,
                idempotency_key=request.headers.get("idempotency-key"),
                outcome="dropped" if dropped else _OUTCOMES.get(status, "refused"),
                status=None if dropped else status,
            )
        )


def _refused(status: int, error: str) -> Response:
    return JSONResponse({"error": error}, status_code=status)


def is_signed(key: str, stamp: str, signature: str, body: bytes, *, now: datetime) -> bool:
    """Whether a request was signed with the key, not long ago."""
    if not stamp.isdigit() or abs(now.timestamp() - int(stamp)) > TOLERANCE_S:
        return False
    return hmac.compare_digest(signature_of(key, stamp, body).encode(), signature.encode())


def signature_of(key: str, stamp: str, body: bytes) -> str:
    return "v1=" + hmac.digest(key.encode(), stamp.encode() + b"." + body, hashlib.sha256).hex()


class Callbacks:
    def __init__(self, receipt_key: str, clock: Clock) -> None:
        self._receipt_key = receipt_key
        self._clock = clock
        self._client = BoundedAsyncClient(timeout=TIMEOUT_S, verify=authorities(trust_env=False), trust_env=False)

    async def send(self, url: str, receipt: Mapping[str, Any]) -> tuple[int | None, Any]:
        """Status and answer of whoever takes receipts; no status when nobody does."""
        body = json.dumps({"schema_version": "receipt.v1"} | dict(receipt)).encode()
        return await self.send_raw(url, body, self.signed(body))

    def signed(self, body: bytes, *, age_s: float = 0) -> dict[str, str]:
        stamp = str(int(self._clock.now().timestamp() - age_s))
        signature = signature_of(self._receipt_key, stamp, body)
        return {"Content-Type": "application/json", "Butlers-Timestamp": stamp, "Butlers-Signature": signature}

    async def send_raw(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int | None, Any]:
        try:
            response = await self._client.post(url, content=body, headers=dict(headers))
        except httpx2.HTTPError as error:
            return None, type(error).__name__
        try:
            return response.status_code, response.json()
        except ValueError:
            return response.status_code, response.text

    async def close(self) -> None:
        await self._client.aclose()


class SettingsRequest(Body):
    conflict_on_repeat: bool | None = None
    gone: list[str] | None = None


class ReceiptRequest(Body):
    url: str  # where receipts are taken
    receipt: dict[str, Any]


def _control_routes(gateway: Gateway, callbacks: Callbacks) -> list[Route]:
    def messages(_request: Request) -> Any:
        return {
            "messages": [asdict(taken) | {"idempotency_key": key} for key, taken in gateway.taken.items()],
            "requests": [asdict(seen) for seen in gateway.seen],
        }

    async def settings(request: Request) -> Any:
        body = await parsed_body(request, SettingsRequest)
        if body.conflict_on_repeat is not None:
            gateway.conflict_on_repeat = body.conflict_on_repeat
        if body.gone is not None:
            gateway.gone = set(body.gone)
        return {"conflict_on_repeat": gateway.conflict_on_repeat, "gone": sorted(gateway.gone)}

    async def receipt(request: Request) -> Any:
        body = await parsed_body(request, ReceiptRequest)
        status, answer = await callbacks.send(body.url, body.receipt)
        return {"status": status, "answer": answer}

    def reset(_request: Request) -> Any:
        gateway.reset()
        return {"reset": True}

    own = control_routes(
        ("GET", "/messages", messages),
        ("POST", "/settings", settings),
        ("POST", "/receipts", receipt),
        ("POST", "/reset", reset),
    )
    return [*own, *gateway.faults.routes()]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSimulator:
    base_url: str
    port: int
    gateway: Gateway
    callbacks: Callbacks

    @property
    def url(self) -> str:
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
    gateway, pauses = Gateway(signing_key=signing_key), Pauses(clock)
    callbacks = Callbacks(receipt_key, clock)
    api = GatewayApi(gateway=gateway, clock=clock, pauses=pauses)
    app = Starlette(routes=[*_control_routes(gateway, callbacks), *api.routes()])
    with listen_as("webhook simulator", host, port) as listener:
        try:
            async with serving(app, listener, stopping=[pauses.close]) as bound:
                base_url = f"http://{host}:{bound}"
                yield WebhookSimulator(base_url=base_url, port=bound, gateway=gateway, callbacks=callbacks)
        finally:
            await callbacks.close()
