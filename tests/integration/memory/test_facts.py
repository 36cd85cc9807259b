"""One fact is held true about a subject in one respect; it fades, is confirmed, superseded and forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from butlers.butler.memory.episodes import NewEpisode
from butlers.butler.memory.facts import Rules
from butlers.butler.memory.recall import Kind, Question
from tests.integration.memory.conftest import World


async def recall(
    world: World,
    text: str,
    *kinds: Kind,
    limit: int = 10,
    offset: int = 0,
    min_confidence: float = 0.05,
) -> list[str]:
    question = Question(
        text=text,
        kinds=set(kinds or ("fact", "rule", "episode")),
        limit=limit,
        offset=offset,
        min_confidence=min_confidence,
    )
    page = await world.memory.recall.search(question, now=world.clock.now())
    assert page is not None
    return [memory["content"] for memory in page["memories"]]


async def test_a_newer_fact_takes_the_place_of_the_older_one(world: World) -> None:
    first, stored = await world.is_so("Ann", "lives in", "Linz")
    world.pass_time(days=1)
    second, superseded = await world.is_so("  ANN ", "Lives  in", "Graz")
    assert (stored, superseded) == ("stored", "superseded")
    assert await recall(world, "where does ann live") == ["Graz"]
    old, new = [await world.memory.facts.get(fact_id, now=world.clock.now()) for fact_id in (first, second)]
    assert old is not None
    assert new is not None
    assert (old["superseded_by"], new["superseded_by"]) == (second, None)
    assert [version["content"] for version in new["versions"]] == ["Linz"]


async def test_an_older_observation_does_not_replace_a_newer_one(world: World) -> None:
    newer, _ = await world.is_so("Ann", "lives in", "Graz")
    before = world.clock.now() - timedelta(days=2)
    known, outcome = await world.is_so("Ann", "lives in", "Linz", observed_at=before, origin="local")
    assert (known, outcome) == (newer, "outdated")
    assert await world.facts() == {("Ann", "lives in"): "Graz"}


async def test_the_same_again_makes_it_fresh(world: World) -> None:
    first, _ = await world.is_so("Ann", "car", "a red Volvo", permanence="volatile", confidence=0.5)
    world.pass_time(days=60)
    again, outcome = await world.is_so(
        "ann", "car", "A red Volvo.", permanence="ephemeral", confidence=0.4, origin="local"
    )
    assert (again, outcome) == (first, "repeated")
    fact = await world.memory.facts.get(first, now=world.clock.now())
    assert fact is not None
    assert (fact["effective_confidence"], fact["permanence"], fact["confirmations"]) == (0.5, "volatile", 1)


async def test_a_confirmed_fact_starts_to_fade_anew(world: World) -> None:
    fact_id, _ = await world.is_so("Ann", "car", "a red Volvo", permanence="volatile", confidence=0.8)
    world.pass_time(days=30)
    faded = await world.memory.facts.get(fact_id, now=world.clock.now())
    assert faded is not None
    assert faded["effective_confidence"] == pytest.approx(0.8 * 2.718281828**-0.9, abs=1e-3)
    assert await world.memory.facts.confirm(fact_id, now=world.clock.now())
    fresh = await world.memory.facts.get(fact_id, now=world.clock.now())
    assert fresh is not None
    assert fresh["effective_confidence"] == 0.8


async def test_a_superseded_fact_cannot_be_confirmed(world: World) -> None:
    old, _ = await world.is_so("Ann", "lives in", "Linz")
    await world.is_so("Ann", "lives in", "Graz")
    assert not await world.memory.facts.confirm(old, now=world.clock.now())


async def test_forgetting_takes_every_version(world: World) -> None:
    for place in ("Linz", "Graz", "Wien"):
        fact_id, _ = await world.is_so("Ann", "lives in", place)
        world.pass_time(days=1)
    await world.is_so("Ann", "car", "a Volvo")
    assert await world.memory.facts.forget(fact_id) == 3
    assert await world.facts() == {("Ann", "car"): "a Volvo"}
    assert await world.memory.facts.forget(fact_id) == 0


async def test_many_writers_leave_one_fact_that_holds(world: World) -> None:
    await asyncio.gather(*(world.is_so("Ann", "lives in", f"place {number}") for number in range(8)))
    rows = await world.database.fetch("SELECT superseded_by, superseded_at FROM general.memory_facts")
    assert len(rows) == 8
    assert sum(row["superseded_at"] is None for row in rows) == 1


async def test_better_matches_surer_and_fresher_memories_come_first(world: World) -> None:
    await world.is_so("Ann", "garden", "tomatoes and herbs", confidence=0.45)
    await world.is_so("Bob", "garden", "tomatoes and roses", confidence=0.9)
    await world.is_so("Eve", "kitchen", "tomatoes", confidence=1.0)
    assert await recall(world, "garden tomatoes") == ["tomatoes and roses", "tomatoes", "tomatoes and herbs"]
    world.pass_time(days=200)
    await world.is_so("Dan", "garden", "tomatoes and beans", confidence=0.5)
    assert (await recall(world, "garden tomatoes"))[0] == "tomatoes and beans"


async def test_what_has_faded_is_not_found(world: World) -> None:
    await world.is_so("Ann", "mood", "cheerful", permanence="ephemeral", confidence=0.9)
    await world.is_so("Ann", "birthday", "3 May", permanence="permanent", confidence=0.9)
    world.pass_time(days=60)
    assert await recall(world, "Ann") == ["3 May"]
    assert sorted(await recall(world, "Ann", min_confidence=0.0)) == ["3 May", "cheerful"]


async def test_words_are_found_in_other_forms(world: World) -> None:
    await world.is_so("Ann", "birthday", "3 May")
    await world.is_so("Ann", "hobby", "collecting stamps")
    assert await recall(world, "birthdays") == ["3 May"]
    assert await recall(world, "birth") == ["3 May"]
    assert await recall(world, "Who collects a stamp?") == ["collecting stamps"]
    assert await recall(world, "nonsense") == []


@pytest.mark.parametrize("text", ["the of and", "???", "' | ! & :* <-> ()", "\\"])
async def test_a_question_without_words_finds_nothing_and_breaks_nothing(world: World, text: str) -> None:
    question = Question(text=text, kinds={"fact"}, limit=5, offset=0, min_confidence=0)
    assert await world.memory.recall.search(question, now=world.clock.now()) is None


async def test_kinds_are_found_together_or_apart(world: World) -> None:
    await world.is_so("Ann", "pet", "a parrot")
    await world.happened("The parrot escaped", importance=0.4)
    async with world.database.transaction() as connection:
        await world.memory.rules.store(
            connection, "Never wake the parrot", origin="tool", now=world.clock.now(), maturity="proven"
        )
    assert await recall(world, "parrot") == ["Never wake the parrot", "a parrot", "The parrot escaped"]
    assert await recall(world, "parrot", "episode") == ["The parrot escaped"]
    assert await recall(world, "parrot", limit=1, offset=1) == ["a parrot"]
    world.pass_time(days=8)
    assert await recall(world, "parrot", "episode") == []


async def test_a_rule_ripens_and_an_anti_pattern_must_earn_its_way_back(world: World) -> None:
    rules: Rules = world.memory.rules
    now = world.clock.now()
    async with world.database.transaction() as connection:
        good, maturity = await rules.store(connection, "Answer briefly", origin="tool", now=now)
        bad, spoiled = await rules.store(connection, "Joke", origin="tool", now=now, maturity="anti_pattern")
    assert (maturity, spoiled) == ("candidate", "anti_pattern")
    assert [await rules.used(good, helped=True, now=now) for _ in range(3)][-1] == "established"
    assert [await rules.used(good, helped=False, now=now) for _ in range(4)][-1] == "anti_pattern"
    assert [await rules.used(bad, helped=True, now=now) for _ in range(3)][-1] == "anti_pattern"
    assert await rules.used(bad, helped=True, now=now) == "established"


async def test_a_forgotten_rule_needs_two_corrections_again(world: World) -> None:
    for _ in range(2):
        await world.happened("Never call me Johnny")
        await world.consolidate()
        world.pass_time(days=1)
    rule_id = await world.database.fetchval("SELECT id FROM general.memory_rules")
    assert await world.memory.rules.forget(rule_id) == 1
    await world.happened("Never call me Johnny")
    await world.consolidate()
    assert await world.rules() == {}


async def test_a_session_leaves_one_episode(world: World) -> None:
    same = NewEpisode(source="route", content="hello", session_id=uuid4())
    assert await world.memory.episodes.store(same, now=world.clock.now()) is not None
    assert await world.memory.episodes.store(same, now=world.clock.now()) is None
    assert (await world.memory.stats())["episodes"]["total"] == 1
