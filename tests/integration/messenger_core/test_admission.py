"""Intents become durable: keys and budgets, judged together, shared by all processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest

from butlers.messenger.admission import ClaimSlots, Entry, OutcomeFuture, Taken
from butlers.messenger.admission_rules import Admitted, Known, Refused
from butlers.messenger.config import RecipientsSection
from butlers.messenger.delivery import ClaimedDelivery
from butlers.storage.database import Executor
from tests.unit.messenger.admission_door import limits

from .core import PLENTY, START, Core


def kinds(entries: list[Entry]) -> Counter[str]:
    return Counter(type(entry).__name__ for entry in entries)


def owner(entry: Entry) -> UUID:
    assert isinstance(entry, Taken | Known)
    return entry.delivery.id if isinstance(entry, Taken) else entry.delivery_id


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_two_processes_make_one_delivery_of_each_key(core: Core) -> None:
    books = [core.admission(), core.admission(database=core.second)]
    keys = [f"key-{number}" for number in range(25)]
    submits = [books[number % 2].submit(core.new(idempotency_key=keys[number * 7 % 25])) for number in range(100)]
    entries = await asyncio.gather(*submits)
    rows = await core.rows("delivery_requests")
    assert sorted(row["idempotency_key"] for row in rows) == sorted(keys)
    assert kinds(entries) == {"Taken": 25, "Known": 75}
    assert {owner(entry) for entry in entries} == {row["id"] for row in rows}
    assert await core.outcomes() == {("admitted", ""): 25, ("deduplicated", ""): 75}
    assert (await core.tokens())["global"] == pytest.approx(1e6 - 25), "a repeat costs nothing"


async def test_repeats_within_one_batch_get_the_first_of_them(core: Core) -> None:
    same = [core.new(idempotency_key="same") for _ in range(5)]
    async with core.database.transaction() as connection:
        entries = list(await core.admission().enter(connection, [*same, core.new()], core.clock.now()))
    assert kinds(entries) == {"Taken": 2, "Known": 4}
    assert {owner(entry) for entry in entries[:5]} == {same[0].id}
    assert len(await core.rows("delivery_requests")) == 2


async def test_results_come_back_in_the_order_of_the_questions(core: Core) -> None:
    """Although answers are judged first, and the butlers in turn."""
    new = [core.new(origin="a"), core.new(origin="a"), core.new(origin="b"), core.new(intent="reply", origin="a")]
    async with core.database.transaction() as connection:
        entries = list(await core.admission().enter(connection, new, core.clock.now()))
    assert [owner(entry) for entry in entries] == [one.id for one in new]


async def test_a_delivery_is_on_record_as_it_was_judged(core: Core) -> None:
    delivery_id = await core.take(message="hello", priority="high")
    row = await core.row(delivery_id)
    assert (row["status"], row["admitted"], row["attempts"], row["rank"]) == ("pending", True, 0, 5)
    assert row["next_attempt_at"] == row["created_at"] == core.clock.now()
    assert [(decision["rule"], decision["verdict"]) for decision in row["decisions"]] == [("admission", "admitted")]


# --- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["total", "channel", "recipient", "in_flight"])
async def test_two_processes_admit_exactly_what_one_budget_allows(core: Core, layer: str) -> None:
    tight = limits(**{layer: 20.0})
    books = [core.admission(tight), core.admission(tight, database=core.second)]
    entries = await asyncio.gather(*(books[number % 2].submit(core.new()) for number in range(100)))
    assert kinds(list(entries)) == {"Taken": 20, "Refused": 80}
    rule = {"total": "global"}.get(layer, layer)
    assert {entry.rule for entry in entries if isinstance(entry, Refused)} == {rule}
    assert len(await core.rows("delivery_requests")) == 20, "a refusal leaves no delivery"
    assert await core.outcomes() == {("admitted", ""): 20, ("rejected", rule): 80}


async def test_what_is_drawn_and_shared_is_on_record(core: Core) -> None:
    admission = core.admission(limits(total=60.0, channel=30.0, recipient=10.0))
    for origin in ("general", "general", "health"):
        await admission.submit(core.new(origin=origin))
    await admission.submit(core.new(intent="reply", origin="general"))
    assert await core.tokens() == pytest.approx(
        {
            "global": 56.5,
            "channel:telegram.bot": 26.5,
            "recipient:telegram.bot:7": 6.5,
            "share:global/general": 57.5,
            "share:global/health": 59.0,
            "share:channel:telegram.bot/general": 27.5,
            "share:channel:telegram.bot/health": 29.0,
            "share:answers:global/general": 59.5,
            "share:answers:channel:telegram.bot/general": 29.5,
        }
    )


async def test_a_refused_butler_is_on_record_as_wanting_and_nothing_else_is_drawn(core: Core) -> None:
    admission = core.admission(limits(total=3.0))
    for _ in range(3):
        await admission.submit(core.new(origin="noisy"))
    before = await core.tokens()
    assert isinstance(await admission.submit(core.new("8", origin="quiet")), Refused)
    after = await core.tokens()
    assert after == before | {"share:global/quiet": 3.0, "share:channel:telegram.bot/quiet": 1e6}


async def test_a_recipient_who_may_not_be_written_to_reserves_nobodys_budget(core: Core) -> None:
    """What can never be sent is no reason to make others wait."""
    admission = core.admission(limits(total=4.0), recipients=RecipientsSection(deny=["telegram:666"]))
    for _ in range(3):
        assert isinstance(await admission.submit(core.new("666", origin="mistaken")), Refused)
    entries = [await admission.submit(core.new(origin="general")) for _ in range(4)]
    assert kinds(entries) == {"Taken": 4}


async def test_each_butler_in_turn_within_a_batch(core: Core) -> None:
    new = [core.new(origin="noisy") for _ in range(20)] + [core.new(origin="quiet") for _ in range(3)]
    async with core.database.transaction() as connection:
        entries = await core.admission(limits(total=6.0)).enter(connection, new, core.clock.now())
    taken = Counter(entry.delivery.notify.origin_butler for entry in entries if isinstance(entry, Taken))
    assert taken == {"noisy": 3, "quiet": 3}


async def test_answers_are_judged_before_the_rest_of_a_batch(core: Core) -> None:
    new = [core.new() for _ in range(5)] + [core.new(intent="reply") for _ in range(4)]
    async with core.database.transaction() as connection:
        entries = await core.admission(limits(total=3.0)).enter(connection, new, core.clock.now())
    assert [type(entry).__name__ for entry in entries] == ["Taken", *["Refused"] * 4, *["Taken"] * 4]


async def test_a_full_bucket_needs_no_row(core: Core) -> None:
    admission = core.admission(limits(total=60.0, channel=30.0, recipient=10.0))
    for _ in range(3):
        await admission.submit(core.new())
    await core.insert(
        "throttles", scope="telegram.bot:7", channel="telegram.bot", until=core.clock.now(), reason="x",
        created_at=core.clock.now(),
    )  # fmt: skip
    core.clock.advance(1)
    forget = core.queries_of("upkeep").forget_idle_budgets
    assert await core.database.fetchval(forget, core.clock.now()) == 1, "the closed window"
    assert len(await core.tokens()) == 5
    core.clock.advance(120)
    await core.database.fetchval(forget, core.clock.now())
    assert await core.tokens() == {}
    assert isinstance(await admission.submit(core.new()), Taken), "the lock is still there"
    assert (await core.tokens())["global"] == 59


async def test_budgets_refill_with_time(core: Core) -> None:
    admission = core.admission(limits(recipient=6.0))
    assert kinds([await admission.submit(core.new()) for _ in range(8)]) == {"Taken": 6, "Refused": 2}
    core.clock.advance(10)
    assert kinds([await admission.submit(core.new()) for _ in range(3)]) == {"Taken": 1, "Refused": 2}


# --- recipients ------------------------------------------------------------------------------------------------------


async def moved(core: Core, old: str, new: str) -> None:
    await core.insert(
        "recipient_rules", channel="telegram", target=old, rule="moved", moved_to=new, reason="supergroup",
        decided_by="provider", since=core.clock.now(),
    )  # fmt: skip


async def suppressed(core: Core, target: str) -> None:
    await core.insert(
        "recipient_rules", channel="telegram", target=target, rule="suppressed", reason="blocked us",
        decided_by="provider", since=core.clock.now(),
    )  # fmt: skip


async def test_a_suppressed_recipient_leaves_only_a_count(core: Core) -> None:
    await suppressed(core, "7")
    entry = await core.admission().submit(core.new())
    assert isinstance(entry, Refused) and entry.rule == "suppressed"
    assert await core.rows("delivery_requests") == []
    assert await core.outcomes() == {("rejected", "suppressed"): 1}


async def test_a_repeat_of_what_suppressed_the_recipient_gets_its_first_answer(core: Core) -> None:
    first = core.new(idempotency_key="same")
    assert isinstance(await core.admission().submit(first), Taken)
    await suppressed(core, "7")
    assert await core.admission().submit(core.new(idempotency_key="same")) == Known(delivery_id=first.id)


async def test_a_recipient_who_moved_is_written_to_at_the_new_address(core: Core) -> None:
    await moved(core, "7", "-1007")
    row = await core.row(await core.take("7"))
    assert row["target_identity"] == "-1007"
    assert "moved" in [decision["verdict"] for decision in row["decisions"]]


async def test_two_addresses_of_a_recipient_who_moved_share_one_budget(core: Core) -> None:
    await moved(core, "7", "-1007")
    admission = core.admission(limits(recipient=4.0))
    entries = [await admission.submit(core.new(target)) for target in ("7", "-1007") * 4]
    assert kinds(entries) == {"Taken": 4, "Refused": 4}


async def test_a_recipient_who_moved_and_then_blocked_us_is_not_written_to(core: Core) -> None:
    await moved(core, "7", "-1007")
    await suppressed(core, "-1007")
    entry = await core.admission().submit(core.new("7"))
    assert isinstance(entry, Refused) and entry.rule == "suppressed"


async def test_an_admission_that_waited_for_the_lock_sees_what_its_holder_wrote(core: Core) -> None:
    """The lock and the state are one statement, and yet the state is read after the lock was granted."""
    first, repeat = core.new(idempotency_key="same"), core.new(idempotency_key="same")
    async with core.database.transaction() as connection:
        await core.admission().enter(connection, [first], core.clock.now())
        waiting = asyncio.create_task(core.admission(database=core.second).submit(repeat))
        await core.until_a_statement_waits()
    assert await waiting == Known(delivery_id=first.id)
    assert (await core.tokens())["recipient:telegram.bot:7"] == PLENTY.limits.recipient_per_minute - 1


# --- looking without touching ----------------------------------------------------------------------------------------


async def test_a_dry_run_says_what_would_happen_and_changes_nothing(core: Core) -> None:
    admission = core.admission(limits(total=1.0))
    _, verdict = await admission.preview(core.new())
    assert isinstance(verdict, Admitted)
    assert await core.tokens() == {} == await core.outcomes()
    first = core.new(idempotency_key="same")
    await admission.submit(first)
    before = await core.tokens()
    assert (await admission.preview(core.new(idempotency_key="same")))[1] == Known(delivery_id=first.id)
    assert isinstance((await admission.preview(core.new()))[1], Refused)
    assert await core.tokens() == before


async def test_an_admission_reads_no_table_from_end_to_end(core: Core) -> None:
    """However many people were written to before, and however much has ended since the last vacuum."""
    await core.database.execute(
        "INSERT INTO messenger.rate_buckets (name, capacity, refill_per_second, tokens, updated_at, full_at)"
        " SELECT 'recipient:telegram.bot:old-' || n, 10, 1, 5, $1, $1 FROM generate_series(1, 5000) AS n",
        START,
    )
    async with core.database.transaction() as connection:
        admission = core.admission()
        await admission.lock(connection)
        before = await _whole_reads(connection)
        await admission.enter(connection, [core.new(str(n)) for n in range(100)], core.clock.now())
        assert await _whole_reads(connection) == before


async def _whole_reads(connection: Executor) -> dict[str, int]:
    """How often this transaction has read a table from end to end."""
    rows = await connection.fetch(
        "SELECT relname, pg_stat_get_xact_numscans(relid) AS scans FROM pg_stat_user_tables"
        " WHERE schemaname = 'messenger'"
    )
    return {row["relname"]: row["scans"] for row in rows}


class Hand:
    """A worker with enough hands, which remembers what it was given."""

    def __init__(self) -> None:
        self.handed: list[UUID] = []

    def wake(self) -> None: ...

    def expect(self, delivery_id: UUID) -> OutcomeFuture:
        return asyncio.get_running_loop().create_future()

    def reserve_slots(self, requested: int) -> ClaimSlots:
        token = UUID(int=len(self.handed) + 1)
        return ClaimSlots(count=requested, token=token, worker="w", expires_at=START, channels={"telegram.bot"})

    def start_claimed(self, claimed: Sequence[ClaimedDelivery], *, reserved: int) -> None:
        self.handed += [delivery.id for delivery in claimed]


async def test_what_came_first_in_a_conversation_is_handed_over_first(core: Core) -> None:
    """Also when the next message comes while the batch of the first is on its way to the database."""
    for number in range(60):
        hand = Hand()
        admission = core.admission(executor=hand)
        first, second = core.new(f"chat-{number}"), core.new(f"chat-{number}")
        submits = [asyncio.create_task(admission.submit(first))]
        for _ in range(number % 4 + 1):
            await asyncio.sleep(0)
        submits.append(asyncio.create_task(admission.submit(second)))
        await asyncio.gather(*submits)
        assert hand.handed == [first.id]
