"""Domain terms in many languages: which parts of a text are known words of which butler's trade.

A term counts where its words stand side by side, the longest term first; a longer word counts by its stem, because most
languages inflect. Terms are kept as 32-bit hashes with a level from 0 to 3 for each domain.

Beside the terms stand lessons: what a larger model of English, asked once while this one was trained, thought of a word
alone. They also cover words that no labelled message has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from butlers.switchboard.routing.features import Token

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

    def hits(self, said: Sequence[Token]) -> list[Hit]:
        found: list[Hit] = []
        covered = 0  # the first token behind the longest term so far
        for start, token in enumerate(said):
            hit = self._longest(said, start)
            if hit is None and token.kind == "word":
                hit = self._stemmed(token.text, start)
            if hit is not None and start + hit.size > covered:
                found.append(hit)
                covered = start + hit.size
        return found

    def lessons(self, said: Sequence[Token]) -> list[Lesson]:
        """Side by side, the longest term first."""
        found: list[Lesson] = []
        start = 0
        while start < len(said):
            for size in range(min(TAUGHT_TOKENS, len(said) - start), 0, -1):
                term = " ".join(token.text for token in said[start : start + size])
                if (scores := self.taught.get(crc32(term.encode()))) is not None:
                    found.append(Lesson(start, size, scores))
                    start += size
                    break
            else:
                start += 1
        return found

    def names_in(self, said: Sequence[Token]) -> frozenset[str]:
        """The tokens that are first names."""
        return frozenset(token.text for token in said if crc32(token.text.encode()) in self.names)

    def _longest(self, said: Sequence[Token], start: int) -> Hit | None:
        best: Hit | None = None
        so_far = 0
        for index in range(start, min(start + LONGEST, len(said))):
            so_far = crc32((said[index].text if index == start else f" {said[index].text}").encode(), so_far)
            levels = self.terms.get(so_far)
            if levels is None:
                break
            if any(levels):
                best = Hit(start, index - start + 1, levels, False)
        return best

    def _stemmed(self, word: str, start: int) -> Hit | None:
        """The word, or what is left of it without an ending, the longest first."""
        for cut in range(min(CUT, len(word) - STEM) + 1):
            levels = self.stems.get(crc32(word[: len(word) - cut].encode()))
            if levels is not None:
                return Hit(start, 1, levels, True)
        return None


def term_hash(term: str) -> int:
    return crc32(term.encode())


def stem_of_term(word: str) -> str:
    """Under which stem a term is kept."""
    return word[: max(STEM, len(word) - 2)]
