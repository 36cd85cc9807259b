"""The trained numbers and the lexicon, and how a text is scored with them.

    score(class) = bias + sum of the hashed features' weights / sqrt(how many there are)
                        + sum of the lexicon hits' weights / sqrt(the same)
                        + weights of a few sums over the lexicon hits, over the lessons, and of the length

The lexicon holds domain terms in many languages. A term counts where its words stand side by side, the longest term
first; a longer word counts by its stem, because most languages inflect. Terms are kept as 32-bit hashes with a level
from 0 to 3 for each domain. Beside the terms stand lessons: what a larger model of English, asked once while this one
was trained, thought of a word alone. They also cover words that no labelled message has.

The file `routing.bin` is made by `benchmarks/routing_training/train.py`: a line of JSON, then arrays, compressed. The
weights are one byte each with a scale for all, so it is small and the same on every machine.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple
from zlib import crc32

from butlers.switchboard.routing.features import BUCKETS, Token, bucket, token_features

LONGEST = 7  # tokens in a term
TAUGHT_TOKENS = 3  # in a term that has a lesson
STEM = 5  # letters that a stem has at least
CUT = 3  # letters that an ending has at most
Levels = tuple[int, ...]
BEGINNING: Levels = (0, 0, 0, 0, 0)  # of a longer term, and no term itself


class Hit(NamedTuple):
    start: int  # the first token
    size: int  # tokens
    levels: Levels  # per domain, 0 to 3
    stem: bool


class Lesson(NamedTuple):
    start: int
    size: int
    scores: bytes  # per domain; how much all of them come to says how telling the word is


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexicon:
    terms: Mapping[int, Levels]
    stems: Mapping[int, Levels]
    names: frozenset[int]  # first names of people
    taught: Mapping[int, bytes]

    def hits(self, tokens: Sequence[Token]) -> list[Hit]:
        found: list[Hit] = []
        covered = 0  # the first token behind the longest term so far
        for start in range(len(tokens)):
            hit = self._hit_at(tokens, start)
            if hit is not None and start + hit.size > covered:
                found.append(hit)
                covered = start + hit.size
        return found

    def lessons(self, tokens: Sequence[Token]) -> list[Lesson]:
        """Side by side, the longest term first."""
        found: list[Lesson] = []
        start = 0
        while start < len(tokens):
            for size in range(min(TAUGHT_TOKENS, len(tokens) - start), 0, -1):
                term = " ".join(token.text for token in tokens[start : start + size])
                if (scores := self.taught.get(crc32(term.encode()))) is not None:
                    found.append(Lesson(start, size, scores))
                    start += size
                    break
            else:
                start += 1
        return found

    def _hit_at(self, tokens: Sequence[Token], start: int) -> Hit | None:
        """The longest term that begins here; else the longest stem of the word."""
        best: Hit | None = None
        so_far = 0
        for index in range(start, min(start + LONGEST, len(tokens))):
            so_far = crc32((tokens[index].text if index == start else f" {tokens[index].text}").encode(), so_far)
            levels = self.terms.get(so_far)
            if levels is None:
                break
            if any(levels):
                best = Hit(start, index - start + 1, levels, False)
        word = tokens[start].text
        if best is None and tokens[start].kind == "word":
            for cut in range(min(CUT, len(word) - STEM) + 1):
                levels = self.stems.get(crc32(word[: len(word) - cut].encode()))
                if levels is not None:
                    return Hit(start, 1, levels, True)
        return best


def term_hash(term: str) -> int:
    return crc32(term.encode())


def stem_of_term(word: str) -> str:
    """Under which stem a term is kept."""
    return word[: max(STEM, len(word) - 2)]


CLASSES = ("finance", "health", "travel", "relationship", "general")
WIDTH = len(CLASSES)
LEXICON_SCALE = 3.0
TAUGHT_SCALE = 2.0
_STRENGTH = (0.0, 0.25, 0.6, 1.0)  # of a term's level
WORDS = frozenset({"word", "far"})
Scores = tuple[float, ...]


def hit_feature(hit: Hit, tokens: Sequence[Token]) -> str:
    """What a lexicon hit is called: its level per domain, whether several words agree, whether only the stem does."""
    levels = "".join(f"{name[0]}{level}" for name, level in zip(CLASSES, hit.levels, strict=True) if level)
    script = "f" if tokens[hit.start].kind == "far" else ""
    return f"L {'s' if hit.stem else 'x'}{script}{levels}{'m' if hit.size > 1 else ''}"


def dense_features(hits: Sequence[Hit], length: int) -> list[float]:
    """Sums over the lexicon hits: how much, how strong, whose share, by how much one leads; and the length."""
    total, strongest = [0.0] * WIDTH, [0.0] * WIDTH
    for hit in hits:
        shared = math.sqrt(sum(1 for level in hit.levels if level))
        factor = (1.3 if hit.size > 1 else 1.0) * (0.6 if hit.stem else 1.0) / shared
        for index, level in enumerate(hit.levels):
            value = _STRENGTH[level] * factor
            total[index] += value
            strongest[index] = max(strongest[index], value)
    root, everything = math.sqrt(max(length, 1)), sum(total)
    first, second = sorted(total, reverse=True)[:2]
    return [
        *(value / root for value in total),
        *(min(value, 1.3) for value in strongest),
        *(value / (everything + 0.5) for value in total),
        first - second,
        float(everything == 0),
        min(length, 40) / 40,
    ]


def taught_features(lessons: Sequence[Lesson], tokens: Sequence[Token]) -> list[float]:
    """Sums over the lessons, as far as most words have one: in another language a few do by accident."""
    known = sum(lesson.size for lesson in lessons) / max(sum(token.kind in WORDS for token in tokens), 1)
    trust = TAUGHT_SCALE * min(max((known - 0.5) * 2.5, 0.0), 1.0)
    if not trust:
        return [0.0] * (3 * WIDTH + 1)
    columns = [[value / 255 for value in column] for column in zip(*(lesson.scores for lesson in lessons), strict=True)]
    total = [sum(column) for column in columns]
    weight = sum(total)
    return [
        *(trust * value / math.sqrt(weight + 0.1) for value in total),
        *(trust * max(column) for column in columns),
        *(trust * value / (weight + 0.3) for value in total),
        trust,
    ]


@dataclass(frozen=True, kw_only=True)
class Model:
    header: Mapping[str, Any]
    weights: array[int]  # BUCKETS rows of WIDTH, one byte each
    lexicon: Lexicon

    @cached_property
    def version(self) -> str:
        return str(self.header["version"])

    @cached_property
    def dense_columns(self) -> list[tuple[float, ...]]:
        return list(zip(*self.header["dense"], strict=True))

    @cached_property
    def _word(self) -> Any:
        """What a word adds by itself, remembered: most words come again."""
        return lru_cache(maxsize=50_000)(self._sum)

    def row(self, index: int) -> Scores:
        at, scale = index * WIDTH, self.header["scale"]
        return tuple(weight * scale for weight in self.weights[at : at + WIDTH])

    def read(self, tokens: Sequence[Token]) -> Reading:
        rows = []
        for own, together in token_features(tokens, self.lexicon.names):
            first, second = self._word(own), self._sum(together)
            rows.append(tuple(map(operator.add, first, second)))
        hits = self.lexicon.hits(tokens)
        found = [self._word((bucket(hit_feature(hit, tokens)),)) for hit in hits]
        lessons = self.lexicon.lessons(tokens)
        return Reading(model=self, tokens=tokens, rows=rows, hits=hits, found=found, lessons=lessons)

    def _sum(self, features: Sequence[int]) -> Scores:
        """The features' weights, and as the last number how many they are."""
        weights, total = self.weights, [0] * WIDTH
        for index in features:
            at = index * WIDTH
            total = list(map(operator.add, total, weights[at : at + WIDTH]))
        return (*(value * self.header["scale"] for value in total), float(len(features)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A text, read once; any range of its tokens can be scored."""

    model: Model
    tokens: Sequence[Token]
    rows: Sequence[Scores]  # per token
    hits: Sequence[Hit]
    found: Sequence[Scores]  # per hit
    lessons: Sequence[Lesson]

    def score(self, start: int, end: int) -> Scores:
        """A number per class, the greater the likelier."""
        header = self.model.header
        within = [index for index, hit in enumerate(self.hits) if start <= hit.start and hit.start + hit.size <= end]
        total = [sum(column) for column in zip(*self.rows[start:end], strict=True)] or [0.0] * (WIDTH + 1)
        count = math.sqrt(total[-1] or 1.0)
        extra = [sum(column) for column in zip(*(self.found[index] for index in within), strict=True)] or [0.0] * WIDTH
        lessons = [lesson for lesson in self.lessons if start <= lesson.start and lesson.start + lesson.size <= end]
        dense = dense_features([self.hits[index] for index in within], end - start)
        dense += taught_features(lessons, self.tokens[start:end])
        return tuple(
            header["bias"][k]
            + (total[k] + LEXICON_SCALE * extra[k]) / count
            + sum(map(operator.mul, dense, self.model.dense_columns[k]))
            for k in range(WIDTH)
        )

    def telling(self, start: int, end: int, index: int, most: int = 3) -> list[str]:
        """The words that speak most for a class, the strongest first."""
        worth: dict[str, float] = {}
        for hit, row in zip(self.hits, self.found, strict=True):
            if hit.levels[index] and start <= hit.start and hit.start + hit.size <= end:
                term = " ".join(token.text for token in self.tokens[hit.start : hit.start + hit.size])
                lead = row[index] - sum(row[:WIDTH]) / WIDTH
                worth[term] = hit.levels[index] * math.sqrt(hit.size) + max(lead, 0.0)
        for token, row in zip(self.tokens[start:end], self.rows[start:end], strict=True):
            if not worth.get(token.text) and len(token.text) > 2:
                worth[token.text] = (row[index] - sum(row[:WIDTH]) / WIDTH) / math.sqrt(row[-1])
        ranked = sorted((-value, word) for word, value in worth.items() if value > 0)
        return [word.lower() for _, word in ranked[:most]]


def dump(header: Mapping[str, Any], weights: array[int], lexicon: Lexicon) -> bytes:
    """The model as bytes, the same for the same input."""
    blocks = [
        weights.tobytes(),
        *_packed(lexicon.terms),
        *_packed(lexicon.stems),
        _little(array("I", sorted(lexicon.names))),
        _little(array("I", sorted(lexicon.taught))),
        b"".join(lexicon.taught[key] for key in sorted(lexicon.taught)),
    ]
    line = json.dumps({**header, "blocks": [len(block) for block in blocks]}, sort_keys=True)
    return zlib.compress(b"\n".join([line.encode(), b"".join(blocks)]), 9)


def load(data: bytes) -> Model:
    line, _, rest = zlib.decompress(data).partition(b"\n")
    header = json.loads(line)
    blocks, at = [], 0
    for size in header["blocks"]:
        blocks.append(rest[at : at + size])
        at += size
    weights = array("b", blocks[0])
    if len(weights) != BUCKETS * WIDTH:
        raise ValueError("the model is of another version of this program")
    lexicon = Lexicon(
        terms=_unpacked(blocks[1], blocks[2]),
        stems=_unpacked(blocks[3], blocks[4]),
        names=frozenset(_numbers("I", blocks[5])),
        taught={key: blocks[7][at * WIDTH : (at + 1) * WIDTH] for at, key in enumerate(_numbers("I", blocks[6]))},
    )
    return Model(header=header, weights=weights, lexicon=lexicon)


@functools.cache
def shipped() -> Model:
    """The one that comes with the program; no code changes it."""
    return load((files("butlers.switchboard.routing") / "routing.bin").read_bytes())


def _packed(terms: Mapping[int, Levels]) -> tuple[bytes, bytes]:
    keys = sorted(terms)
    levels = array("H", (sum(level << (2 * index) for index, level in enumerate(terms[key])) for key in keys))
    return _little(array("I", keys)), _little(levels)


def _unpacked(keys: bytes, levels: bytes) -> dict[int, Levels]:
    known = {code: tuple((code >> (2 * index)) & 3 for index in range(WIDTH)) for code in set(_numbers("H", levels))}
    return dict(zip(_numbers("I", keys), (known[code] for code in _numbers("H", levels)), strict=True))


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(kind: str, data: bytes) -> array[int]:
    numbers = array(kind, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
