"""A client of the gateway, for the command line and for benchmarks; other programs need no more than a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx2
import websockets
from pydantic_core import from_json, to_json

from butlers.errors import (
    ClassifiedError,
    Conflict,
    Forbidden,
    InternalError,
    NotFound,
    OverloadRejected,
    ServiceDown,
    ValidationError,
)
from butlers.http_client import BoundedAsyncClient

ANSWER_LIMIT = 256 * 2**20  # bytes: a snapshot may hold many messages of a megabyte
_TYPES: dict[int, type[ClassifiedError]] = {
    400: ValidationError,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: ValidationError,
    429: OverloadRejected,
}


class Subscription:
    """A subscriber's end: grants credit, receives deliveries, settles them."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket

    async def say(self, **frame: Any) -> None:
        await self._socket.send(to_json(frame), text=True)

    async def grant(self, credit: int) -> None:
        await self.say(credit=credit)

    async def ack(self, delivery: dict[str, Any], **more: Any) -> None:
        await self.say(ack=delivery["deliver"]["id"], lease=delivery["lease"], stream=delivery["stream"], **more)

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Every frame of the gateway, until it closes."""
        with suppress(websockets.ConnectionClosedOK):
            while True:
                yield from_json(await self._socket.recv(decode=False))


class CourierClient:
    """`async with CourierClient(url, token=...) as courier`."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = BoundedAsyncClient(
            limit=ANSWER_LIMIT, base_url=self._url, headers=self._headers, timeout=timeout_s, trust_env=False
        )

    async def __aenter__(self) -> CourierClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        return await self._call("GET", path, params=query)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call("POST", path, json=body)

    @asynccontextmanager
    async def subscribe(
        self, stream: str, *, group: str | None = None, batch: bool = False
    ) -> AsyncIterator[Subscription]:
        parts = urlsplit(self._url)
        query = urlencode({"stream": stream} | ({"group": group} if group else {}) | ({"batch": "1"} if batch else {}))
        address = urlunsplit(("wss" if parts.scheme == "https" else "ws", parts.netloc, "/v1/subscribe", query, ""))
        try:
            async with websockets.connect(address, additional_headers=self._headers, max_size=None) as socket:
                yield Subscription(socket)
        except websockets.InvalidStatus as refused:
            raise _refusal(refused.response.status_code, bytes(refused.response.body or b"")) from None
        except (OSError, websockets.ConnectionClosed) as error:
            raise self._down(error) from error

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, **options)
        except httpx2.HTTPError as error:
            raise self._down(error) from error
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content)
        answer: dict[str, Any] = response.json()
        return answer

    def _down(self, error: Exception) -> ServiceDown:
        return ServiceDown(
            f"the courier does not answer ({type(error).__name__})",
            source=self._url,
            key="url",
            remedy="start it with: butlers courier serve",
        )


def _refusal(status: int, body: bytes) -> ClassifiedError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the courier answered with HTTP {status}"
    return _TYPES.get(status, InternalError)(message)
