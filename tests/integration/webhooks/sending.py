"""A worker on the real tables and a real socket, with a clock that a test moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from butlers.butler.lifecycle_events import LifecycleEvent
from butlers.clock import ManualClock
from butlers.ids import Uuid7Factory
from butlers.storage.claims import LeasePolicy
from butlers.storage.database import Database
from butlers.telemetry.telemetry import Telemetry
from butlers.webhooks.addresses import AddressGuard
from butlers.webhooks.deliveries import Deliveries, retry_policy
from butlers.webhooks.sender import WebhookSender
from butlers.webhooks.worker import WebhookWorker, WorkerPolicy

SCHEDULE = (5.0, 300.0, 1800.0)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LEASE = LeasePolicy()


async def loopback(_host: str, _port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@dataclass(kw_only=True)
class Sending:
    database: Database
    resolve: Callable[[str, int], Awaitable[Sequence[str]]] = loopback
    timeout_s: float = 15.0
    clock: ManualClock = field(default_factory=ManualClock)
    senders: list[WebhookSender] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.new_id = Uuid7Factory(self.clock)
        self.deliveries = Deliveries(database=self.database, clock=self.clock, new_id=self.new_id)
        self.telemetry = Telemetry.create("tests", "one", clock=self.clock)

    def worker(self, name: str = "one") -> WebhookWorker:
        guard = AddressGuard(resolve=self.resolve, private_allowed=True)
        self.senders.append(WebhookSender(guard=guard, clock=self.clock, timeout_s=self.timeout_s))
        return WebhookWorker(
            deliveries=self.deliveries,
            sender=self.senders[-1],
            policy=WorkerPolicy(retry=retry_policy(SCHEDULE), lease=LEASE),
            name=name,
            clock=self.clock,
            random=lambda: 0.5,
            telemetry=self.telemetry,
        )

    async def close(self) -> None:
        for sender in self.senders:
            await sender.close()

    async def endpoint(self, url: str, *event_types: str) -> UUID:
        id, now = self.new_id(), self.clock.now()
        await self.database.execute(
            "INSERT INTO webhooks.endpoints (id, url, event_types, secret, created_by, created_at, updated_at)"
            " VALUES ($1, $2, $3, $4, 'tests', $5, $5)",
            id,
            url,
            list(event_types) or ["*"],
            SECRET,
            now,
        )
        return id

    def event(self, number: int = 1, type_: str = "delivery.delivered") -> LifecycleEvent:
        return LifecycleEvent(id=f"event {number}", at=self.clock.now(), type=type_, payload={"number": number})

    async def publish(self, count: int = 1) -> int:
        return await self.deliveries.publish([self.event(number) for number in range(1, count + 1)])

    async def attempt(self, worker: WebhookWorker | None = None) -> int:
        """Make the attempts that are due and wait for their outcomes; how many that were."""
        worker = worker or self.worker()
        started = await worker.run_once()
        await worker.settled()
        return started

    async def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.fetch("SELECT * FROM webhooks.deliveries ORDER BY id")]

    async def states(self) -> list[str]:
        return [row["state"] for row in await self.rows()]

    async def endpoint_row(self) -> dict[str, Any]:
        row = await self.database.fetchrow("SELECT * FROM webhooks.endpoints")
        assert row is not None
        return dict(row)
