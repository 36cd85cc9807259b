"""Routing without a model: the words that butlers say they answer to.

A butler's triggers come from the registry at decision time. A trigger of several words counts as often as it has
words, because "credit card" says more than "card".
"""

from __future__ import annotations

from collections.abc import Sequence

from butlers.switchboard.registry import FALLBACK, RegisteredButler
from butlers.switchboard.routing.cascade import LocalAnswer
from butlers.switchboard.routing.decision import whole
from butlers.switchboard.routing.words import holds_phrase, words


class TriggerRouter:
    """Chooses one butler for the whole text."""

    version = "triggers-1"

    def classify(self, text: str, butlers: Sequence[RegisteredButler]) -> LocalAnswer:
        said = words(text)
        scores = {butler.name: _score(said, butler.triggers) for butler in butlers if butler.name != FALLBACK}
        ranked = sorted(
            ((score, name) for name, score in scores.items() if score), key=lambda pair: (-pair[0], pair[1])
        )
        if not ranked:
            return LocalAnswer(segments=(), confidence=0.0, why="no butler's trigger words are in it")
        if len(ranked) > 1 and ranked[0][0] == ranked[1][0]:
            return LocalAnswer(segments=(), confidence=0.0, why="two butlers answer to it equally")
        score, name = ranked[0]
        confidence, why = score / sum(score for score, _ in ranked), f"{score} trigger words of {name}"
        segments = whole(text, name, router="local", confidence=confidence, why=why).segments
        return LocalAnswer(segments=segments, confidence=confidence, why=why)


def _score(said: Sequence[str], triggers: Sequence[str]) -> int:
    return sum(len(words(trigger)) for trigger in triggers if holds_phrase(said, trigger))
