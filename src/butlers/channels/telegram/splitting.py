"""Cutting a long text into parts.

A part ends behind a paragraph, else a line, else a word, else wherever a reader's character ends. A better seam is
taken when it spares what follows from being cut, or leaves the part at least half full: a short greeting before a very
long paragraph does not become a part of its own.

A span that fits into a part is never cut. One that does not is closed and opened again, and its inside is cut like any
text. The white space of a seam goes; the indentation of code stays.

A reader's character is an extended grapheme cluster of Unicode, near enough for cutting text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from typing import Literal

from butlers.channels.telegram.text import CODE_KINDS, Marked, Span, as_html, as_plain, marked

ParseMode = Literal["HTML", "none"]
LIMIT = 4096  # UTF-16 units of one message, counted without its markup

_SEAMS = (
    re.compile(r"\r?\n\s*\n"),
    re.compile(r"\r?\n"),
    re.compile(r"[^\S\u00a0\u2007\u202f]+"),  # white space, except the kinds that say: do not break here
)
_MOST_SPANS = 100  # Telegram ignores further ones
_MOST_ADDRESSES = 6000  # characters of all links' addresses in one part: what is sent has a limit of its own
_JOINER = "\u200d"
# Joiners, the sound marks of half-width kana, and the vowels of Thai and Lao that Unicode counts as letters.
_GLUED = frozenset({_JOINER, "\u200c", "\uff9e", "\uff9f", "\u0e33", "\u0eb3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    text: str  # as the chat shows it
    html: str | None  # for parse_mode HTML; None: send it as plain text
    plain: str  # without markup, links spelt out


def parts(message: str, *, parse_mode: ParseMode = "HTML", limit: int = LIMIT) -> tuple[Part, ...]:
    """What to send, in order; nothing when there is nothing to see."""
    if parse_mode == "none":
        return tuple(Part(text=one.text, html=None, plain=one.text) for one in split(Marked(text=message), limit))
    found = []
    for one in split(marked(message), limit):
        plain = as_plain(one)
        fitting = plain if utf16_length(plain) <= limit else one.text
        found.append(Part(text=one.text, html=as_html(one), plain=fitting))
    return tuple(found)


def split(whole: Marked, limit: int) -> tuple[Marked, ...]:
    text, spans, size = whole.text, deque(whole.spans), len(whole.text.rstrip())
    found: list[Marked] = []
    begin = _behind_space(text, spans, 0)
    while begin < size:
        window = _window(text, spans, begin, limit)
        stop, resume = _cut(window, size)
        end = begin + len(text[begin:stop].rstrip())
        found.append(Marked(text=text, spans=window.near).cut(begin, end))
        while spans and spans[0].end <= resume:
            spans.popleft()
        begin = _behind_space(text, spans, resume)
    return tuple(part for part in found if part.text.strip())


def utf16_length(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """What could go into the next part."""

    text: str  # all of it
    begin: int
    reach: int  # the last place where the part may end
    limit: int
    near: tuple[Span, ...]  # spans over some of it
    kept: tuple[Span, ...]  # those not to be cut

    def allows(self, place: int) -> bool:
        return is_boundary(self.text, place) and not any(s.begin < place < s.end for s in self.kept)


def _window(text: str, spans: Iterable[Span], begin: int, limit: int) -> _Window:
    # The furthest place with no more than `limit` units before it,
    reach = min(len(text), begin + limit)
    excess = utf16_length(text[begin:reach]) - limit
    while excess > 0:
        reach -= 1
        excess -= utf16_length(text[reach])
    ahead = [span for span in takewhile(lambda span: span.begin < reach, spans) if begin < span.end]
    # as long as there are not too many spans before it, and their addresses are not too long.
    addresses = 0
    for number, span in enumerate(ahead):
        addresses += len(escape(span.detail))
        if span.begin > begin and (number >= _MOST_SPANS or addresses > _MOST_ADDRESSES):
            reach = min(reach, span.begin)
            break
    near = tuple(span for span in ahead if span.begin < reach)
    kept = tuple(span for span in near if utf16_length(text[span.begin : span.end]) <= limit)
    return _Window(text=text, begin=begin, reach=reach, limit=limit, near=near, kept=kept)


def _behind_space(text: str, spans: Iterable[Span], place: int) -> int:
    """The next place that shows something; within code, white space does."""
    behind = len(text) - len(text[place:].lstrip())
    code = next((span for span in spans if span.kind in CODE_KINDS and place < span.end), None)
    return behind if code is None else max(place, min(behind, code.begin))


def _cut(window: _Window, size: int) -> tuple[int, int]:
    """Where this part ends, and where the next begins."""
    if size <= window.reach:
        return size, size
    return next((seam for kind in _SEAMS if (seam := _last_seam(window, kind))), None) or _last_place(window)


def _last_seam(window: _Window, kind: re.Pattern[str]) -> tuple[int, int] | None:
    text, limit = window.text, window.limit
    seams = tuple(kind.finditer(text, window.begin + 1, window.reach + 1))
    allowed = (seam for seam in reversed(seams) if window.allows(seam.start()) and is_boundary(text, seam.end()))
    if (found := next(allowed, None)) is None:
        return None
    stop, resume = found.span()
    half_full = utf16_length(text[window.begin : stop]) * 2 >= limit
    following = kind.search(text, resume, resume + limit + 1)
    until = following.start() if following else resume + limit + 1
    return (stop, resume) if half_full or utf16_length(text[resume:until]) <= limit else None


def _last_place(window: _Window) -> tuple[int, int]:
    """No seam: between characters, best outside the spans; a character too long for a part is cut all the same."""
    places = range(window.reach, window.begin, -1)
    outside = (place for place in places if window.allows(place))
    anywhere = (place for place in places if is_boundary(window.text, place))
    place = next(outside, None) or next(anywhere, None) or window.reach
    return place, place


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
