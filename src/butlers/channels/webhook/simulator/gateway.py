"""What the gateway knows: messages by their key, who is gone, what was asked of it, and the faults that wait."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import httpx2

from butlers.clock import Clock
from butlers.http_client import BoundedAsyncClient, authorities
from butlers.simulators.control import CountedFault, strike

TIMEOUT_S = 10.0


class FaultKind(StrEnum):
    DELAY = "delay"
    ANSWER = "answer"
    ANSWER_AFTER = "answer_after"
    DROP_BEFORE = "drop_before"
    DROP_AFTER = "drop_after"

    @property
    def takes(self) -> bool:
        """Whether the message is taken all the same."""
        return self not in (FaultKind.ANSWER, FaultKind.DROP_BEFORE)

    @property
    def drops(self) -> bool:
        return self in (FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(CountedFault):
    kind: FaultKind
    recipient: str | None = None  # None: any
    seconds: float = 1.0  # for delay
    status: int = 500  # for the answers
    body: str = '{"error": "the gateway failed"}'
    headers: Mapping[str, str] = field(default_factory=dict)

    def hits(self, recipient: object) -> bool:
        return self.recipient in (None, recipient)


def choose(waiting: Iterable[tuple[int, Fault]], recipient: object) -> list[tuple[int, Fault]]:
    """Every delay that hits, and the oldest of the other faults."""
    hitting = [entry for entry in waiting if entry[1].hits(recipient)]
    delays = [entry for entry in hitting if entry[1].kind is FaultKind.DELAY]
    others = [entry for entry in hitting if entry[1].kind is not FaultKind.DELAY]
    return delays + others[:1]


KEPT = 10_000  # requests remembered
TOLERANCE_S = 300
_NEEDED = ("delivery_id", "idempotency_key", "channel", "intent", "recipient", "message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A message the gateway has."""

    id: str
    at: str
    message: Mapping[str, Any]
    times: int = 1  # how often it was handed in

    @property
    def delivery_id(self) -> str:
        return str(self.message["delivery_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request, and how it ended."""

    at: str
    recipient: Any
    idempotency_key: str | None
    outcome: str  # taken | repeated | refused | dropped
    status: int | None  # None: no answer was sent


@dataclass(slots=True, kw_only=True)
class Gateway:
    signing_key: str = field(repr=False)  # checks what comes in
    receipt_key: str = field(repr=False)  # signs what goes back
    conflict_on_repeat: bool = False  # answer 409 instead of 200 to a message it has
    taken: dict[str, Taken] = field(default_factory=dict)  # by key
    gone: set[str] = field(default_factory=set)  # recipients that are no more
    seen: deque[Seen] = field(default_factory=lambda: deque(maxlen=KEPT))
    faults: dict[int, Fault] = field(default_factory=dict)
    _next_fault: int = 1

    def add_fault(self, fault: Fault) -> int:
        number, self._next_fault = self._next_fault, self._next_fault + 1
        self.faults[number] = fault
        return number

    def use_faults(self, recipient: object) -> list[Fault]:
        chosen = choose(list(self.faults.items()), recipient)
        for number, _ in chosen:
            strike(self.faults, number)
        return [fault for _, fault in chosen]

    def reset(self) -> None:
        for held in (self.taken, self.gone, self.seen, self.faults):
            held.clear()
        self.conflict_on_repeat = False

    def take(self, key: str, message: Mapping[str, Any], at: str) -> tuple[int, dict[str, Any]]:
        """The status and the answer for a message that was handed in properly."""
        known = self.taken.get(key)
        if known is not None:
            return self._again(key, known, message)
        if message["recipient"] in self.gone:
            return 410, {"error": "no such recipient"}
        self.taken[key] = Taken(id=f"msg-{len(self.taken) + 1}", at=at, message=message)
        return 202, {"id": self.taken[key].id}

    def _again(self, key: str, known: Taken, message: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        answer = {"id": known.id, "delivery_id": known.delivery_id}
        if known.message != message:
            return 409, answer | {"error": "this key belongs to another message"}
        self.taken[key] = Taken(id=known.id, at=known.at, message=known.message, times=known.times + 1)
        return (409, answer | {"error": "taken before"}) if self.conflict_on_repeat else (200, answer)

    def find(self, delivery_id: str) -> Taken | None:
        return next((taken for taken in self.taken.values() if taken.delivery_id == delivery_id), None)

    def report(self) -> dict[str, Any]:
        return {
            "messages": [asdict(taken) | {"idempotency_key": key} for key, taken in self.taken.items()],
            "requests": [asdict(seen) for seen in self.seen],
        }


def is_signed(key: str, stamp: str, signature: str, body: bytes, *, now: datetime) -> bool:
    """Whether a request was signed with the key, not long ago."""
    if not stamp.isdigit() or abs(now.timestamp() - int(stamp)) > TOLERANCE_S:
        return False
    return hmac.compare_digest(signature_of(key, stamp, body).encode(), signature.encode())


def signature_of(key: str, stamp: str, body: bytes) -> str:
    return "v1=" + hmac.digest(key.encode(), stamp.encode() + b"." + body, hashlib.sha256).hex()


def missing_fields(message: Any) -> list[str]:
    if not isinstance(message, dict):
        return list(_NEEDED)
    return [name for name in _NEEDED if not isinstance(message.get(name), str)]


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
