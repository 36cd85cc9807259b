"""The worker on real rows: what becomes of its claims when the database, another worker or a receipt comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from butlers.channels.adapter import AttemptResult, Outgoing, Sent, Wire
from butlers.messenger.admission import ClaimSlots, Taken
from butlers.messenger.deliveries import Deliveries
from butlers.messenger.receipts import Receipt, ReceiptIntake

from .core import LEASE_S, SCHEMA, Core
from .given_worker import (
    HANDS,
    SILENT,
    CountsLooks,
    LosesAnswers,
    Provider,
    eventually,
    of,
    status,
    worker,
)


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
    ours = worker(core, tmp_path, provider, deliveries=of(core, LosesAnswers))
    with pytest.raises(ConnectionError):
        await ours.run_once()
    assert await status(core, delivery) == "in_progress"
    core.clock.advance(LEASE_S + 1)
    assert await ours.rescue() == 1
    assert (await status(core, delivery), provider.asked) == ("awaiting_retry", [])
    await ours.close(1)


async def test_an_older_delivery_released_later_waits_for_the_one_under_way(core: Core, tmp_path: Path) -> None:
    older, newer = await core.take(), await core.take()
    await core.begin_as(older, "pending_approval")
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
    assert ours.reserve_slots(HANDS).count == 0
    await claiming
    assert set((await core.statuses()).values()) == {"in_progress"}
    provider.answers.set()
    await ours.close(5)


async def test_what_waits_comes_before_what_arrives_when_hands_are_few(core: Core, tmp_path: Path) -> None:
    ours = worker(core, tmp_path, Provider())
    first = ours.reserve_slots(HANDS - 1)
    assert first.count == HANDS - 1
    ours.wake()
    assert ours.reserve_slots(1).count == 0
    ours.start_claimed((), reserved=first.count)
    assert ours.reserve_slots(1).count == 1
    await ours.close(1)


# --- whose channel it is, and when to look again ---------------------------------------------------------------------


async def test_only_what_is_served_here_is_claimed_looked_at_or_waited_for(core: Core) -> None:
    delivery, others = await core.take(), of(core, Deliveries, channels=["email.bot"])
    ours = of(core, Deliveries, channels=["telegram.bot", "email.bot"])
    assert await others.claim_due(limit=5, worker="w1", lease_s=LEASE_S) == []
    assert await others.next_due() == (None, False)
    await core.database.execute(f"update {SCHEMA}.channel_states set state = 'open' where name = 'telegram.bot'")
    assert (await others.open_circuits(), await ours.open_circuits()) == ([], ["telegram.bot"])
    await core.database.execute(f"update {SCHEMA}.channel_states set state = 'closed'")
    assert [claimed.id for claimed in await ours.claim_due(limit=5, worker="w1", lease_s=LEASE_S)] == [delivery]


async def test_a_worker_with_idle_hands_gets_nothing_of_a_channel_it_does_not_serve(core: Core, tmp_path: Path) -> None:
    for target, channels, handed in (("7", {"telegram.bot"}, True), ("8", {"email.bot"}, False)):
        ours = worker(core, tmp_path / target, Provider())
        reserve = ours.reserve_slots

        def serving(
            requested: int, reserve: Callable[[int], ClaimSlots] = reserve, channels: set[str] = channels
        ) -> ClaimSlots:
            return replace(reserve(requested), channels=channels)

        ours.reserve_slots = serving  # type: ignore[method-assign]
        entry = await core.admission(executor=ours).submit(core.new(target))
        assert isinstance(entry, Taken)
        assert (entry.delivery.claim is not None) is handed
        await ours.close(1)


async def test_nobody_looks_for_what_an_open_circuit_holds_until_it_is_closed(core: Core, tmp_path: Path) -> None:
    await core.take()
    deliveries, provider, far = of(core, CountsLooks), Provider(), core.clock.now() + timedelta(days=1)
    await core.database.execute(f"update {SCHEMA}.channel_states set state = 'open', probe_at = $1", far)
    assert await deliveries.next_due() == (None, True)
    ours = worker(core, tmp_path, provider, deliveries=deliveries)
    await ours.probe()
    running = asyncio.create_task(ours.run())
    await asyncio.wait([running], timeout=0.5)
    assert deliveries.looks == 1
    await core.database.execute(f"update {SCHEMA}.channel_states set state = 'closed', probe_at = null")
    await ours.probe()  # as its timer does; the worker itself would sleep on
    async with asyncio.timeout(3):
        await provider.entered.wait()
    provider.answers.set()
    await ours.close(20)
    running.cancel()


@pytest.mark.parametrize("scope", ["telegram.bot", "telegram.bot:7"])
async def test_what_a_window_holds_is_due_when_it_closes(core: Core, scope: str) -> None:
    await core.take("7")
    until = core.clock.now() + timedelta(seconds=40)
    await core.database.execute(
        f"insert into {SCHEMA}.throttles (scope, channel, until, reason, created_at)"
        " values ($1, 'telegram.bot', $2, 'x', $2)",
        scope,
        until,
    )
    assert await core.deliveries().next_due() == (until, True)
    core.clock.advance(41)
    assert (await core.deliveries().next_due())[0] == until - timedelta(seconds=40)


# --- outcomes that cannot be written down ----------------------------------------------------------------------------


class OddProvider(Provider):
    """Its word about one message does not fit any column."""

    def __init__(self, odd: UUID, word: AttemptResult) -> None:
        super().__init__()
        self.odd, self.word = odd, word

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        result = await super().attempt(outgoing, timeout_s=timeout_s, wire=wire)
        return self.word if outgoing.delivery_id == self.odd else result


async def test_an_outcome_the_database_will_not_take_holds_up_no_other_and_is_kept_without_its_words(
    core: Core, tmp_path: Path
) -> None:
    odd, good = await core.take("1"), await core.take("2")
    provider = OddProvider(odd, Sent(provider_delivery_id="88", part=2**40, response={"ok": True}))
    ours = worker(core, tmp_path, provider)
    await ours.run_once()

    async def both() -> bool:
        return len(provider.asked) == 2

    await eventually(both)
    provider.answers.set()  # both at once: one batch
    await ours.close(20)
    assert (await status(core, odd), await status(core, good)) == ("delivered", "delivered")
    kept = {attempt["delivery_id"]: attempt["provider_response"] for attempt in await core.rows("delivery_attempts")}
    assert (kept[odd], kept[good]) == ({"left_out": "the provider's words could not be kept"}, {})
    receipts = {receipt["delivery_id"]: receipt for receipt in await core.rows("delivery_receipts")}
    assert (receipts[good]["provider_delivery_id"], receipts[odd]["part"]) == ("77", 1)
