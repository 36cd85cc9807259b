"""Episodes become facts and rules, once, whoever reads them and whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from butlers.butler.memory.consolidation import LocalReader, Reading
from butlers.butler.memory.episodes import Episode
from butlers.errors import ClassificationError, TargetUnavailable
from tests.integration.memory.conftest import Unreadable, World


async def test_episodes_become_facts_in_the_order_they_happened(world: World) -> None:
    await world.happened("I live in Linz. I like olives")
    world.pass_time(hours=1)
    await world.happened("I moved to Graz", speaker="ann")
    await world.happened("I hate olives")
    assert await world.consolidate() == {
        "claimed": 3,
        "consolidated": 3,
        "returned": 0,
        "dead": 0,
        "facts": 4,
        "rules": 0,
    }
    assert await world.facts() == {
        ("owner", "lives in"): "Linz",
        ("ann", "lives in"): "Graz",
        ("owner", "opinion of olives"): "hates",
    }
    assert await world.statuses() == ["consolidated"] * 3
    world.pass_time(hours=6)
    assert (await world.consolidate())["claimed"] == 0


async def test_what_the_butler_answered_teaches_it_nothing(world: World) -> None:
    await world.happened("Tell me about me", answer="My name is Bob. I live in Rome.")
    await world.consolidate()
    assert await world.facts() == {}


async def test_a_correction_becomes_a_rule_when_another_episode_repeats_it(world: World) -> None:
    await world.happened("Please don't call me Johnny! Please don't call me Johnny!")
    await world.consolidate()
    assert await world.rules() == {}
    world.pass_time(days=3)
    await world.happened("don't call me Johnny")
    assert (await world.consolidate())["rules"] == 1
    assert await world.rules() == {"Don't call me Johnny": "candidate"}
    for _ in range(3):
        world.pass_time(days=1)
        await world.happened("Don't call me johnny.")
        await world.consolidate()
    assert await world.rules() == {"Don't call me Johnny": "established"}


async def test_two_processes_share_the_episodes_and_read_each_once(world: World) -> None:
    for number in range(250):
        await world.happened(f"My locker number is {number}")
        world.pass_time(seconds=1)
    totals = await asyncio.gather(*(world.consolidate(memory=world.another()) for _ in range(4)))
    assert sum(total["claimed"] for total in totals) == 250
    assert sum(total["facts"] for total in totals) == 250
    assert {row["attempts"] for row in await world.episodes()} == {1}
    # Whoever came last, what was said last holds.
    assert await world.facts() == {("owner", "locker number"): "249"}


async def test_a_claim_takes_a_hundred_at_most(world: World) -> None:
    sizes: list[int] = []

    class Counting(LocalReader):
        async def read(self, episodes: Sequence[Episode]) -> Reading:
            sizes.append(len(episodes))
            return await super().read(episodes)

    for number in range(230):
        await world.happened(f"nothing of note {number}")
    await world.consolidate(Counting())
    assert sizes == [100, 100, 30]


async def test_a_dead_reader_s_episodes_are_taken_over_when_its_lease_is_over(world: World) -> None:
    await world.happened("My name is Ann")
    now = world.clock.now()
    token, claimed = await world.memory.episodes.claim(run_started=now, now=now, size=lambda _: 100)
    assert len(claimed) == 1
    world.pass_time(seconds=299)
    assert (await world.consolidate())["claimed"] == 0
    world.pass_time(seconds=1)
    assert (await world.consolidate())["consolidated"] == 1
    # The first one comes back late, and has nothing to say any more.
    async with world.database.transaction() as connection:
        assert await world.memory.episodes.finish(connection, claimed, token, now=world.clock.now()) == set()
    assert await world.memory.episodes.release(claimed, token, problem="late", excused=False) == []
    assert await world.statuses() == ["consolidated"]


async def test_a_reader_that_lost_its_lease_writes_no_facts(world: World) -> None:
    await world.happened("My name is Ann")

    class Slow(LocalReader):
        async def read(self, episodes: Sequence[Episode]) -> Reading:
            world.pass_time(seconds=400)
            assert (await world.consolidate(memory=world.another()))["facts"] == 1
            return await super().read(episodes)

    assert await world.consolidate(Slow()) == {
        "claimed": 1,
        "consolidated": 0,
        "returned": 0,
        "dead": 0,
        "facts": 0,
        "rules": 0,
    }
    [fact] = await world.database.fetch("SELECT confirmations FROM general.memory_facts")
    assert fact["confirmations"] == 0


async def test_what_cannot_be_read_is_dead_after_five_attempts_and_takes_nobody_with_it(world: World) -> None:
    for number in range(19):
        await world.happened(f"My locker number is {number}")
        world.pass_time(seconds=1)
    await world.happened("POISON")
    reader = Unreadable(poison="POISON", error=ClassificationError("not in the form"))
    results = []
    for _ in range(6):
        results.append(await world.consolidate(reader))
        world.pass_time(hours=6)
    assert [result["dead"] for result in results] == [0, 0, 0, 0, 1, 0]
    statuses = await world.statuses()
    assert (statuses.count("consolidated"), statuses.count("dead")) == (19, 1)
    [dead] = [row for row in await world.episodes() if row["consolidation_status"] == "dead"]
    assert (dead["attempts"], dead["last_error"], dead["content"]) == (5, "not in the form", "POISON")
    assert reader.sizes[:5] == [20, 5, 5, 5, 5]


async def test_a_failure_that_nobody_foresaw_counts_too(world: World) -> None:
    await world.happened("POISON")
    reader = Unreadable(poison="POISON", error=RuntimeError("a secret that must not be stored"))
    assert (await world.consolidate(reader))["returned"] == 1
    [row] = await world.episodes()
    assert (row["consolidation_status"], row["attempts"], row["last_error"]) == ("pending", 1, "RuntimeError")


async def test_a_reader_that_is_away_costs_no_attempt_and_ends_the_run(world: World) -> None:
    for number in range(30):
        await world.happened(f"number {number}")
    reader = Unreadable(poison="number", error=TargetUnavailable("no such program"))
    for _ in range(7):
        assert (await world.consolidate(reader))["returned"] == 20
        world.pass_time(hours=6)
    assert reader.sizes == [20] * 7
    assert {(row["consolidation_status"], row["attempts"]) for row in await world.episodes()} == {("pending", 0)}
    assert (await world.consolidate())["consolidated"] == 30


async def test_an_episode_that_kills_its_readers_is_given_up(world: World) -> None:
    await world.happened("My name is Ann")
    for _ in range(world.policy.max_attempts):
        now = world.clock.now()
        _, claimed = await world.memory.episodes.claim(run_started=now, now=now, size=lambda _: 1)
        assert len(claimed) == 1
        world.pass_time(seconds=301)
    assert await world.consolidate() == {
        "claimed": 0,
        "consolidated": 0,
        "returned": 0,
        "dead": 1,
        "facts": 0,
        "rules": 0,
    }
    assert await world.facts() == {}


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
    world: World, age_days: float, importance: float, read: bool, kept: bool
) -> None:
    await world.happened("it happened", importance=importance)
    if read:
        await world.consolidate()
    world.pass_time(days=age_days)
    overdue = 1 if kept and age_days > 7 else 0
    assert await world.clean_up() == {"removed": 0 if kept else 1, "kept": overdue}
    assert len(await world.episodes()) == (1 if kept else 0)
    assert (await world.clean_up())["removed"] == 0


async def test_what_is_being_read_is_not_removed_under_its_reader(world: World) -> None:
    await world.happened("old news")
    world.pass_time(days=31)
    now = world.clock.now()
    await world.memory.episodes.claim(run_started=now, now=now, size=lambda _: 1)
    assert (await world.clean_up())["removed"] == 0
    world.pass_time(seconds=301)
    assert (await world.clean_up())["removed"] == 1


async def test_many_are_removed_in_batches_and_by_two_at_once(world: World) -> None:
    await world.database.execute(
        "INSERT INTO general.memory_episodes (id, source, speaker, content, importance, created_at, expires_at)"
        " SELECT gen_random_uuid(), 'test', 'owner', 'old', 0.1, $1, $1 FROM generate_series(1, 1234)",
        world.clock.now(),
    )
    results = await asyncio.gather(world.clean_up(), world.clean_up())
    rest = await world.clean_up()
    assert sum(result["removed"] for result in (*results, rest)) == 1234
    assert rest["kept"] == 0


async def test_corrections_that_nobody_repeats_are_forgotten(world: World) -> None:
    await world.happened("Never call me Johnny")
    await world.consolidate()
    world.pass_time(days=91)
    await world.clean_up()
    await world.happened("Never call me Johnny")
    await world.consolidate()
    assert await world.rules() == {}
