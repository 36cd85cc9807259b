"""The worker stops: what was claimed is sent in time or given back, and never in doubt for that."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from butlers.channels.adapter import Certainty, NotSent
from butlers.messenger.attempt import ChannelPolicy, attempt
from butlers.messenger.evidence import WireLog
from butlers.reliability.retry import RetryPolicy

from .core import LEASE_S, SCHEMA, Core
from .given_worker import (
    LosesAnswers,
    Provider,
    SlowAnswers,
    eventually,
    of,
    status,
    worker,
)


async def test_a_claim_that_is_under_way_when_the_stop_comes_becomes_an_attempt_in_time(
    core: Core, tmp_path: Path
) -> None:
    delivery, provider, slow = await core.take(), Provider(), of(core, SlowAnswers)
    provider.answers.set()
    ours = worker(core, tmp_path, provider, deliveries=slow)
    claiming = asyncio.create_task(ours.run_once())
    await slow.claimed.wait()
    closing = asyncio.create_task(ours.close(20))
    await asyncio.sleep(0)
    slow.answers.set()
    await asyncio.gather(claiming, closing)
    assert (await status(core, delivery), provider.asked) == ("delivered", [delivery])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("earlier", "back"), [(0, "pending"), (1, "awaiting_retry")])
async def test_a_claim_that_comes_too_late_for_the_stop_is_given_back_as_if_it_had_never_been(
    core: Core, tmp_path: Path, earlier: int, back: str
) -> None:
    delivery, provider, slow = await core.take(), Provider(), of(core, SlowAnswers)
    await core.database.execute(f"update {SCHEMA}.delivery_requests set attempts = $1", earlier)
    ours = worker(core, tmp_path, provider, deliveries=slow)
    claiming = asyncio.create_task(ours.run_once())
    await slow.claimed.wait()
    await ours.close(0.01)
    assert [path.suffix for path in tmp_path.iterdir()] == [".wire"], "whoever rescues would need it"
    slow.answers.set()
    await claiming

    async def given_back() -> bool:
        return await status(core, delivery) == back

    await eventually(given_back)
    row = await core.row(delivery)
    assert (row["attempts"], row["claim_token"], provider.asked) == (earlier, None, [])
    assert await core.rows("delivery_attempts") == []
    assert [claimed.id for claimed in await core.claim(worker="w2")] == [delivery]


async def test_a_trial_that_comes_too_late_for_the_stop_is_free_again(core: Core, tmp_path: Path) -> None:
    delivery, deliveries = await core.take(), core.deliveries()
    await core.database.execute(
        f"update {SCHEMA}.channel_states set state = 'open', probe_at = $1 where name = 'telegram.bot'",
        core.clock.now() - timedelta(seconds=1),
    )
    probes = await deliveries.claim_probes("telegram.bot", limit=5, worker="w1", lease_s=LEASE_S)
    assert [probe.id for probe in probes] == [delivery]
    assert await deliveries.claim_probes("telegram.bot", limit=5, worker="w1", lease_s=LEASE_S) == []
    await deliveries.give_back(probes)
    again = await deliveries.claim_probes("telegram.bot", limit=5, worker="w1", lease_s=LEASE_S)
    assert [probe.id for probe in again] == [delivery]


async def test_attempts_that_begin_during_the_stop_are_waited_for_as_well(core: Core, tmp_path: Path) -> None:
    """Those that are there when it begins are not all: each of them gets the time there is."""
    first, second = await core.take("1"), await core.take("2")
    provider, slow = Provider(), of(core, SlowAnswers)
    ours = worker(core, tmp_path, provider, deliveries=slow)
    handed = await core.claim(limit=1)
    ours.start_claimed(handed, reserved=0)
    await provider.entered.wait()
    claiming = asyncio.create_task(ours.run_once())
    await slow.claimed.wait()
    closing = asyncio.create_task(ours.close(20))
    await asyncio.sleep(0)
    provider.entered.clear()
    slow.answers.set()
    await provider.entered.wait()
    provider.answers.set()
    await asyncio.gather(claiming, closing)
    assert [await status(core, delivery) for delivery in (first, second)] == ["delivered", "delivered"]


async def test_a_claim_whose_answer_was_lost_is_not_in_doubt_after_a_stop(core: Core, tmp_path: Path) -> None:
    delivery = await core.take()
    ours = worker(core, tmp_path, Provider(), deliveries=of(core, LosesAnswers))
    with pytest.raises(ConnectionError):
        await ours.run_once()
    await ours.close(1)
    heir = worker(core, tmp_path, Provider(), name="w2")
    assert await heir.rescue() == 1
    assert await status(core, delivery) == "awaiting_retry"
    await heir.close(1)
    assert list(tmp_path.iterdir()) == []


async def test_without_a_place_for_evidence_nothing_leaves_and_nobody_else_is_blamed(
    core: Core, tmp_path: Path
) -> None:
    await core.take()
    delivery, provider, closed = await core.claim_one(), Provider(), WireLog(tmp_path, "closed")
    closed.close(keep=False)
    retry = RetryPolicy(max_attempts=3, initial_delay=1.0, max_delay=1.0)
    policy = ChannelPolicy(retry=retry, timeout_s=30.0, certainty="never_duplicate")
    result = await attempt(
        delivery,
        channel=provider,
        policy=policy,
        leaving=closed.leaving,
        record_part=core.deliveries().record_part,
        clock=core.clock,
    )
    assert isinstance(result, NotSent)
    assert (result.certainty, result.asked, result.error.retryable) == (Certainty.NOT_SENT, False, True)
    assert provider.asked == []
