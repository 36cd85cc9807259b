"""The words of a text, as rules and triggers compare them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
# Two letters that stand for a whole sentence: written out, a text of them would be eighteen times as long.
_SENTENCES = ("\ufdfa", "\ufdfb")


def words(text: str) -> list[str]:
    return _WORD.findall(_plain(text))


def says_one_of(text: str, phrases: Iterable[str]) -> bool:
    """Whether a text of any length holds one of the phrases.

    Whatever has not even the letters of a phrase is not taken apart: that is most of the work.
    """
    letters = _letters(text)
    possible = [phrase for phrase in phrases if _letters(phrase) <= letters]
    plain = _plain(text) if possible else ""
    likely = [phrase for phrase in possible if all(word in plain for word in words(phrase))]
    said = side_by_side(_WORD.findall(plain)) if likely else ""
    return any(holds_phrase(said, phrase) for phrase in likely)


def _plain(text: str) -> str:
    if not text.isascii():
        for letter in _SENTENCES:
            text = text.replace(letter, " ")
        text = unicodedata.normalize("NFKC", text)
    return text.casefold()


def _letters(text: str) -> set[str]:
    """What its words are made of, taken apart as far as it goes: a letter and its accent are two."""
    different = set(text).difference(_SENTENCES)
    plain = unicodedata.normalize("NFKC", "".join(different)).casefold()
    return {letter for letter in unicodedata.normalize("NFKD", plain) if letter.isalnum()}


def side_by_side(said: Iterable[str]) -> str:
    """Words in the form in which phrases are looked for."""
    return f" {' '.join(said)} "


def holds_phrase(said: str, phrase: str) -> bool:
    """Whether the words of a phrase stand in `side_by_side` words, in order."""
    wanted = words(phrase)
    return bool(wanted) and side_by_side(wanted) in said
