"""A worker on real rows, with a provider that answers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from butlers.channels.adapter import AttemptResult, Certainty, NotSent, Outgoing, Sent, Wire
from butlers.channels.channel import CertaintyPolicy
from butlers.errors import TimeoutExceeded
from butlers.messenger.attempt import ChannelPolicy
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.observer import Observer
from butlers.messenger.worker import DeliveryWorker, ExecutionPolicy
from butlers.reliability.retry import RetryPolicy
from butlers.storage.claims import LeasePolicy
from butlers.telemetry.telemetry import Telemetry

from .core import BREAKER, LEASE_S, SCHEMA, Core

HANDS = 4
D = TypeVar("D", bound=Deliveries)
SILENT = NotSent(error=TimeoutExceeded("no answer"), certainty=Certainty.UNCERTAIN)


class Provider:
    """Answers when it is told to."""

    name, identity_scope, resumes = "telegram", "bot", True

    def __init__(self) -> None:
        self.asked: list[UUID] = []
        self.entered = asyncio.Event()
        self.answers = asyncio.Event()
        self.result: AttemptResult = Sent(provider_delivery_id="77")

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        wire.leaving()
        self.asked.append(outgoing.delivery_id)
        self.entered.set()
        await self.answers.wait()
        return self.result

    async def find(self, outgoing: Outgoing) -> str | None:
        return None

    async def close(self) -> None:
        return


class LosesAnswers(Deliveries):
    """The claim is committed and the connection breaks before its answer."""

    async def claim_due(self, **options: Any) -> list[ClaimedDelivery]:
        await super().claim_due(**options)
        raise ConnectionError("lost after the commit")


class CountsLooks(Deliveries):
    looks = 0

    async def claim_due(self, **options: Any) -> list[ClaimedDelivery]:
        self.looks += 1
        return await super().claim_due(**options)


class SlowAnswers(Deliveries):
    """The claim is committed and its answer takes its time."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.claimed, self.answers = asyncio.Event(), asyncio.Event()

    async def claim_due(self, **options: Any) -> list[ClaimedDelivery]:
        claimed = await super().claim_due(**options)
        self.claimed.set()
        await self.answers.wait()
        return claimed


def of(core: Core, kind: type[D], **more: Any) -> D:
    return kind(
        database=core.database,
        schema=SCHEMA,
        clock=core.clock,
        new_id=core.new_id,
        breaker=BREAKER,
        settle_reported=core.receipts().settle_reported,
        **more,
    )


def worker(
    core: Core,
    wire: Path,
    provider: Provider,
    *,
    name: str = "w1",
    certainty: CertaintyPolicy = "never_duplicate",
    deliveries: Deliveries | None = None,
) -> DeliveryWorker:
    retry = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=1.0)
    policy = ChannelPolicy(retry=retry, timeout_s=30.0, certainty=certainty)
    telemetry = Telemetry.create("messenger", name, clock=core.clock)
    return DeliveryWorker(
        deliveries=deliveries or core.deliveries(),
        channels={"telegram.bot": provider},
        policy=ExecutionPolicy(
            channel=lambda _name: policy, max_concurrent=HANDS, lease=LeasePolicy(ttl=LEASE_S, renew_every=LEASE_S / 3)
        ),
        wire_directory=wire,
        name=name,
        clock=core.clock,
        observer=Observer(telemetry=telemetry, clock=core.clock),
        new_id=core.new_id,
    )


async def status(core: Core, delivery: UUID) -> str:
    return str((await core.row(delivery))["status"])


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await look():
            await asyncio.sleep(0.01)
