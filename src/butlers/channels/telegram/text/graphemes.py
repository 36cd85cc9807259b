"""Where one character ends for a reader: the extended grapheme clusters of Unicode, near enough for cutting text."""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"
# Joiners, the sound marks of half-width kana, and the vowels of Thai and Lao that Unicode counts as letters.
_GLUED = frozenset({_JOINER, "\u200c", "\uff9e", "\uff9f", "\u0e33", "\u0eb3"})


def is_boundary(text: str, index: int) -> bool:
    """Whether a reader sees two characters on the two sides of this place."""
    if not 0 < index < len(text):
        return True
    before, after = text[index - 1], text[index]
    return not (
        _extends(after)
        or before == _JOINER
        or (before == "\r" and after == "\n")
        or _is_half_flag(text, index)
        or _is_one_syllable(before, after)
    )


def _extends(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Mn", "Me", "Mc")
        or character in _GLUED
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # tags, in the flags of regions
    )


def _is_half_flag(text: str, index: int) -> bool:
    """A flag is two letters; between the halves of one there are an odd number of letters in front."""
    if not _is_flag_letter(text[index]):
        return False
    first = index
    while first > 0 and _is_flag_letter(text[first - 1]):
        first -= 1
    return (index - first) % 2 == 1


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_one_syllable(before: str, after: str) -> bool:
    """The letters of a Korean syllable: leading consonants, vowels, trailing consonants."""
    lead, vowel, tail = ("\u1100", "\u115f"), ("\u1160", "\u11a7"), ("\u11a8", "\u11ff")
    if _within(before, lead):
        return _within(after, lead) or _within(after, vowel) or _is_syllable(after)
    if _within(before, vowel) or (_is_syllable(before) and (ord(before) - 0xAC00) % 28 == 0):
        return _within(after, vowel) or _within(after, tail)
    return (_within(before, tail) or _is_syllable(before)) and _within(after, tail)


def _within(character: str, bounds: tuple[str, str]) -> bool:
    return bounds[0] <= character <= bounds[1]


def _is_syllable(character: str) -> bool:
    return "\uac00" <= character <= "\ud7a3"
