"""Episodes become facts and rules, once, whoever reads them and whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from butlers.butler.memory.consolidation import LocalReader, Reading
from butlers.butler.memory.episodes import Episode
from butlers.errors import ClassificationError, TargetUnavailable
from tests.integration.memory.conftest import MemorySystem, Unreadable


async def test_episodes_become_facts_in_the_order_they_happened(system: MemorySystem) -> None:
    await system.happened("I live in Linz. I like olives")
    system.pass_time(hours=1)
    await system.happened("I moved to Graz", speaker="ann")
    await system.happened("I hate olives")
    assert await system.consolidate() == {
        "claimed": 3,
        "consolidated": 3,
        "returned": 0,
        "dead": 0,
        "facts": 4,
        "rules": 0,
    }
    assert await system.facts() == {
        ("owner", "lives in"): "Linz",
        ("ann", "lives in"): "Graz",
        ("owner", "opinion of olives"): "hates",
    }
    assert await system.statuses() == ["consolidated"] * 3
    system.pass_time(hours=6)
    assert (await system.consolidate())["claimed"] == 0


async def test_what_the_butler_answered_teaches_it_nothing(system: MemorySystem) -> None:
    await system.happened("Tell me about me", answer="My name is Bob. I live in Rome.")
    await system.consolidate()
    assert await system.facts() == {}


async def test_a_correction_becomes_a_rule_when_another_episode_repeats_it(system: MemorySystem) -> None:
    await system.happened("Please don't call me Johnny! Please don't call me Johnny!")
    await system.consolidate()
    assert await system.rules() == {}
    system.pass_time(days=3)
    await system.happened("don't call me Johnny")
    assert (await system.consolidate())["rules"] == 1
    assert await system.rules() == {"Don't call me Johnny": "candidate"}
    for _ in range(3):
        system.pass_time(days=1)
        await system.happened("Don't call me johnny.")
        await system.consolidate()
    assert await system.rules() == {"Don't call me Johnny": "established"}


async def test_two_processes_share_the_episodes_and_read_each_once(system: MemorySystem) -> None:
    for number in range(250):
        await system.happened(f"My locker number is {number}")
        system.pass_time(seconds=1)
    totals = await asyncio.gather(*(system.consolidate(memory=system.another()) for _ in range(4)))
    assert sum(total["claimed"] for total in totals) == 250
    assert sum(total["facts"] for total in totals) == 250
    assert {row["attempts"] for row in await system.episodes()} == {1}
    # Whoever came last, what was said last holds.
    assert await system.facts() == {("owner", "locker number"): "249"}


async def test_a_claim_takes_a_hundred_at_most(system: MemorySystem) -> None:
    sizes: list[int] = []

    class Counting(LocalReader):
        async def read(self, episodes: Sequence[Episode]) -> Reading:
            sizes.append(len(episodes))
            return await super().read(episodes)

    for number in range(230):
        await system.happened(f"nothing of note {number}")
    await system.consolidate(Counting())
    assert sizes == [100, 100, 30]


async def test_a_dead_reader_s_episodes_are_taken_over_when_its_lease_is_over(system: MemorySystem) -> None:
    await system.happened("My name is Ann")
    now = system.clock.now()
    token, claimed = await system.memory.episodes.claim(run_started=now, now=now, size=lambda _: 100)
    assert len(claimed) == 1
    system.pass_time(seconds=299)
    assert (await system.consolidate())["claimed"] == 0
    system.pass_time(seconds=1)
    assert (await system.consolidate())["consolidated"] == 1
    # The first one comes back late, and has nothing to say any more.
    async with system.database.transaction() as connection:
        assert await system.memory.episodes.finish(connection, claimed, token, now=system.clock.now()) == set()
    assert await system.memory.episodes.release(claimed, token, problem="late", excused=False) == []
    assert await system.statuses() == ["consolidated"]


async def test_a_reader_that_lost_its_lease_writes_no_facts(system: MemorySystem) -> None:
    await system.happened("My name is Ann")

    class Slow(LocalReader):
        async def read(self, episodes: Sequence[Episode]) -> Reading:
            system.pass_time(seconds=400)
            assert (await system.consolidate(memory=system.another()))["facts"] == 1
            return await super().read(episodes)

    assert await system.consolidate(Slow()) == {
        "claimed": 1,
        "consolidated": 0,
        "returned": 0,
        "dead": 0,
        "facts": 0,
        "rules": 0,
    }
    [fact] = await system.database.fetch("SELECT confirmations FROM general.memory_facts")
    assert fact["confirmations"] == 0


async def test_what_cannot_be_read_is_dead_after_five_attempts_and_takes_nobody_with_it(system: MemorySystem) -> None:
    for number in range(19):
        await system.happened(f"My locker number is {number}")
        system.pass_time(seconds=1)
    await system.happened("POISON")
    reader = Unreadable(poison="POISON", error=ClassificationError("not in the form"))
    results = []
    for _ in range(6):
        results.append(await system.consolidate(reader))
        system.pass_time(hours=6)
    assert [result["dead"] for result in results] == [0, 0, 0, 0, 1, 0]
    statuses = await system.statuses()
    assert (statuses.count("consolidated"), statuses.count("dead")) == (19, 1)
    [dead] = [row for row in await system.episodes() if row["consolidation_status"] == "dead"]
    assert (dead["attempts"], dead["last_error"], dead["content"]) == (5, "not in the form", "POISON")
    assert reader.sizes[:5] == [20, 5, 5, 5, 5]


async def test_a_failure_that_nobody_foresaw_counts_too(system: MemorySystem) -> None:
    await system.happened("POISON")
    reader = Unreadable(poison="POISON", error=RuntimeError("a secret that must not be stored"))
    assert (await system.consolidate(reader))["returned"] == 1
    [row] = await system.episodes()
    assert (row["consolidation_status"], row["attempts"], row["last_error"]) == ("pending", 1, "RuntimeError")


async def test_a_reader_that_is_away_costs_no_attempt_and_ends_the_run(system: MemorySystem) -> None:
    for number in range(30):
        await system.happened(f"number {number}")
    reader = Unreadable(poison="number", error=TargetUnavailable("no such program"))
    for _ in range(7):
        assert (await system.consolidate(reader))["returned"] == 20
        system.pass_time(hours=6)
    assert reader.sizes == [20] * 7
    assert {(row["consolidation_status"], row["attempts"]) for row in await system.episodes()} == {("pending", 0)}
    assert (await system.consolidate())["consolidated"] == 30


async def test_an_episode_that_kills_its_readers_is_given_up(system: MemorySystem) -> None:
    await system.happened("My name is Ann")
    for _ in range(system.policy.max_attempts):
        now = system.clock.now()
        _, claimed = await system.memory.episodes.claim(run_started=now, now=now, size=lambda _: 1)
        assert len(claimed) == 1
        system.pass_time(seconds=301)
    assert await system.consolidate() == {
        "claimed": 0,
        "consolidated": 0,
        "returned": 0,
        "dead": 1,
        "facts": 0,
        "rules": 0,
    }
    assert await system.facts() == {}


@pytest.mark.parametrize(
    ("age_days", "importance", "read", "kept"),
    [
        (6.9, 0.1, False, True),
        (7.1, 0.1, False, False),
        (7.1, 0.69, False, False),
        (7.1, 0.7, False, True),  # important, and nobody has read it yet
        (7.1, 0.7, True, False),
        (29.9, 1.0, False, True),
        (30.1, 1.0, False, False),
    ],
)
async def test_what_is_past_its_time_is_forgotten(
    system: MemorySystem, age_days: float, importance: float, read: bool, kept: bool
) -> None:
    await system.happened("it happened", importance=importance)
    if read:
        await system.consolidate()
    system.pass_time(days=age_days)
    overdue = 1 if kept and age_days > 7 else 0
    assert await system.clean_up() == {"removed": 0 if kept else 1, "kept": overdue}
    assert len(await system.episodes()) == (1 if kept else 0)
    assert (await system.clean_up())["removed"] == 0


async def test_what_is_being_read_is_not_removed_under_its_reader(system: MemorySystem) -> None:
    await system.happened("old news")
    system.pass_time(days=31)
    now = system.clock.now()
    await system.memory.episodes.claim(run_started=now, now=now, size=lambda _: 1)
    assert (await system.clean_up())["removed"] == 0
    system.pass_time(seconds=301)
    assert (await system.clean_up())["removed"] == 1


async def test_many_are_removed_in_batches_and_by_two_at_once(system: MemorySystem) -> None:
    await system.database.execute(
        "INSERT INTO general.memory_episodes (id, source, speaker, content, importance, created_at, expires_at)"
        " SELECT gen_random_uuid(), 'test', 'owner', 'old', 0.1, $1, $1 FROM generate_series(1, 1234)",
        system.clock.now(),
    )
    results = await asyncio.gather(system.clean_up(), system.clean_up())
    rest = await system.clean_up()
    assert sum(result["removed"] for result in (*results, rest)) == 1234
    assert rest["kept"] == 0


async def test_corrections_that_nobody_repeats_are_forgotten(system: MemorySystem) -> None:
    await system.happened("Never call me Johnny")
    await system.consolidate()
    system.pass_time(days=91)
    await system.clean_up()
    await system.happened("Never call me Johnny")
    await system.consolidate()
    assert await system.rules() == {}
