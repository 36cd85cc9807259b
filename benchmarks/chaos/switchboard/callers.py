"""Everybody who hands something in: at-least-once callers over HTTP, and people in the simulator's chats.

A caller submits until it is told that the message is stored; a broken connection, a timeout or a refusal for now makes
it submit the same event again. Some do so once more after they were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.chaos.rig import Rig
from benchmarks.chaos.switchboard.arrivals import Arrival, envelope, update
from benchmarks.chaos.switchboard.gates import Gate

PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
AT_ONE_TIME = 32
_TIMEOUT = httpx2.Timeout(15.0, connect=2.0)
_FOR_NOW = frozenset({429, 500, 503, 504})


class Unanswered(Exception):
    """Nothing was heard: it may be stored, or not."""


@dataclass(slots=True, kw_only=True)
class Callers:
    rig: Rig
    door: Gate  # in front of Switchboard's: answers are lost there, too
    accepted: dict[int, set[str]] = field(default_factory=dict)  # number -> the requests that answered for it
    posted: set[int] = field(default_factory=set)  # numbers that stand in a chat
    refused: dict[int, str] = field(default_factory=dict)  # number -> the refusal, not to be tried again
    submissions: int = 0
    repeats: int = 0  # the same event once more, after its answer
    recognised: int = 0  # answers that say so
    unanswered: int = 0
    put_off: int = 0  # refusals for now
    _knocking: asyncio.Task[None] | None = None
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONE_TIME))

    @property
    def handed_in(self) -> int:
        return len(self.accepted) + len(self.posted)

    async def write(self, arrival: Arrival) -> None:
        """A person writes; the simulator is never killed."""
        await self.rig.control("POST", "/messages", update(arrival))
        self.posted.add(arrival.number)

    async def hand_in(self, arrivals: Sequence[Arrival]) -> None:
        """Until all of them are on record; some are handed in once more."""
        await self._insist(arrivals)
        if again := [arrival for arrival in arrivals if arrival.repeated]:
            self.repeats += len(again)
            await self._insist(again)

    async def _insist(self, arrivals: Sequence[Arrival]) -> None:
        left = list(arrivals)
        while left:
            try:
                async with self._room:
                    left, pause = await self._submit(left)
            except Unanswered:
                self.unanswered += 1
                await self._until_back()
                continue
            if left:
                self.put_off += 1
                await self.rig.clock.sleep(pause)

    async def _submit(self, arrivals: list[Arrival]) -> tuple[list[Arrival], float]:
        """Those to be submitted again, and after how many seconds."""
        self.submissions += 1
        envelopes = [envelope(arrival, self.rig.clock.now()) for arrival in arrivals]
        if arrivals[0].in_batch:
            answer = await self._post("/api/ingest/batch", {"messages": envelopes})
            results: list[dict[str, Any]] = answer.get("results") or [answer] * len(arrivals)
        else:
            results = [await self._post("/api/ingest", envelopes[0])]
        pauses = [self._judge(arrival, result) for arrival, result in zip(arrivals, results, strict=True)]
        again = [arrival for arrival, pause in zip(arrivals, pauses, strict=True) if pause is not None]
        return again, max((pause for pause in pauses if pause is not None), default=0.0)

    async def _post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        try:
            response = await self.rig.http.post(self.door.url(path), json=document, timeout=_TIMEOUT)
            content = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise Unanswered(str(error)) from error
        if not isinstance(content, dict):
            raise Unanswered("no object")
        return content | ({"for_now": True} if response.status_code in _FOR_NOW else {})

    def _judge(self, arrival: Arrival, result: dict[str, Any]) -> float | None:
        """Seconds until the next try; None when there need be none."""
        if (request_id := result.get("request_id")) is not None:
            self.accepted.setdefault(arrival.number, set()).add(request_id)
            self.recognised += bool(result.get("duplicate"))
            return None
        error = result.get("error") or {}
        if error.get("retryable") or result.get("for_now"):
            return min(error.get("retry_after_seconds") or PAUSE_S, LONGEST_PAUSE_S)
        self.refused[arrival.number] = f"{error.get('class')}: {error.get('message')}"
        return None

    async def _until_back(self) -> None:
        """One knocks for all: a crowd at a closed door would take the processor from whoever is to open it."""
        if self._knocking is None or self._knocking.done():
            self._knocking = asyncio.create_task(self._knock())
        await asyncio.shield(self._knocking)

    async def _knock(self) -> None:
        await self.rig.clock.sleep(PAUSE_S)
        while not await self.rig.answers("switchboard"):
            await self.rig.clock.sleep(PAUSE_S)
