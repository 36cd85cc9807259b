"""How quick a running gateway is: throughput and latency, on a stream of its own, with everything acked at the end.

throughput   one producer with 100 unconfirmed messages in a frame, one subscriber that acks each of them
latency      messages at the times of a schedule, from there to their receipt
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from butlers.clock import Clock
from butlers.courier.client import CourierClient, Subscription
from butlers.courier.rates import percentile_ms
from butlers.errors import ClassifiedError, InternalError, OverloadRejected, TimeoutExceeded

WINDOW = CREDIT = 100  # messages under way
PATIENCE_S = 30.0  # without any message
LOOKS, LOOK_S = 40, 0.05  # for the last acks
_SETTINGS = {  # the first words of a refusal -> the key of the gateway's configuration
    "this connection": "gateway.messagesPerMinute",
    "this token": "messagesPerMinute of this token in auth.tokens",
}
_CLOSED: dict[str, Any] = {"error": {"message": "it closed the socket"}}
Results = list[dict[str, Any]]


async def measure(courier: CourierClient, *, count: int, rate: float, clock: Clock) -> dict[str, Any]:
    """`count` messages as quickly as they are taken, then as many at `rate` a second. Raises `OverloadRejected` when
    the gateway takes no more; what it took is acked all the same.
    """
    stream = f"bench/{uuid4().hex[:12]}"
    async with courier.subscribe(stream) as producing, _receiving(courier, stream, clock) as receiver:
        producer = _Producer(producing, stream, clock)
        try:
            seconds = await producer.send_quickly(count, receiver)
            latencies = await producer.send_at(rate, count, receiver)
        finally:
            left = await _unacked(courier, stream, clock)
    return {
        "stream": stream,
        "count": count,
        "messages_per_s": round(count / seconds, 1),
        "rate": rate,
        **{f"p{share}_ms": percentile_ms(latencies, share / 100) for share in (50, 95, 99)},
        "unacked": left,
    }


async def _unacked(courier: CourierClient, stream: str, clock: Clock) -> int:
    """How many messages are left when all had the time to be acked."""
    for _ in range(LOOKS):
        audit = await courier.get("/v1/audit", stream=stream)
        left: int = sum(group["accepted"] - group["acked"] for group in audit["groups"].values())
        if not left:
            break
        await clock.sleep(LOOK_S)
    return left


class _Receiver:
    """Takes and acks everything, and knows when it came."""

    def __init__(self, subscription: Subscription, clock: Clock) -> None:
        self._subscription = subscription
        self._clock = clock
        self._arrived = asyncio.Event()
        self.times: dict[str, float] = {}

    async def run(self) -> None:
        await self._subscription.grant(CREDIT)
        async for frame in self._subscription.frames():
            if "deliveries" not in frame:
                raise _refusal(frame)
            now, acks = self._clock.monotonic(), []
            for one in frame["deliveries"]:
                self.times[one["deliver"]["id"]] = now
                acks.append({"id": one["deliver"]["id"], "lease": one["lease"]})
            await self._subscription.say(ack=acks, credit=len(acks))
            self._arrived.set()

    async def wait_for(self, count: int) -> None:
        while len(self.times) < count:
            self._arrived.clear()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._arrived.wait()
            except TimeoutError:
                raise TimeoutExceeded(f"{count - len(self.times)} accepted messages were not delivered") from None


@asynccontextmanager
async def _receiving(courier: CourierClient, stream: str, clock: Clock) -> AsyncIterator[_Receiver]:
    async with courier.subscribe(stream, batch=True) as subscription:
        receiver = _Receiver(subscription, clock)
        task = asyncio.create_task(receiver.run(), name="courier bench")
        try:
            yield receiver
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class _Producer:
    def __init__(self, subscription: Subscription, stream: str, clock: Clock) -> None:
        self._subscription = subscription
        self._answers = subscription.frames()
        self._stream = stream
        self._clock = clock
        self.accepted = 0
        self._sent = 0

    async def send_quickly(self, count: int, receiver: _Receiver) -> float:
        """Returns in how many seconds all were sent, confirmed and received."""
        began, left = self._clock.monotonic(), count
        while left:
            window = list(self._envelopes(min(left, WINDOW)))
            await self._subscription.say(enqueue=window)
            await self._confirm(len(window))
            left -= len(window)
        await receiver.wait_for(self.accepted)
        return self._clock.monotonic() - began

    async def send_at(self, rate: float, count: int, receiver: _Receiver) -> list[float]:
        """Returns the latencies, each from the time of the schedule."""
        began, scheduled = self._clock.monotonic(), dict[str, float]()
        confirming = asyncio.create_task(self._confirm(count))
        try:
            for number, envelope in enumerate(self._envelopes(count)):
                scheduled[envelope["id"]] = began + number / rate
                await self._clock.sleep(max(0.0, scheduled[envelope["id"]] - self._clock.monotonic()))
                if confirming.done():
                    break  # refused
                await self._subscription.say(enqueue=envelope)
            await confirming
        finally:
            confirming.cancel()
        await receiver.wait_for(self.accepted)
        return sorted(receiver.times[id] - at for id, at in scheduled.items())

    def _envelopes(self, count: int) -> Iterator[dict[str, Any]]:
        at = self._clock.now().isoformat()
        for _ in range(count):
            self._sent += 1
            id = f"{self._stream}-{self._sent}"
            yield {"id": id, "ts": at, "to": self._stream, "type": "bench", "payload": {"number": self._sent}}

    async def _confirm(self, count: int) -> None:
        """Read so many confirmations; raises the first refusal, after the frame that has it."""
        while count > 0:
            frame: dict[str, Any] = await anext(self._answers, _CLOSED)
            answer = frame.get("enqueued")
            results: Results = answer if isinstance(answer, list) else [frame]
            refused = [result for result in results if "error" in result]
            self.accepted += len(results) - len(refused)
            count -= len(results)
            if refused:
                raise _refusal(refused[0])


def _refusal(frame: dict[str, Any]) -> ClassifiedError:
    error: dict[str, Any] = frame.get("error", {})
    message = str(error.get("message", "an unexpected frame"))
    if error.get("code") != "RateLimited":
        return InternalError(f"the gateway refused: {message}")
    setting = next((key for words, key in _SETTINGS.items() if message.startswith(words)), "streams.messagesPerMinute")
    return OverloadRejected(
        f"the gateway refused: {message}. Raise {setting} in its configuration, or take a smaller --count",
        retry_after=error.get("retryAfterMs", 0) / 1000,
    )
