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
from collections.abc import Iterable, Iterator
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

    def part(self, stop: int) -> Marked:
        end = self.begin + len(self.text[self.begin : stop].rstrip())
        return Marked(text=self.text, spans=self.near).cut(self.begin, end)


def utf16_length(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def split(whole: Marked, limit: int) -> tuple[Marked, ...]:
    return tuple(part for part in _parts(whole, limit) if part.text.strip())


def _parts(whole: Marked, limit: int) -> Iterator[Marked]:
    text, spans, size = whole.text, deque(whole.spans), len(whole.text.rstrip())
    begin = _behind_space(text, spans, 0)
    while begin < size:
        window = _window(text, spans, begin, limit)
        stop, resume = _cut(window, size)
        yield window.part(stop)
        while spans and spans[0].end <= resume:
            spans.popleft()
        begin = _behind_space(text, spans, resume)


def _window(text: str, spans: Iterable[Span], begin: int, limit: int) -> _Window:
    within = _reach(text, begin, limit)
    ahead = [span for span in takewhile(lambda span: span.begin < within, spans) if begin < span.end]
    reach = _affordable(ahead, begin, within)
    near = tuple(span for span in ahead if span.begin < reach)
    kept = tuple(span for span in near if utf16_length(text[span.begin : span.end]) <= limit)
    return _Window(text=text, begin=begin, reach=reach, limit=limit, near=near, kept=kept)


def _reach(text: str, begin: int, limit: int) -> int:
    """The furthest place with no more than `limit` units before it."""
    end = min(len(text), begin + limit)
    excess = utf16_length(text[begin:end]) - limit
    while excess > 0:
        end -= 1
        excess -= utf16_length(text[end])
    return end


def _affordable(ahead: Iterable[Span], begin: int, reach: int) -> int:
    """Up to where there are not too many spans, and their addresses are not too long."""
    addresses = 0
    for number, span in enumerate(ahead):
        addresses += len(escape(span.detail))
        if span.begin > begin and (number >= _MOST_SPANS or addresses > _MOST_ADDRESSES):
            return min(reach, span.begin)
    return reach


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
    seams = tuple(kind.finditer(window.text, window.begin + 1, window.reach + 1))
    found = next((seam for seam in reversed(seams) if _is_allowed(window, seam)), None)
    if found is None or not (_half_full(window, found.start()) or _next_fits(window, kind, found.end())):
        return None
    return found.start(), found.end()


def _is_allowed(window: _Window, seam: re.Match[str]) -> bool:
    return window.allows(seam.start()) and is_boundary(window.text, seam.end())


def _half_full(window: _Window, stop: int) -> bool:
    return utf16_length(window.text[window.begin : stop]) * 2 >= window.limit


def _next_fits(window: _Window, kind: re.Pattern[str], resume: int) -> bool:
    text, furthest = window.text, resume + window.limit + 1
    seam = kind.search(text, resume, furthest)
    return utf16_length(text[resume : seam.start() if seam else furthest]) <= window.limit


def _last_place(window: _Window) -> tuple[int, int]:
    """No seam: between characters, best outside the spans; a character too long for a part is cut all the same."""
    places = range(window.reach, window.begin, -1)
    outside = (place for place in places if window.allows(place))
    anywhere = (place for place in places if is_boundary(window.text, place))
    place = next(outside, None) or next(anywhere, None) or window.reach
    return place, place


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    text: str  # as the chat shows it
    html: str | None  # for parse_mode HTML; None: send it as plain text
    plain: str  # without markup, links spelt out


def parts(message: str, *, parse_mode: ParseMode = "HTML", limit: int = LIMIT) -> tuple[Part, ...]:
    """What to send, in order; nothing when there is nothing to see."""
    if parse_mode == "none":
        return tuple(Part(text=one.text, html=None, plain=one.text) for one in split(Marked(text=message), limit))
    return tuple(_part(one, limit) for one in split(marked(message), limit))


def _part(one: Marked, limit: int) -> Part:
    plain = as_plain(one)
    fitting = plain if utf16_length(plain) <= limit else one.text
    return Part(text=one.text, html=as_html(one), plain=fitting)
