"""The trained numbers and how a text is scored with them.

    score(class) = bias + sum of the hashed features' weights / sqrt(how many there are)
                        + sum of the lexicon hits' weights / sqrt(the same)
                        + weights of a few sums over the lexicon hits, and of the length

The file `routing.bin` is made by `benchmarks/routing/train.py`: a line of JSON, then arrays, compressed. The weights are
one byte each with a scale for all, so it is small and the same on every machine.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from butlers.switchboard.routing.features import BUCKETS, Token, bucket, token_features
from butlers.switchboard.routing.lexicon import Hit, Levels, Lexicon

CLASSES = ("finance", "health", "travel", "relationship", "general")
WIDTH = len(CLASSES)
LEXICON_SCALE = 3.0
_STRENGTH = (0.0, 0.25, 0.6, 1.0)  # of a term's level
Scores = tuple[float, ...]


def hit_feature(hit: Hit, said: Sequence[Token]) -> str:
    """What a lexicon hit is called: its level per domain, whether several words agree, whether only the stem does."""
    levels = "".join(f"{name[0]}{level}" for name, level in zip(CLASSES, hit.levels, strict=True) if level)
    script = "f" if said[hit.start].kind == "far" else ""
    return f"L {'s' if hit.stem else 'x'}{script}{levels}{'m' if hit.size > 1 else ''}"


def dense_features(hits: Sequence[Hit], length: int) -> list[float]:
    """Sums over the lexicon hits: how much, how strong, whose share, by how much one leads; and how long the text is."""
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


@dataclass(frozen=True, kw_only=True)
class Model:
    header: Mapping[str, Any]
    weights: array[int]  # BUCKETS rows of WIDTH, one byte each
    lexicon: Lexicon

    @cached_property
    def version(self) -> str:
        return str(self.header["version"])

    @cached_property
    def _row(self) -> Any:
        weights, scale = self.weights, float(self.header["scale"])

        @lru_cache(maxsize=50_000)
        def row(index: int) -> Scores:
            at = index * WIDTH
            return tuple(weight * scale for weight in weights[at : at + WIDTH])

        return row

    def rows(self, said: Sequence[Token]) -> list[Scores]:
        """Per token what its features add, and how many they are as the last number."""
        names = frozenset(token.text for token in said if self.lexicon.is_name(token))
        return [self._sum(features) for features in token_features(said, names)]

    def _sum(self, features: tuple[int, ...]) -> Scores:
        columns = zip(*map(self._row, features), strict=True)
        return (*map(sum, columns), float(len(features)))

    def score(self, said: Sequence[Token]) -> Scores:
        """A number per class, the greater the likelier."""
        bias, dense_weights = self.header["bias"], self.header["dense"]
        hits = self.lexicon.hits(said)
        rows = self.rows(said)
        count = math.sqrt(sum(row[-1] for row in rows) or 1.0)
        found = [self._row(bucket(hit_feature(hit, said))) for hit in hits]
        dense = dense_features(hits, len(said))
        return tuple(
            bias[k]
            + (sum(row[k] for row in rows) + LEXICON_SCALE * sum(row[k] for row in found)) / count
            + sum(value * weight[k] for value, weight in zip(dense, dense_weights, strict=True))
            for k in range(WIDTH)
        )


    def telling(self, said: Sequence[Token], index: int, most: int = 3) -> list[str]:
        """The words that speak most for a class, the strongest first."""
        worth: dict[str, float] = {}
        for token, row in zip(said, self.rows(said), strict=True):
            worth[token.text] = worth.get(token.text, 0.0) + _lead(row, index) / math.sqrt(row[-1])
        for hit in self.lexicon.hits(said):
            own = said[hit.start : hit.start + hit.size]
            lead = LEXICON_SCALE * _lead(self._row(bucket(hit_feature(hit, said))), index)
            for token in own:
                worth[token.text] = worth.get(token.text, 0.0) + lead / len(own)
        ranked = sorted(((value, word) for word, value in worth.items() if value > 0), key=lambda each: (-each[0], each[1]))
        return [word.lower() for _, word in ranked[:most]]


def _lead(row: Scores, index: int) -> float:
    return row[index] - sum(row[:WIDTH]) / WIDTH


def softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    grown = [math.exp(score - top) for score in scores]
    return [value / sum(grown) for value in grown]


def dump(header: Mapping[str, Any], weights: array[int], lexicon: Lexicon) -> bytes:
    """The model as bytes, the same for the same input."""
    blocks = [
        weights.tobytes(),
        *_packed(lexicon.terms),
        *_packed(lexicon.stems),
        _little(array("I", sorted(lexicon.names))),
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
    )
    return Model(header=header, weights=weights, lexicon=lexicon)


def shipped() -> Model:
    return load((files("butlers.switchboard.routing.model_data") / "routing.bin").read_bytes())


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
