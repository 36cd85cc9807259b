"""The worker on real rows: what becomes of its claims when the database, another worker or a receipt comes between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from butlers.butler.delivery_config import CertaintyPolicy
from butlers.errors import TimeoutExceeded
from butlers.messenger.channel import AttemptResult, Certainty, NotSent, Outgoing, Sent, Wire
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.delivery import ClaimedDelivery
from butlers.messenger.execution import DeliveryWorker, ExecutionPolicy
from butlers.messenger.observing import Observer
from butlers.messenger.receipts import ReceiptIntake
from butlers.messenger.receipts.receipt import Receipt
from butlers.messenger.settling import ChannelPolicy
from butlers.reliability.lease import LeasePolicy
from butlers.reliability.retry import RetryPolicy
from butlers.telemetry import Telemetry

from .core import BREAKER, LEASE_S, SCHEMA, Core

HANDS = 4
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

    async def claim_due(self, *, limit: int, worker: str, lease_s: float) -> list[ClaimedDelivery]:
        await super().claim_due(limit=limit, worker=worker, lease_s=lease_s)
        raise ConnectionError("lost after the commit")


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


async def test_a_yes_that_comes_after_the_claim_was_lost_still_counts(core: Core, tmp_path: Path) -> None:
    delivery, provider = await core.take(), Provider()
    ours = worker(core, tmp_path / "here", provider)
    elsewhere = worker(core, tmp_path / "there", Provider(), name="w2")  # another machine: it sees the lease only
    await ours.run_once()
    await provider.entered.wait()
    core.clock.advance(LEASE_S + 1)
    assert await elsewhere.rescue() == 1
    assert await status(core, delivery) == "uncertain"
    provider.answers.set()
    await ours.close(5)
    row = await core.row(delivery)
    assert (row["status"], row["settled_by"], row["tell_owner"]) == ("delivered", "provider", False)
    assert [receipt["provider_delivery_id"] for receipt in await core.rows("delivery_receipts")] == ["77"]
    assert [(a["outcome"], a["certainty"]) for a in await core.rows("delivery_attempts")] == [("sent", "sent")]
    await elsewhere.close(1)


async def test_a_worker_that_holds_its_lock_is_not_robbed_on_its_own_machine(core: Core, tmp_path: Path) -> None:
    delivery, provider = await core.take(), Provider()
    ours, neighbour = worker(core, tmp_path, provider), worker(core, tmp_path, Provider(), name="w2")
    await ours.run_once()
    await provider.entered.wait()
    core.clock.advance(LEASE_S + 1)
    assert await neighbour.rescue() == 0
    provider.answers.set()
    await ours.close(5)
    assert await status(core, delivery) == "delivered"
    await neighbour.close(1)


async def test_a_claim_whose_answer_was_lost_is_tried_again_and_not_doubted(core: Core, tmp_path: Path) -> None:
    delivery, provider = await core.take(), Provider()
    lossy = LosesAnswers(
        database=core.database,
        schema=SCHEMA,
        clock=core.clock,
        new_id=core.new_id,
        breaker=BREAKER,
        settle_reported=core.receipts().settle_reported,
    )
    ours = worker(core, tmp_path, provider, deliveries=lossy)
    with pytest.raises(ConnectionError):
        await ours.run_once()
    assert await status(core, delivery) == "in_progress"
    core.clock.advance(LEASE_S + 1)
    assert await ours.rescue() == 1
    assert (await status(core, delivery), provider.asked) == ("awaiting_retry", [])
    await ours.close(1)


async def test_an_older_delivery_released_later_waits_for_the_one_under_way(core: Core, tmp_path: Path) -> None:
    older, newer = await core.take(), await core.take()
    await core.database.execute(
        f"update {SCHEMA}.delivery_requests set status = 'pending_approval' where id = $1", older
    )
    provider = Provider()
    ours = worker(core, tmp_path, provider)
    await ours.run_once()
    await provider.entered.wait()
    await core.database.execute(f"update {SCHEMA}.delivery_requests set status = 'pending' where id = $1", older)
    await ours.run_once()
    assert (provider.asked, await status(core, older)) == ([newer], "pending")
    provider.answers.set()
    await ours.close(5)


async def test_a_receipt_that_overtakes_a_lost_answer_stops_the_resend(core: Core, tmp_path: Path) -> None:
    delivery, provider = await core.take(), Provider()
    provider.result = SILENT
    ours = worker(core, tmp_path, provider, certainty="never_lose")
    await ours.run_once()
    await provider.entered.wait()
    receipts: ReceiptIntake = core.receipts()
    await receipts.record(
        "telegram", Receipt(receipt_type="delivered", delivery_id=delivery, provider_delivery_id="p1")
    )
    provider.answers.set()
    await ours.close(5)
    core.clock.advance(3600)
    assert (await status(core, delivery), await core.claim(), len(provider.asked)) == ("delivered", [], 1)


async def test_hands_are_given_out_once(core: Core, tmp_path: Path) -> None:
    """Between asking for rows and getting them, the same hands are not offered to a batch."""
    for number in range(HANDS):
        await core.take(str(100 + number))
    provider = Provider()
    ours = worker(core, tmp_path, provider)
    claiming = asyncio.create_task(ours.run_once())
    await asyncio.sleep(0)
    assert ours.offer(HANDS).slots == 0
    await claiming
    assert set((await core.statuses()).values()) == {"in_progress"}
    provider.answers.set()
    await ours.close(5)


async def test_what_waits_comes_before_what_arrives_when_hands_are_few(core: Core, tmp_path: Path) -> None:
    ours = worker(core, tmp_path, Provider())
    first = ours.offer(HANDS - 1)
    assert first.slots == HANDS - 1
    ours.wake()
    assert ours.offer(1).slots == 0
    ours.take(first, ())
    assert ours.offer(1).slots == 1
    await ours.close(1)
