"""From a stored message to the texts that Telegram takes.

    message -- markup --> text + spans -- splitting --> parts of at most 4096 units -- rendering --> HTML, or plain

Messages are plain text or the light Markdown that language models write. What is certainly markup becomes a span;
everything else stays as it was written. Parts follow from the message alone, so a later attempt finds the same ones.

A part ends behind a paragraph, else a line, else a word, else wherever a reader's character ends. A better seam is
taken when it spares what follows from being cut, or leaves the part at least half full: a short greeting before a very
long paragraph does not become a part of its own. A span that fits into a part is never cut. One that does not is closed
and opened again, and its inside is cut like any text. The white space of a seam goes; the indentation of code stays.
A reader's character is an extended grapheme cluster of Unicode, near enough for cutting text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from itertools import pairwise, takewhile
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

ParseMode = Literal["HTML", "none"]
LIMIT = 4096  # UTF-16 units of one message, counted without its markup
LONGEST_URL = 2048

_OPENER = re.compile(r"(?<!\S)```([\w+#.-]*)[ \t\r]*\n")
_CLOSER = re.compile(r"^[ \t]*```[ \t\r]*$", re.MULTILINE)
_INLINE = re.compile(
    r"""
      (?<![0-9A-Za-z_`\\]) (?P<tick>```|`) (?P<code>[^`\n]+) (?P=tick) (?![0-9A-Za-z_`])
    | (?<![!\\]) \[ (?P<label>[^\[\]\n]+) \]
      \( (?P<url> https?:// [^\s()<>"]+ (?: \( [^\s()<>"]* \) [^\s()<>"]* )* ) \)
    | (?<![0-9A-Za-z_*\\]) \*\* (?=[^\s*])
      (?P<bold> (?: [^*`\n] | \*(?!\*) | `[^`\n]+` )+ ) (?<=[^\s*])
      \*\* (?![0-9A-Za-z_*])
    """,
    re.VERBOSE,
)
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


class Kind(StrEnum):
    BOLD = "bold"
    CODE = "code"
    PRE = "pre"
    LINK = "link"


CODE_KINDS = frozenset({Kind.CODE, Kind.PRE})


class Span(NamedTuple):
    """Where a style holds; spans nest or are apart, they never cross."""

    kind: Kind
    begin: int  # characters of the text
    end: int
    detail: str = ""  # the address of a link, the language of a block


class Marked(NamedTuple):
    text: str
    spans: Sequence[Span] = ()  # by begin, outer before inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    text: str  # as the chat shows it
    html: str | None  # for parse_mode HTML; None: send it as plain text
    plain: str  # without markup, links spelt out


def parts(message: str, *, parse_mode: ParseMode = "HTML", limit: int = LIMIT) -> tuple[Part, ...]:
    """What to send, in order; nothing when there is nothing to see."""
    if parse_mode == "none":
        return tuple(Part(text=one.text, html=None, plain=one.text) for one in split(Marked(message), limit))
    found = []
    for one in split(marked(message), limit):
        plain = _as_plain(one)
        fitting = plain if utf16_length(plain) <= limit else one.text
        found.append(Part(text=one.text, html=_as_html(one), plain=fitting))
    return tuple(found)


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


# --- markup ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Writer:
    """Text that grows, and the spans over it."""

    texts: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    length: int = 0

    def add(self, text: str, spans: Sequence[Span] = ()) -> None:
        shift = self.length
        self.spans += [Span(kind, begin + shift, end + shift, detail) for kind, begin, end, detail in spans]
        self.texts.append(text)
        self.length += len(text)

    def written(self, last: Marked) -> Marked:
        """All of it, with one more piece at its end."""
        if not self.texts:
            return last
        self.add(*last)
        return Marked("".join(self.texts), tuple(self.spans))


def marked(message: str) -> Marked:
    writer, position = _Writer(), 0
    while (opener := _OPENER.search(message, position)) and (closer := _CLOSER.search(message, opener.end())):
        writer.add(*_inline(message[position : opener.start()]))
        block = message[opener.end() : closer.start()].rstrip("\r\n")
        if block.strip():
            writer.add(block, (Span(Kind.PRE, 0, len(block), opener[1]),))
        else:
            writer.add(message[opener.start() : closer.end()])
        position = closer.end()
    return writer.written(_inline(message[position:]))


def _inline(source: str) -> Marked:
    writer, position = _Writer(), 0
    for found in _INLINE.finditer(source):
        writer.add(source[position : found.start()])
        writer.add(*(_meaning(found) or (found[0],)))
        position = found.end()
    return writer.written(Marked(source[position:]))


def _meaning(found: re.Match[str]) -> Marked | None:
    """What the found markup means; None when it means nothing after all."""
    if (code := found["code"]) is not None:
        kind = Kind.CODE if found["tick"] == "`" else Kind.PRE
        return Marked(code, (Span(kind, 0, len(code)),)) if code.strip() else None
    if (url := found["url"]) is None:
        return _bold(_inline(found["bold"]))
    label = _inline(found["label"])
    if not label.text.strip() or not _is_public(url):
        return None
    plain = [span for span in label.spans if span.kind not in CODE_KINDS]
    return Marked(label.text, [Span(Kind.LINK, 0, len(label.text), url), *plain])


def _is_public(url: str) -> bool:
    """Telegram drops the addresses of links that lead to no host it knows; those are better left to be read."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return "." in host.strip(".") and len(url) <= LONGEST_URL


def _bold(inner: Marked) -> Marked:
    """Bold all over, except where there is code."""
    edges = [0, *(edge for span in inner.spans if span.kind in CODE_KINDS for edge in span[1:3]), len(inner.text)]
    bold = [Span(Kind.BOLD, *ends) for ends in zip(edges[::2], edges[1::2], strict=True) if ends[0] < ends[1]]
    return Marked(inner.text, sorted((*bold, *inner.spans), key=lambda span: (span.begin, -span.end)))


# --- rendering -------------------------------------------------------------------------------------------------------


def _as_html(marked: Marked) -> str:
    opening: defaultdict[int, str] = defaultdict(str)
    closing: defaultdict[int, str] = defaultdict(str)
    for span in marked.spans:
        opened, closed = _tags(span)
        opening[span.begin] += opened
        closing[span.end] = closed + closing[span.end]
    edges = sorted({0, len(marked.text), *opening, *closing})
    written = [closing[0] + opening[0]]
    for begin, end in pairwise(edges):
        written += [escape(marked.text[begin:end], quote=False), closing[end], opening[end]]
    return "".join(written)


def _tags(span: Span) -> tuple[str, str]:
    match span.kind:
        case Kind.BOLD:
            return "<b>", "</b>"
        case Kind.CODE:
            return "<code>", "</code>"
        case Kind.PRE if span.detail:
            return f'<pre><code class="language-{escape(span.detail)}">', "</code></pre>"
        case Kind.PRE:
            return "<pre>", "</pre>"
        case Kind.LINK:
            return f'<a href="{escape(span.detail)}">', "</a>"


def _as_plain(marked: Marked) -> str:
    """Without any style; where a link leads is said behind its text."""
    written, position = [], 0
    for link in (span for span in marked.spans if span.kind is Kind.LINK):
        label = marked.text[link.begin : link.end]
        address = "" if label == link.detail else f" ({link.detail})"
        written += [marked.text[position : link.begin], label, address]
        position = link.end
    return "".join((*written, marked.text[position:]))


# --- splitting -------------------------------------------------------------------------------------------------------


def split(whole: Marked, limit: int) -> tuple[Marked, ...]:
    shown = whole.text.strip()
    if not whole.spans and utf16_length(shown) <= limit:
        return (Marked(shown),) if shown else ()
    text, spans, size = whole.text, deque(whole.spans), len(whole.text.rstrip())
    found: list[Marked] = []
    begin = _behind_space(text, spans, 0)
    while begin < size:
        window = _window(text, spans, begin, limit)
        stop, resume = (size, size) if size <= window.reach else _seam(window)
        end = begin + len(text[begin:stop].rstrip())
        # Spans that reach beyond the part are closed at its edges.
        cut = [
            Span(kind, max(first, begin) - begin, min(last, end) - begin, detail)
            for kind, first, last, detail in window.near
            if first < end and begin < last
        ]
        found.append(Marked(text[begin:end], tuple(cut)))
        while spans and spans[0].end <= resume:
            spans.popleft()
        begin = _behind_space(text, spans, resume)
    return tuple(part for part in found if part.text.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    text: str  # all of it
    begin: int
    reach: int  # the last place where the part may end
    limit: int
    near: tuple[Span, ...]  # spans over some of it
    whole: tuple[Span, ...]  # those not to be cut

    def allows(self, place: int) -> bool:
        return is_boundary(self.text, place) and not any(s.begin < place < s.end for s in self.whole)


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
    whole = tuple(span for span in near if utf16_length(text[span.begin : span.end]) <= limit)
    return _Window(text=text, begin=begin, reach=reach, limit=limit, near=near, whole=whole)


def _behind_space(text: str, spans: Iterable[Span], place: int) -> int:
    """The next place that shows something; within code, white space does."""
    behind = len(text) - len(text[place:].lstrip())
    code = next((span for span in spans if span.kind in CODE_KINDS and place < span.end), None)
    return behind if code is None else max(place, min(behind, code.begin))


def _seam(window: _Window) -> tuple[int, int]:
    """Where this part ends, and where the next begins."""
    if found := next((seam for kind in _SEAMS if (seam := _last_seam(window, kind))), None):
        return found
    # Between characters, best outside the spans; a character too long for a part is cut all the same.
    places = range(window.reach, window.begin, -1)
    outside = (place for place in places if window.allows(place))
    anywhere = (place for place in places if is_boundary(window.text, place))
    place = next(outside, None) or next(anywhere, None) or window.reach
    return place, place


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


# --- readers' characters ---------------------------------------------------------------------------------------------


def is_boundary(text: str, index: int) -> bool:
    """Whether a reader sees two characters on the two sides of this place."""
    if not 0 < index < len(text):
        return True
    before, after = text[index - 1], text[index]
    return not (
        unicodedata.category(after) in ("Mn", "Me", "Mc")
        or after in _GLUED
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= after <= "\U000e007f"  # tags, in the flags of regions
        or before == _JOINER
        or (before == "\r" and after == "\n")
        or _is_half_flag(text, index)
        or _is_one_syllable(before, after)
    )


def _is_half_flag(text: str, index: int) -> bool:
    """A flag is two letters; between the halves of one there are an odd number of letters in front."""
    first = index
    while first >= 0 and "\U0001f1e6" <= text[first] <= "\U0001f1ff":
        first -= 1
    return (index - first) % 2 == 0 and first != index


def _is_one_syllable(before: str, after: str) -> bool:
    """The letters of a Korean syllable: leading consonants, vowels, trailing consonants."""
    lead, vowel, tail, whole = ("\u1100", "\u115f"), ("\u1160", "\u11a7"), ("\u11a8", "\u11ff"), ("\uac00", "\ud7a3")

    def within(character: str, bounds: tuple[str, str]) -> bool:
        return bounds[0] <= character <= bounds[1]

    if within(before, lead):
        return any(within(after, kind) for kind in (lead, vowel, whole))
    if within(before, vowel) or (within(before, whole) and (ord(before) - 0xAC00) % 28 == 0):
        return within(after, vowel) or within(after, tail)
    return (within(before, tail) or within(before, whole)) and within(after, tail)
