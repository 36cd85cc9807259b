"""The local classifier: which butlers a text is for, and which of its clauses belong to whom.

    fold > clauses > leave out orders to the router > a probability per clause and butler
         > the best assignment of neighbouring clauses, where a change of butler must be worth its price
         > one segment, unless a clause clearly speaks for another specialist

`general` is what is left over: it takes a message that no specialist speaks for, and never stands beside one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from butlers.switchboard.registry import FALLBACK, RegisteredButler
from butlers.switchboard.routing.clauses import BUTLER_NAMES, FAINT, HARD, SOFT, clauses, ordered
from butlers.switchboard.routing.decision import Decision, Segment
from butlers.switchboard.routing.features import fold, holds_phrase, side_by_side, tokens, words
from butlers.switchboard.routing.model import CLASSES, Model, shipped

# The subject of a message is clear by then. Classifying runs on the event loop: these bound what one message can take.
READ_AT_MOST = 4_096  # characters
MOST_TOKENS = 1_000
TRIGGERED = (0.0, 0.75, 0.9)  # how sure one trigger word of a butler's makes it, and several
# Messages that the model had not seen were right less often than its probabilities say; with this they agree.
TEMPERATURE = 1.25
# What a change of butler between two clauses must be worth, and how sure each part must be.
CHANGE = {HARD: 0.9, SOFT: 1.4, FAINT: 1.9}
TIE = 1.0  # more between finance and travel: one story often has both
LEAST_PART = 0.35  # the least probability of a part
LONE = 0.9  # a part this sure speaks for a message whose rest is no butler's
Odds = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Part:
    start: int  # in the folded text
    end: int
    first: int  # token
    last: int  # the one after it
    cut: int
    odds: Odds

    @property
    def speaks(self) -> bool:
        return self.last > self.first


class LocalClassifier:
    def __init__(self, model: Model | None = None) -> None:
        self.model = model or shipped()

    def classify(self, text: str, butlers: Sequence[RegisteredButler]) -> Decision:
        """Spans of the text for some of these butlers; without segments: it has no idea."""
        why, segments = Inquiry(self.model, text, butlers).answer()
        return Decision(router="local", segments=segments, why=why, model_version=self.model.version)


class Inquiry:
    """One text, and everything that is asked about it."""

    def __init__(self, model: Model, text: str, butlers: Sequence[RegisteredButler]) -> None:
        folded = fold(text[:READ_AT_MOST])
        every = tokens(folded.text[:READ_AT_MOST], MOST_TOKENS)
        plain = folded.text[: READ_AT_MOST if len(every) < MOST_TOKENS else every[-1].end]
        self._model, self._text, self._folded = model, text, folded
        self._known: dict[tuple[int, int], Odds] = {}
        self._eligible = {butler.name for butler in butlers}
        trained: Mapping[str, Sequence[str]] = model.header["triggers"]
        self._triggers = {
            butler.name: own
            for butler in butlers
            if butler.name != FALLBACK and (own := set(butler.triggers).difference(trained.get(butler.name, ())))
        }
        pieces = clauses(plain)
        orders = ordered(plain, pieces)
        self._ordered = bool(orders.spans)
        self._named: set[str] = set()
        relevant = every
        if orders.spans:
            # Whom an order names gets nothing by a guess: the order's other words may speak for it, too.
            self._named = {token.text for token in every if orders.hold(token.start)} & BUTLER_NAMES
            relevant = [token for token in every if token.text not in BUTLER_NAMES and not orders.hold(token.start)]
        self._reading = model.read(relevant)
        self._parts: list[_Part] = []
        at = 0  # the first token of the next clause
        for clause in pieces:
            first = at
            while at < len(relevant) and relevant[at].start < clause.end:
                at += 1
            self._parts.append(_Part(clause.start, clause.end, first, at, clause.cut, self._odds(first, at)))

    def candidate(self) -> list[tuple[str, _Part]]:
        """How the text would be taken apart; at most one part when there is nothing to take apart."""
        # Beside orders to the router nothing is taken apart: it would be one part's word against another's.
        return [] if self._ordered or len(self._parts) == 1 else self._merged(self._assigned(self._parts))

    def answer(self) -> tuple[str, tuple[Segment, ...]]:
        """Why, and for whom; nobody: it has no idea."""
        if all(token.kind == "mark" for token in self._reading.tokens):
            return "it only gives the router orders" if self._ordered else "it holds no words", ()
        chosen = self.candidate()
        if len({name for name, _ in chosen}) <= 1 or not self._worth_it(chosen):
            chosen = [self._single()]
        if chosen[0][0] in self._named - {FALLBACK}:
            return "it gives the router orders about the same butler", ()
        if chosen[0][0] == FALLBACK and not self._reading.hits and not self._reading.lessons:
            return "no word of it is known", ()
        return self._answer(chosen)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _odds(self, first: int, last: int) -> Odds:
        """A probability per butler, by the model; trigger words that it was not trained with count beside it. It is
        remembered: the same range of tokens is asked about more than once.
        """
        if first == last:
            return {FALLBACK: 1.0}
        if (known := self._known.get((first, last))) is not None:
            return known
        scores = self._reading.score(first, last)
        top = max(scores)
        grown = [math.exp(score - top) for score in scores]
        total = sum(grown)
        odds = {name: value / total for name, value in zip(CLASSES, grown, strict=True)}
        spoken = side_by_side(token.text for token in self._reading.tokens[first:last]) if self._triggers else ""
        for name, triggers in self._triggers.items():
            hits = sum(len(words(trigger)) for trigger in triggers if holds_phrase(spoken, trigger))
            if hits:
                sure = TRIGGERED[min(hits, len(TRIGGERED) - 1)]
                odds = {each: value * (1 - sure) for each, value in odds.items()}
                odds[name] = odds.get(name, 0.0) + sure
        self._known[first, last] = odds
        return odds

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
                came[name] = max(names, key=lambda other: best[other] - self._price(part, other, name))
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
        tie = TIE if {before, now} == {"finance", "travel"} else 0.0
        return CHANGE[part.cut] + tie

    def _merged(self, path: Sequence[str]) -> list[tuple[str, _Part]]:
        runs = self._joined(list(zip(path, self._parts, strict=True)))
        while len(runs) > 1:
            weakest = min(range(len(runs)), key=lambda index: _sure(runs[index]))
            if _sure(runs[weakest]) >= LEAST_PART:
                break
            # A part that is not sure of itself goes with the neighbour before it, or else with the one after it.
            into = weakest - 1 if weakest else 1
            runs[weakest] = (runs[into][0], runs[weakest][1])
            runs = self._joined(runs)
        return runs

    def _worth_it(self, runs: Sequence[tuple[str, _Part]]) -> bool:
        gate: Sequence[float] = self._model.header.get("gate", ())
        return not gate or sum(map(operator.mul, gate, self.split_features(runs))) > 0

    def split_features(self, runs: Sequence[tuple[str, _Part]]) -> list[float]:
        """What speaks for and against taking the text apart like this."""
        whole = self._odds(runs[0][1].first, runs[-1][1].last)
        owners = {name for name, _ in runs}
        ranked = sorted((whole.get(name, 0.0) for name in owners), reverse=True)
        sure = sorted(_sure(run) for run in runs)
        contrast = min(_contrast(run, owners) for run in runs)
        hits = [
            sum(part.first <= hit.start < part.last for hit in self._reading.hits if max(hit.levels[:4]) > 1)
            for _, part in runs
        ]
        sizes = [part.last - part.first for _, part in runs]
        cuts = [part.cut for _, part in runs[1:]]
        return [
            1.0,
            sure[0],
            sure[1],
            contrast,
            ranked[0],
            ranked[1],
            whole.get(FALLBACK, 0.0),
            float(max(cuts) == HARD),
            float(max(cuts) == FAINT),
            float(owners == {"finance", "travel"}),
            min(*sizes, 8) / 8,
            min(sum(sizes), 60) / 60,
            float(min(hits) == 0),
            min(*hits, 3) / 3,
            float(len(runs) > 2),
            float(len(runs) > len(owners)),
        ]

    def _joined(self, runs: Sequence[tuple[str, _Part]]) -> list[tuple[str, _Part]]:
        """Neighbours of one butler become one part."""
        joined: list[tuple[str, _Part]] = []
        for name, each in groupby(runs, key=operator.itemgetter(0)):
            parts = [part for _, part in each]
            joined.append((name, parts[0] if len(parts) == 1 else self._together(parts[0], parts[-1])))
        return joined

    def _together(self, one: _Part, other: _Part) -> _Part:
        return _Part(one.start, other.end, one.first, other.last, one.cut, self._odds(one.first, other.last))

    def _single(self) -> tuple[str, _Part]:
        parts = self._parts
        whole = self._together(parts[0], parts[-1]) if len(parts) > 1 else parts[0]
        name = max(sorted(whole.odds), key=lambda each: whole.odds[each])
        if name == FALLBACK and len(parts) > 1:
            spoken = ((odd, each) for part in parts for each, odd in part.odds.items() if each != FALLBACK)
            sure, lone = max(spoken, default=(0.0, FALLBACK))
            if sure >= LONE:
                return lone, replace(whole, odds={lone: sure, FALLBACK: 1 - sure})
        return name, whole

    # --- answering ---------------------------------------------------------------------------------------------------

    def _answer(self, chosen: Sequence[tuple[str, _Part]]) -> tuple[str, tuple[Segment, ...]]:
        starts = [0, *(self._folded.origin[part.start] for _, part in chosen[1:]), len(self._text)]
        segments = []
        for index, (name, part) in enumerate(chosen):
            why, to = f"trigger words of {name}", name
            if name in CLASSES:
                telling = self._reading.telling(part.first, part.last, CLASSES.index(name))
                why = f"{name}: {', '.join(map(repr, telling)) or 'no word decides it alone'}"
            if name not in self._eligible:
                to, why = FALLBACK, f"{name} takes no requests now; {why}"
            if to not in self._eligible:
                return why, ()
            grown = {each: math.pow(value, 1 / TEMPERATURE) for each, value in part.odds.items()}
            segments.append(
                Segment(
                    segment_id=f"s{index + 1}",
                    butler=to,
                    start=starts[index],
                    end=starts[index + 1],
                    confidence=round(grown.get(name, 0.0) / (sum(grown.values()) or 1.0), 3),
                    rationale=why,
                )
            )
        return "; ".join(dict.fromkeys(segment.rationale for segment in segments)), tuple(segments)


def _contrast(run: tuple[str, _Part], owners: set[str]) -> float:
    """How much more a part speaks for its own butler than for the other ones', in logarithms, at most 4."""
    others = max(run[1].odds.get(name, 0.0) for name in owners if name != run[0])
    return min(math.log((_sure(run) + 0.01) / (others + 0.01)), 4.0)


def _sure(run: tuple[str, _Part]) -> float:
    return run[1].odds.get(run[0], 0.0)


def _worth(part: _Part, name: str) -> float:
    # What is no butler's speaks neither for nor against a change.
    return math.log(part.odds.get(name, 0.0) + 0.35 * part.odds.get(FALLBACK, 0.0) + 0.02)
