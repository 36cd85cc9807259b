"""What was approved, replayed or settled passes the same admission."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

from butlers.messenger.admission import AdmissionBatch
from butlers.messenger.config import RecipientsSection
from tests.unit.messenger.admission_door import limits

from .core import Core


async def release(core: Core, count: int = 1, **words: str) -> list[UUID]:
    """Deliveries that somebody released a moment ago."""
    batch = AdmissionBatch()
    batch.taken += [core.new(admitted=False, **words) for _ in range(count)]
    async with core.database.transaction() as connection:
        await core.admission().write(connection, batch, core.clock.now())
    return [new.id for new in batch.taken]


async def test_what_is_released_is_not_sent_before_it_has_passed(core: Core) -> None:
    (delivery,) = await release(core)
    assert await core.claim() == []
    assert await core.readmission().admit() == 1
    assert [claimed.id for claimed in await core.claim()] == [delivery]
    assert await core.readmission().admit() == 0


async def test_it_draws_from_the_same_budgets(core: Core) -> None:
    await release(core, 2)
    await core.readmission(limits(total=60.0)).admit()
    tokens = await core.tokens()
    assert (tokens["global"], tokens["share:global/general"]) == (58, 58)


async def test_what_does_not_pass_asks_again_when_there_is_room(core: Core) -> None:
    deliveries = await release(core, 5)
    door = core.readmission(limits(recipient=3.0))
    assert await door.admit() == 3
    rows = [await core.row(delivery) for delivery in deliveries]
    assert [row["admitted"] for row in rows] == [True] * 3 + [False] * 2
    late = rows[3]
    assert late["status"] == "pending"
    assert late["next_attempt_at"] == core.clock.now() + timedelta(seconds=20)
    assert [(decision["rule"], decision["verdict"]) for decision in late["decisions"]] == [("recipient", "wait")]
    core.clock.advance(19)
    assert await door.admit() == 0
    core.clock.advance(1)
    assert await door.admit() == 1
    core.clock.advance(20)
    assert await door.admit() == 1


async def test_a_rule_that_says_the_same_again_is_noted_once(core: Core) -> None:
    (waiting,) = await release(core)
    await core.take("8")
    for _ in range(20):
        assert await core.readmission(limits(in_flight=1)).admit() == 0
        core.clock.advance(1)
    rules = [decision["rule"] for decision in (await core.row(waiting))["decisions"]]
    assert rules == ["in_flight"]
    assert await core.readmission(limits(in_flight=2, recipient=1.0)).admit() == 1


async def test_answers_pass_first(core: Core) -> None:
    await release(core, 3)
    (answer,) = await release(core, intent="reply")
    assert await core.readmission(limits(in_flight=1)).admit() == 1
    assert (await core.row(answer))["admitted"]


async def test_an_open_window_puts_it_off_until_it_closes(core: Core) -> None:
    until = core.clock.now() + timedelta(seconds=40)
    await core.insert(
        "throttles", scope="telegram.bot", channel="telegram.bot", until=until, reason="429",
        created_at=core.clock.now(),
    )  # fmt: skip
    (delivery,) = await release(core)
    assert await core.readmission().admit() == 0
    assert (await core.row(delivery))["next_attempt_at"] == until


async def test_two_processes_admit_each_of_them_once(core: Core) -> None:
    await release(core, 10)
    tight = limits(total=6.0)
    first, second = core.readmission(tight), core.readmission(tight, database=core.second)
    assert sum(await asyncio.gather(first.admit(), second.admit())) == 6
    assert sum(row["admitted"] for row in await core.rows("delivery_requests")) == 6


async def test_who_must_not_be_written_to_any_more_is_not(core: Core) -> None:
    (denied,) = await release(core)
    target = (await core.row(denied))["target_identity"]
    door = core.readmission(recipients=RecipientsSection(deny=[f"*:{target}"]))
    assert await door.admit() == 0
    row = await core.row(denied)
    assert (row["status"], row["terminal_error_class"]) == ("failed", "validation_error")
    assert "deny list" in row["terminal_error_message"]
    assert await core.claim() == []
