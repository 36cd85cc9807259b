"""One attempt over HTTP: signed, bounded in time and in what is read, to a checked address, without redirects."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import httpx2
from pydantic_core import to_json

from butlers.clock import Clock
from butlers.http_client import BoundedAsyncClient, authorities, reason, retry_after
from butlers.webhooks.addresses import AddressGuard, AddressRefused, GuardedTransport
from butlers.webhooks.deliveries import Answer, Target
from butlers.webhooks.signature import message_id, signed_headers

TIMEOUT_S = 15.0  # for the whole attempt, the resolution of the name included
ANSWER_LIMIT = 65_536  # bytes of a body that are read so that the connection can be used again
ANSWER_S = 1.0  # for them; the status counts in any case
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "butlers-webhooks/1"}


class WebhookSender:
    def __init__(
        self,
        *,
        guard: AddressGuard,
        clock: Clock,
        timeout_s: float = TIMEOUT_S,
        verify: ssl.SSLContext | None = None,  # None: the authorities of the machine
    ) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._client = BoundedAsyncClient(
            limit=ANSWER_LIMIT,
            headers=_HEADERS,
            timeout=None,
            follow_redirects=False,
            trust_env=False,
            transport=GuardedTransport(guard, verify=verify or authorities(trust_env=True)),
        )

    async def send(self, delivery_id: UUID, target: Target, payload: Mapping[str, Any]) -> Answer:
        """What came of it; it raises nothing for what a receiver or the network does."""
        body = to_json(payload)
        headers = signed_headers(target.secrets, message_id(delivery_id), body, now=self._clock.now())
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(target.url, body, headers | {"Content-Type": "application/json"})
        except TimeoutError:
            return Answer(error=f"the receiver gave no answer within {self._timeout_s:g} s")
        except AddressRefused as error:
            return Answer(error=str(error))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return Answer(error=f"the receiver cannot be reached ({reason(error)})")

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        async with self._client.stream("POST", url, content=body, headers=headers) as response:
            wait = retry_after(response.headers.get("Retry-After"), now=self._clock.now())
            answer = Answer(status=response.status_code, retry_after=wait)
            # A body that is too long or too slow costs its connection and nothing else.
            with contextlib.suppress(TimeoutError, httpx2.HTTPError):
                async with asyncio.timeout(ANSWER_S):
                    await response.aread()
            return answer

    async def close(self) -> None:
        await self._client.aclose()
