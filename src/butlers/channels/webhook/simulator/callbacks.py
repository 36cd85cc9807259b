"""Receipts that the gateway sends back, signed with a key of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2

from butlers.channels.webhook.simulator.gateway import Gateway, signature_of
from butlers.clock import Clock
from butlers.http_client import BoundedAsyncClient
from butlers.trust import authorities

TIMEOUT_S = 10.0


class Callbacks:
    def __init__(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._client = BoundedAsyncClient(timeout=TIMEOUT_S, verify=authorities(trust_env=False), trust_env=False)

    async def send(self, url: str, receipt: Mapping[str, Any]) -> tuple[int | None, Any]:
        """Status and answer of whoever takes receipts; no status when nobody does."""
        body = json.dumps({"schema_version": "receipt.v1"} | dict(receipt)).encode()
        return await self.send_raw(url, body, self.signed(body))

    def signed(self, body: bytes, *, age_s: float = 0) -> dict[str, str]:
        stamp = str(int(self._clock.now().timestamp() - age_s))
        signature = signature_of(self._gateway.receipt_key, stamp, body)
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
