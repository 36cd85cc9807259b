"""One spelling for what only looks different, with the way back to the author's characters.

    original   "Раy  the\u200b ｂill"  ->  folded "Pay  the bill"
    origin[i]  where the folded character i begins in the original

Compatibility forms become plain ones, invisible and direction-changing characters go, marks stacked on Latin letters
go, and a Cyrillic or Greek letter that stands inside an otherwise Latin word becomes the Latin letter it imitates. A
word that is written in Cyrillic or Greek throughout is left as it is: it is a language, not a disguise.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

_LOOKALIKES = str.maketrans(
    "аеорсухісԁѕјӏһԛԝвкмнтгзбАВЕКМНОРСТУХІЅЈαβγεηικνορτυχωΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxicdsjlhqwbkmhtr3bABEKMHOPCTYXISJabyenikvoptuxwABEZHIKMNOPTYX",
)
_LONE_LOOKALIKES = {
    "ı": "i",
    "ø": "o",
    "đ": "d",
    "ł": "l",
    "ß": "ss",
    "æ": "ae",
    "œ": "oe",
    "’": "'",
    "‘": "'",
    "ʼ": "'",
}
_WORD = re.compile(r"[^\W\d_]{2,}")
_DISGUISED = re.compile(r"[\u0370-\u03ff\u0400-\u052f]")
_PLAIN = re.compile(r"[\x00-\x7f]*\Z")
_ARABIC_MARKS = re.compile("[\u064b-\u0652]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    text: str
    origin: tuple[int, ...] | range  # one more than there are characters: the last is the original's length

    def cut(self, end: int) -> Folded:
        """Its beginning."""
        return self if end >= len(self.text) else Folded(text=self.text[:end], origin=self.origin[: end + 1])


def fold(text: str) -> Folded:
    if _PLAIN.match(text):
        return Folded(text=text, origin=range(len(text) + 1))
    pieces: list[str] = []
    origin: list[int] = []
    base = ""
    for index, character in enumerate(text):
        plain = _plain(character)
        if not plain or (_is_stacked(character) and _takes_no_marks(base)):
            continue
        base = plain[-1]
        pieces.append(plain)
        origin.extend([index] * len(plain))
    return Folded(text=_undisguised("".join(pieces)), origin=(*origin, len(text)))


@lru_cache(maxsize=8192)
def _plain(character: str) -> str:
    """What one character comes to; nothing for what cannot be seen."""
    if character in _LONE_LOOKALIKES:
        return _LONE_LOOKALIKES[character]
    if unicodedata.category(character) in {"Cf", "Cs", "Co", "Cn"} or _ARABIC_MARKS.match(character):
        return ""
    if "\ufe00" <= character <= "\ufe0f" or character in "\u0640\u034f\u115f\u1160\u3164\uffa0":
        return ""
    plain = unicodedata.normalize("NFKC", character)
    return "".join(_unmarked(part) for part in plain)


def _unmarked(character: str) -> str:
    """A Latin or Greek letter without its accents; other scripts need theirs."""
    decomposed = unicodedata.normalize("NFD", character)
    return decomposed[0] if len(decomposed) > 1 and _takes_no_marks(decomposed[0]) else character


def _is_stacked(character: str) -> bool:
    return "\u0300" <= character <= "\u036f" or "\u20d0" <= character <= "\u20ff"


def _takes_no_marks(base: str) -> bool:
    return base < "\u0400" or base in "\u2190\u2191"


def _undisguised(text: str) -> str:
    """Same length: only letters within words that are mostly or partly Latin change."""
    if not _DISGUISED.search(text):
        return text
    return _WORD.sub(lambda match: _latin(match.group()), text)


def _latin(word: str) -> str:
    strange = sum(map(_is_strange, word))
    if not strange or strange == len(word):
        return word
    return word.translate(_LOOKALIKES)


def _is_strange(character: str) -> bool:
    return "\u0370" <= character <= "\u052f"
