"""Routing without a model: the words that butlers say they answer to.

    pinned target   >   clear majority of trigger words   >   general

A butler's triggers come from the registry at decision time. A trigger of several words counts as often as it has
words, because "credit card" says more than "card".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from butlers.errors import RoutingError
from butlers.switchboard.registry import FALLBACK, NOT_ROUTABLE, RegisteredButler
from butlers.switchboard.routing.decision import Decision, Router, Segment

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def decide(text: str, *, pinned_target: str | None, butlers: Sequence[RegisteredButler]) -> Decision:
    """Choose one butler for the whole text."""
    eligible = {butler.name: butler for butler in butlers if butler.takes_routes}
    if pinned_target is not None:
        if pinned_target not in eligible:
            raise _no_such_target(pinned_target, butlers)
        return _whole(text, pinned_target, router="policy", confidence=1.0, why="the source pinned the target")
    scores = {name: _score(text, butler.triggers) for name, butler in eligible.items() if name != FALLBACK}
    ranked = sorted(((score, name) for name, score in scores.items() if score), key=lambda pair: (-pair[0], pair[1]))
    if ranked and (len(ranked) == 1 or ranked[0][0] > ranked[1][0]):
        score, name = ranked[0]
        confidence = score / sum(score for score, _ in ranked)
        return _whole(text, name, router="local", confidence=confidence, why=f"{score} trigger words of {name}")
    if FALLBACK not in eligible:
        raise RoutingError("no butler takes routes now", retryable=True)
    why = "two butlers answer to it equally" if ranked else "no butler's trigger words are in it"
    return _whole(text, FALLBACK, router="fallback", confidence=0.0, why=why)


def _no_such_target(name: str, butlers: Sequence[RegisteredButler]) -> RoutingError:
    if all(butler.name != name for butler in butlers):
        return RoutingError(f"no butler is called {name!r}")
    return RoutingError(f"the pinned target {name!r} takes no requests" + (" now" if name not in NOT_ROUTABLE else ""))


def _whole(text: str, butler: str, *, router: Router, confidence: float, why: str) -> Decision:
    segment = Segment(
        segment_id="s1", butler=butler, start=0, end=len(text), confidence=round(confidence, 3), rationale=why
    )
    return Decision(router=router, segments=(segment,), why=why)


def _score(text: str, triggers: Sequence[str]) -> int:
    words = _words(text)
    joined = f" {' '.join(words)} "
    return sum(len(phrase) for trigger in triggers if (phrase := _words(trigger)) and f" {' '.join(phrase)} " in joined)


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
