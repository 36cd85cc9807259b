"""The local classifier: which butlers a text is for, and which of its clauses belong to whom.

    fold > clauses > leave out orders to the router > a probability per clause and butler
         > the best assignment of neighbouring clauses, where a change of butler must be worth its price
         > one segment, unless a clause clearly speaks for another specialist

`general` is what is left over: it takes a message that no specialist speaks for, and never stands beside one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from butlers.switchboard.registry import FALLBACK, RegisteredButler
from butlers.switchboard.routing.cascade import LocalAnswer
from butlers.switchboard.routing.clauses import FAINT, HARD, SOFT, Clause, clauses
from butlers.switchboard.routing.decision import Segment
from butlers.switchboard.routing.features import Token, tokens
from butlers.switchboard.routing.folding import Folded, fold
from butlers.switchboard.routing.model import CLASSES, Model, shipped, softmax
from butlers.switchboard.routing.orders import BUTLER_NAMES, ordering
from butlers.switchboard.routing.words import holds_phrase, words

READ_AT_MOST = 6_000  # characters; the subject of a message is clear by then
TRIGGERED = (0.0, 0.75, 0.9)  # how sure one trigger word of a butler's makes it, and several
Odds = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a change of butler between two clauses must be worth, and how sure each part must be."""

    change: Mapping[int, float] = field(default_factory=lambda: {HARD: 1.5, SOFT: 2.0, FAINT: 2.4})
    tie: float = 1.5  # more between finance and travel: one story often has both
    part: float = 0.45  # the least probability of a part
    lone: float = 0.9  # a part this sure speaks for a message whose rest is nobody's


@dataclass(frozen=True, slots=True)
class _Part:
    start: int  # in the folded text
    end: int
    said: list[Token]
    cut: int
    odds: Odds


class LocalClassifier:
    def __init__(self, model: Model | None = None, prices: Prices | None = None) -> None:
        self._model = model or shipped()
        self._prices = prices or Prices()

    @property
    def version(self) -> str:
        return self._model.version

    def classify(self, text: str, butlers: Sequence[RegisteredButler]) -> LocalAnswer:
        folded = fold(text[:READ_AT_MOST])
        parts = self._parts(folded, butlers)
        if not any(part.said for part in parts):
            return LocalAnswer(segments=(), confidence=0.0, why="it says nothing that a butler could be chosen by")
        chosen = self._merged(parts, self._assigned(parts), butlers)
        if len({name for name, _ in chosen}) == 1 or not all(part.said for part in parts):
            # Beside orders to the router nothing is taken apart: they would be one part's word against another's.
            chosen = [self._single(parts, butlers)]
        return self._answer(text, folded, chosen, {butler.name for butler in butlers})

    # --- reading -----------------------------------------------------------------------------------------------------

    def _parts(self, folded: Folded, butlers: Sequence[RegisteredButler]) -> list[_Part]:
        pieces = clauses(folded.text)
        said = tokens(folded.text)
        orders = ordering(folded.text, pieces)
        suspect = any(orders)
        parts, at = [], 0
        for clause, is_order in zip(pieces, orders, strict=True):
            begin = at
            while at < len(said) and said[at].start < clause.end:
                at += 1
            own = [] if is_order else [token for token in said[begin:at] if not (suspect and token.text in BUTLER_NAMES)]
            parts.append(_Part(clause.start, clause.end, own, clause.cut, self._odds(own, butlers)))
        return parts

    def _odds(self, said: list[Token], butlers: Sequence[RegisteredButler]) -> Odds:
        """A probability per butler; trigger words that the model was not trained with count beside it."""
        if not said:
            return {FALLBACK: 1.0}
        odds = dict(zip(CLASSES, softmax(self._model.score(said)), strict=True))
        for butler in butlers:
            if hits := self._triggers(butler, said):
                sure = TRIGGERED[min(hits, len(TRIGGERED) - 1)]
                odds = {name: value * (1 - sure) for name, value in odds.items()}
                odds[butler.name] = odds.get(butler.name, 0.0) + sure
        return odds

    def _triggers(self, butler: RegisteredButler, said: Sequence[Token]) -> int:
        trained: Sequence[str] = self._model.header["triggers"].get(butler.name, ())
        if butler.name == FALLBACK or not (own := set(butler.triggers).difference(trained)):
            return 0
        spoken = [token.text for token in said]
        return sum(len(words(trigger)) for trigger in own if holds_phrase(spoken, trigger))

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _assigned(self, parts: Sequence[_Part]) -> list[str]:
        """The best specialist per clause (Viterbi): neighbours stay together unless a change is worth its price."""
        names = sorted({name for part in parts for name in part.odds} - {FALLBACK})
        if not names:
            return [FALLBACK] * len(parts)
        best = {name: _worth(parts[0], name) for name in names}
        back: list[dict[str, str]] = []
        for part in parts[1:]:
            came, then = {}, {}
            for name in names:
                came[name] = max(names, key=lambda other: best[other] - self._price(part, other, name))  # noqa: B023
                then[name] = best[came[name]] - self._price(part, came[name], name) + _worth(part, name)
            back.append(came)
            best = then
        path = [max(names, key=lambda name: best[name])]
        for came in reversed(back):
            path.append(came[path[-1]])
        return path[::-1]

    def _price(self, part: _Part, before: str, now: str) -> float:
        if before == now:
            return 0.0
        tie = self._prices.tie if {before, now} == {"finance", "travel"} else 0.0
        return self._prices.change[part.cut] + tie

    def _merged(
        self, parts: Sequence[_Part], path: Sequence[str], butlers: Sequence[RegisteredButler]
    ) -> list[tuple[str, _Part]]:
        runs: list[tuple[str, _Part]] = []
        for name, part in zip(path, parts, strict=True):
            if runs and runs[-1][0] == name:
                runs[-1] = (name, _joined(runs[-1][1], part))
            else:
                runs.append((name, part))
        runs = [(name, _Part(p.start, p.end, p.said, p.cut, self._odds(p.said, butlers))) for name, p in runs]
        while len(runs) > 1:
            weakest = min(range(len(runs)), key=lambda index: runs[index][1].odds.get(runs[index][0], 0.0))
            if runs[weakest][1].odds.get(runs[weakest][0], 0.0) >= self._prices.part:
                break
            runs = self._absorbed(runs, weakest, butlers)
        return runs

    def _absorbed(
        self, runs: list[tuple[str, _Part]], weak: int, butlers: Sequence[RegisteredButler]
    ) -> list[tuple[str, _Part]]:
        """A part that is not sure of itself goes with the neighbour before it, or else with the one after it."""
        into = weak - 1 if weak else 1
        low, high = sorted((weak, into))
        joined = _joined(runs[low][1], runs[high][1])
        name = runs[into][0]
        rest = [*runs[:low], (name, joined), *runs[high + 1 :]]
        both: list[tuple[str, _Part]] = []
        for owner, part in rest:
            if both and both[-1][0] == owner:
                both[-1] = (owner, _joined(both[-1][1], part))
            else:
                both.append((owner, part))
        return [(owner, _Part(p.start, p.end, p.said, p.cut, self._odds(p.said, butlers))) for owner, p in both]

    def _single(self, parts: Sequence[_Part], butlers: Sequence[RegisteredButler]) -> tuple[str, _Part]:
        everything = parts[0]
        for part in parts[1:]:
            everything = _joined(everything, part)
        odds = self._odds(everything.said, butlers)
        name = max(sorted(odds), key=lambda each: odds[each])
        if name == FALLBACK and len(parts) > 1:
            lone = max(
                ((odd, each) for part in parts for each, odd in part.odds.items() if each != FALLBACK and part.said),
                default=(0.0, FALLBACK),
            )
            if lone[0] >= self._prices.lone:
                name, odds = lone[1], {lone[1]: lone[0]}
        return name, _Part(everything.start, everything.end, everything.said, everything.cut, odds)

    # --- answering ---------------------------------------------------------------------------------------------------

    def _answer(
        self, text: str, folded: Folded, chosen: Sequence[tuple[str, _Part]], eligible: set[str]
    ) -> LocalAnswer:
        spans: list[Segment] = []
        for index, (name, part) in enumerate(chosen):
            why = self._why(name, part)
            if name not in eligible:
                name, why = FALLBACK, f"{name} takes no requests now; {why}"
            if name not in eligible:
                return LocalAnswer(segments=(), confidence=0.0, why=why)
            start = 0 if index == 0 else folded.original_span(part.start, part.end)[0]
            sure = round(max(part.odds.get(chosen[index][0], 0.0), 0.0), 3)
            spans.append(
                Segment(segment_id=f"s{index + 1}", butler=name, start=start, end=len(text), confidence=sure, rationale=why)
            )
        ended = [
            _until(span, spans[index + 1].start if index + 1 < len(spans) else len(text))
            for index, span in enumerate(spans)
        ]
        return LocalAnswer(
            segments=tuple(ended),
            confidence=min(span.confidence for span in ended),
            why="; ".join(dict.fromkeys(span.rationale for span in ended)),
        )

    def _why(self, name: str, part: _Part) -> str:
        if not part.said:
            return "it only gives the router orders, which nobody follows"
        if name not in CLASSES:
            return f"trigger words of {name}"
        telling = self._model.telling(part.said, CLASSES.index(name))
        return f"{name}: " + (", ".join(repr(word) for word in telling) if telling else "no word decides it alone")


def _worth(part: _Part, name: str) -> float:
    # What is nobody's speaks neither for nor against a change.
    return math.log(part.odds.get(name, 0.0) + 0.35 * part.odds.get(FALLBACK, 0.0) + 0.02)


def _joined(first: _Part, second: _Part) -> _Part:
    return _Part(first.start, second.end, first.said + second.said, first.cut, {})


def _until(segment: Segment, end: int) -> Segment:
    return replace(segment, end=end)
