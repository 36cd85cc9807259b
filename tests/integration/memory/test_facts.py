"""One fact is held true about a subject in one respect; it fades, is confirmed, superseded and forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from butlers.butler.memory.episodes import NewEpisode
from butlers.butler.memory.facts import Rules
from butlers.butler.memory.recall import Kind, Question
from tests.integration.memory.conftest import MemorySystem


async def recall(
    system: MemorySystem,
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
    page = await system.memory.recall.search(question, now=system.clock.now())
    assert page is not None
    return [memory["content"] for memory in page["memories"]]


async def test_a_newer_fact_takes_the_place_of_the_older_one(system: MemorySystem) -> None:
    first, stored = await system.is_so("Ann", "lives in", "Linz")
    system.pass_time(days=1)
    second, superseded = await system.is_so("  ANN ", "Lives  in", "Graz")
    assert (stored, superseded) == ("stored", "superseded")
    assert await recall(system, "where does ann live") == ["Graz"]
    old, new = [await system.memory.facts.get(fact_id, now=system.clock.now()) for fact_id in (first, second)]
    assert old is not None
    assert new is not None
    assert (old["superseded_by"], new["superseded_by"]) == (second, None)
    assert [version["content"] for version in new["versions"]] == ["Linz"]


async def test_an_older_observation_does_not_replace_a_newer_one(system: MemorySystem) -> None:
    newer, _ = await system.is_so("Ann", "lives in", "Graz")
    before = system.clock.now() - timedelta(days=2)
    known, outcome = await system.is_so("Ann", "lives in", "Linz", observed_at=before, origin="local")
    assert (known, outcome) == (newer, "outdated")
    assert await system.facts() == {("Ann", "lives in"): "Graz"}


async def test_the_same_again_makes_it_fresh(system: MemorySystem) -> None:
    first, _ = await system.is_so("Ann", "car", "a red Volvo", permanence="volatile", confidence=0.5)
    system.pass_time(days=60)
    again, outcome = await system.is_so(
        "ann", "car", "A red Volvo.", permanence="ephemeral", confidence=0.4, origin="local"
    )
    assert (again, outcome) == (first, "repeated")
    fact = await system.memory.facts.get(first, now=system.clock.now())
    assert fact is not None
    assert (fact["effective_confidence"], fact["permanence"], fact["confirmations"]) == (0.5, "volatile", 1)


async def test_a_confirmed_fact_starts_to_fade_anew(system: MemorySystem) -> None:
    fact_id, _ = await system.is_so("Ann", "car", "a red Volvo", permanence="volatile", confidence=0.8)
    system.pass_time(days=30)
    faded = await system.memory.facts.get(fact_id, now=system.clock.now())
    assert faded is not None
    assert faded["effective_confidence"] == pytest.approx(0.8 * 2.718281828**-0.9, abs=1e-3)
    assert await system.memory.facts.confirm(fact_id, now=system.clock.now())
    fresh = await system.memory.facts.get(fact_id, now=system.clock.now())
    assert fresh is not None
    assert fresh["effective_confidence"] == 0.8


async def test_a_superseded_fact_cannot_be_confirmed(system: MemorySystem) -> None:
    old, _ = await system.is_so("Ann", "lives in", "Linz")
    await system.is_so("Ann", "lives in", "Graz")
    assert not await system.memory.facts.confirm(old, now=system.clock.now())


async def test_forgetting_takes_every_version(system: MemorySystem) -> None:
    for place in ("Linz", "Graz", "Wien"):
        fact_id, _ = await system.is_so("Ann", "lives in", place)
        system.pass_time(days=1)
    await system.is_so("Ann", "car", "a Volvo")
    assert await system.memory.facts.forget(fact_id) == 3
    assert await system.facts() == {("Ann", "car"): "a Volvo"}
    assert await system.memory.facts.forget(fact_id) == 0


async def test_many_writers_leave_one_fact_that_holds(system: MemorySystem) -> None:
    await asyncio.gather(*(system.is_so("Ann", "lives in", f"place {number}") for number in range(8)))
    rows = await system.database.fetch("SELECT superseded_by, superseded_at FROM general.memory_facts")
    assert len(rows) == 8
    assert sum(row["superseded_at"] is None for row in rows) == 1


async def test_better_matches_surer_and_fresher_memories_come_first(system: MemorySystem) -> None:
    await system.is_so("Ann", "garden", "tomatoes and herbs", confidence=0.45)
    await system.is_so("Bob", "garden", "tomatoes and roses", confidence=0.9)
    await system.is_so("Eve", "kitchen", "tomatoes", confidence=1.0)
    assert await recall(system, "garden tomatoes") == ["tomatoes and roses", "tomatoes", "tomatoes and herbs"]
    system.pass_time(days=200)
    await system.is_so("Dan", "garden", "tomatoes and beans", confidence=0.5)
    assert (await recall(system, "garden tomatoes"))[0] == "tomatoes and beans"


async def test_what_has_faded_is_not_found(system: MemorySystem) -> None:
    await system.is_so("Ann", "mood", "cheerful", permanence="ephemeral", confidence=0.9)
    await system.is_so("Ann", "birthday", "3 May", permanence="permanent", confidence=0.9)
    system.pass_time(days=60)
    assert await recall(system, "Ann") == ["3 May"]
    assert sorted(await recall(system, "Ann", min_confidence=0.0)) == ["3 May", "cheerful"]


async def test_words_are_found_in_other_forms(system: MemorySystem) -> None:
    await system.is_so("Ann", "birthday", "3 May")
    await system.is_so("Ann", "hobby", "collecting stamps")
    assert await recall(system, "birthdays") == ["3 May"]
    assert await recall(system, "birth") == ["3 May"]
    assert await recall(system, "Who collects a stamp?") == ["collecting stamps"]
    assert await recall(system, "nonsense") == []


@pytest.mark.parametrize("text", ["the of and", "???", "' | ! & :* <-> ()", "\\"])
async def test_a_question_without_words_finds_nothing_and_breaks_nothing(system: MemorySystem, text: str) -> None:
    question = Question(text=text, kinds={"fact"}, limit=5, offset=0, min_confidence=0)
    assert await system.memory.recall.search(question, now=system.clock.now()) is None


async def test_kinds_are_found_together_or_apart(system: MemorySystem) -> None:
    await system.is_so("Ann", "pet", "a parrot")
    await system.happened("The parrot escaped", importance=0.4)
    async with system.database.transaction() as connection:
        await system.memory.rules.store(
            connection, "Never wake the parrot", origin="tool", now=system.clock.now(), maturity="proven"
        )
    assert await recall(system, "parrot") == ["Never wake the parrot", "a parrot", "The parrot escaped"]
    assert await recall(system, "parrot", "episode") == ["The parrot escaped"]
    assert await recall(system, "parrot", limit=1, offset=1) == ["a parrot"]
    system.pass_time(days=8)
    assert await recall(system, "parrot", "episode") == []


async def test_a_rule_ripens_and_an_anti_pattern_must_earn_its_way_back(system: MemorySystem) -> None:
    rules: Rules = system.memory.rules
    now = system.clock.now()
    async with system.database.transaction() as connection:
        good, maturity = await rules.store(connection, "Answer briefly", origin="tool", now=now)
        bad, spoiled = await rules.store(connection, "Joke", origin="tool", now=now, maturity="anti_pattern")
    assert (maturity, spoiled) == ("candidate", "anti_pattern")
    assert [await rules.used(good, helped=True, now=now) for _ in range(3)][-1] == "established"
    assert [await rules.used(good, helped=False, now=now) for _ in range(4)][-1] == "anti_pattern"
    assert [await rules.used(bad, helped=True, now=now) for _ in range(3)][-1] == "anti_pattern"
    assert await rules.used(bad, helped=True, now=now) == "established"


async def test_a_forgotten_rule_needs_two_corrections_again(system: MemorySystem) -> None:
    for _ in range(2):
        await system.happened("Never call me Johnny")
        await system.consolidate()
        system.pass_time(days=1)
    rule_id = await system.database.fetchval("SELECT id FROM general.memory_rules")
    assert await system.memory.rules.forget(rule_id) == 1
    await system.happened("Never call me Johnny")
    await system.consolidate()
    assert await system.rules() == {}


async def test_a_session_leaves_one_episode(system: MemorySystem) -> None:
    same = NewEpisode(source="route", content="hello", session_id=uuid4())
    assert await system.memory.episodes.store(same, now=system.clock.now()) is not None
    assert await system.memory.episodes.store(same, now=system.clock.now()) is None
    assert (await system.memory.stats())["episodes"]["total"] == 1
