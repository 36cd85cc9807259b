"""A model's answer is taken as a whole or not at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from butlers.butler.memory.consolidation import SUREST, as_data, batch_size, understood
from butlers.butler.memory.episodes import Episode
from butlers.butler.memory.extraction import MAX_NAME
from butlers.errors import ClassificationError

AT = datetime(2026, 6, 1, tzinfo=UTC)
EPISODES = {
    number: Episode(
        id=UUID(int=number), speaker="ann", content=f"said {number}", answer=None, created_at=AT, attempts=1
    )
    for number in (1, 2)
}
FACT = {
    "episode": 2,
    "subject": " ann ",
    "predicate": "lives in",
    "content": "Graz",
    "permanence": "stable",
    "confidence": 1.0,
}


def answer(**changes: Any) -> str:
    return json.dumps({"facts": [FACT | changes], "corrections": [{"episode": 1, "content": "Answer in German"}]})


def test_a_good_answer_becomes_facts_of_their_episodes() -> None:
    reading = understood(answer(), EPISODES)
    [fact] = reading.facts
    assert (fact.subject, fact.predicate, fact.content, fact.permanence) == ("ann", "lives in", "Graz", "stable")
    assert (fact.source_episode_id, fact.observed_at, fact.origin) == (UUID(int=2), AT, "model")
    assert fact.confidence == SUREST  # however sure the model says it is
    assert [(wish.content, wish.episode_id) for wish in reading.corrections] == [("Answer in German", UUID(int=1))]


def test_a_fenced_answer_is_the_same_answer() -> None:
    assert understood(f"```json\n{answer()}\n```\n", EPISODES) == understood(answer(), EPISODES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I could not find anything.",
        "[]",
        '{"facts": []}',
        '{"facts": [], "corrections": [], "tool": "notify"}',
        '{"facts": [], "corrections": []} and more',
        answer(episode=3),
        answer(episode=0),
        answer(episode="2"),
        answer(permanence="eternal"),
        answer(confidence=1.5),
        answer(confidence="high"),
        answer(subject="  "),
        answer(subject="x" * (MAX_NAME + 1)),
        answer(content=""),
        answer(extra=1),
        answer(content="a\x00b"),
        answer(content="\ud800"),
    ],
)
def test_anything_else_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(ClassificationError) as caught:
        understood(text, EPISODES)
    assert caught.value.retryable is False


def test_episodes_travel_as_data() -> None:
    first = json.loads(as_data(EPISODES))[0]
    assert first == {"episode": 1, "speaker": "ann", "said": "said 1", "answered": None}


@pytest.mark.parametrize(("first", "sizes"), [(100, [100, 25, 6, 1, 1]), (20, [20, 5, 1, 1, 1])])
def test_what_failed_is_tried_in_smaller_batches_and_alone_at_last(first: int, sizes: list[int]) -> None:
    assert [batch_size(first, attempts) for attempts in range(5)] == sizes
