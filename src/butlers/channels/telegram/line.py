"""One request to the Bot API, and how far it got.

    connecting --body_leaving--> answer_awaited --> answered

Telegram cannot act on a request whose body has not arrived: what fails while connecting sent nothing. After that, only
an answer tells. What has no time left, because the part before it was long in getting on record, is not begun.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx2

from butlers.channels.adapter import Certainty, Wire
from butlers.channels.telegram.answers import Answer, read
from butlers.channels.telegram.calls import Call
from butlers.errors import ClassifiedError, TargetUnavailable, TimeoutExceeded
from butlers.http_client import reason

_BODY_LEAVES = "send_request_body.started"
_ANSWER_AWAITED = "receive_response_headers.started"


class Phase(StrEnum):
    NOT_BEGUN = "not_begun"
    CONNECTING = "connecting"
    BODY_LEAVING = "body_leaving"
    ANSWER_AWAITED = "answer_awaited"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Telegram gave no answer of its own."""

    phase: Phase
    error: ClassifiedError
    status: int | None = None  # what a gateway said instead

    @property
    def certainty(self) -> Certainty:
        harmless = self.phase in (Phase.NOT_BEGUN, Phase.CONNECTING)
        return Certainty.NOT_SENT if harmless else Certainty.UNCERTAIN

    def evidence(self) -> dict[str, Any]:
        return {} if self.status is None else {"status": self.status}


class Line:
    """The way to Telegram during one attempt; all requests share its deadline."""

    def __init__(self, *, client: httpx2.AsyncClient, wire: Wire, timeout_s: float) -> None:
        self._client = client
        self._wire = wire
        self._timeout_s = timeout_s
        self._deadline = asyncio.timeout(timeout_s).when()

    async def ask(self, call: Call, *, part: int) -> Answer | Silence:
        if self._is_late():
            return Silence(phase=Phase.NOT_BEGUN, error=TimeoutExceeded("no time was left to ask Telegram"))
        phase = Phase.CONNECTING

        async def trace(event: str, info: Any) -> None:
            nonlocal phase
            if _is_for_proxy(info):
                return
            if event.endswith(_BODY_LEAVES):
                self._wire.leaving(part)
                phase = Phase.BODY_LEAVING
            elif event.endswith(_ANSWER_AWAITED) and phase is Phase.BODY_LEAVING:
                phase = Phase.ANSWER_AWAITED

        try:
            async with asyncio.timeout_at(self._deadline):
                response = await self._client.post(call.method, json=call.body, extensions={"trace": trace})
        except TimeoutError:
            return Silence(phase=phase, error=TimeoutExceeded(f"Telegram gave no answer within {self._timeout_s:g} s"))
        except httpx2.HTTPError as error:
            return Silence(phase=phase, error=TargetUnavailable(f"Telegram is unreachable ({reason(error)})"))
        return read(response) or _gateway(response.status_code)

    def _is_late(self) -> bool:
        now = asyncio.timeout(0).when()  # on the same scale as the deadline
        return self._deadline is not None and now is not None and now >= self._deadline


def _is_for_proxy(info: Any) -> bool:
    """Asking a proxy for a way through is traced like the request itself, and brings nothing to Telegram."""
    return getattr(info.get("request"), "method", None) == b"CONNECT"


def _gateway(status: int) -> Silence:
    """Not Telegram's own words but somebody's on the way: the message may have come through."""
    error = TargetUnavailable(f"Telegram's gateway answered HTTP {status}")
    return Silence(phase=Phase.ANSWER_AWAITED, error=error, status=status)
