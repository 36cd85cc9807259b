"""From a stored message to the texts that Telegram takes.

    message -- markup --> text + spans -- splitting --> parts of at most 4096 units -- rendering --> HTML, or plain

Messages are plain text or the light Markdown that language models write. What is certainly markup becomes a span;
everything else stays as it was written. Parts follow from the message alone, so a later attempt finds the same ones.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from urllib.parse import urlsplit

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


class Kind(StrEnum):
    BOLD = "bold"
    CODE = "code"
    PRE = "pre"
    LINK = "link"


CODE_KINDS = frozenset({Kind.CODE, Kind.PRE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where a style holds; spans nest or are apart, they never cross."""

    kind: Kind
    begin: int  # characters of the text
    end: int
    detail: str = ""  # the address of a link, the language of a block

    def shifted(self, by: int) -> Span:
        return replace(self, begin=self.begin + by, end=self.end + by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    text: str
    spans: tuple[Span, ...] = ()  # by begin, outer before inner

    def covered(self, kind: Kind, detail: str = "") -> Marked:
        """The same with one more span over all of it."""
        around = Span(kind=kind, begin=0, end=len(self.text), detail=detail)
        return replace(self, spans=(around, *self.spans))

    def cut(self, begin: int, end: int) -> Marked:
        """A piece; spans that reach beyond it are closed at its edges."""
        clipped = (
            replace(span, begin=max(span.begin, begin), end=min(span.end, end)).shifted(-begin)
            for span in self.spans
            if span.begin < end and begin < span.end
        )
        return Marked(text=self.text[begin:end], spans=tuple(clipped))


def marked(message: str) -> Marked:
    pieces, position = [], 0
    while opener := _OPENER.search(message, position):
        closer = _CLOSER.search(message, opener.end())
        if closer is None:
            break
        pieces.append(_inline(message[position : opener.start()]))
        block = message[opener.end() : closer.start()].rstrip("\r\n")
        literal = Marked(text=message[opener.start() : closer.end()])
        pieces.append(Marked(text=block).covered(Kind.PRE, opener[1]) if block.strip() else literal)
        position = closer.end()
    return _joined([*pieces, _inline(message[position:])])


def _inline(source: str) -> Marked:
    pieces, position = [], 0
    for found in _INLINE.finditer(source):
        pieces += [Marked(text=source[position : found.start()]), _span(found) or Marked(text=found[0])]
        position = found.end()
    return _joined([*pieces, Marked(text=source[position:])])


def _span(found: re.Match[str]) -> Marked | None:
    """What the found markup means; None when it means nothing after all."""
    if (code := found["code"]) is not None:
        kind = Kind.CODE if found["tick"] == "`" else Kind.PRE
        return Marked(text=code).covered(kind) if code.strip() else None
    if (url := found["url"]) is not None:
        label = _inline(found["label"])
        if not label.text.strip() or not _is_public(url):
            return None
        plain = tuple(span for span in label.spans if span.kind not in CODE_KINDS)
        return replace(label, spans=plain).covered(Kind.LINK, url)
    return _bold(_inline(found["bold"]))


def _is_public(url: str) -> bool:
    """Telegram drops the addresses of links that lead to no host it knows; those are better left to be read."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return "." in host.strip(".") and len(url) <= LONGEST_URL


def _bold(inner: Marked) -> Marked:
    """Bold all over, except where there is code."""
    bold, position = [], 0
    for code in (span for span in inner.spans if span.kind in CODE_KINDS):
        bold.append((position, code.begin))
        position = code.end
    bold.append((position, len(inner.text)))
    spans = [Span(kind=Kind.BOLD, begin=begin, end=end) for begin, end in bold if begin < end]
    return replace(inner, spans=tuple(sorted((*spans, *inner.spans), key=lambda span: (span.begin, -span.end))))


def _joined(pieces: Iterable[Marked]) -> Marked:
    texts, spans, length = [], [], 0
    for piece in pieces:
        spans += [span.shifted(length) for span in piece.spans]
        texts.append(piece.text)
        length += len(piece.text)
    return Marked(text="".join(texts), spans=tuple(spans))


def as_html(marked: Marked) -> str:
    opening: defaultdict[int, str] = defaultdict(str)
    closing: defaultdict[int, str] = defaultdict(str)
    for span in marked.spans:
        opened, closed = _tags(span)
        opening[span.begin] += opened
        closing[span.end] = closed + closing[span.end]
    edges = sorted({0, len(marked.text), *opening, *closing})
    written = [closing[0] + opening[0]]
    for begin, end in pairwise(edges):
        written += [html.escape(marked.text[begin:end], quote=False), closing[end], opening[end]]
    return "".join(written)


def as_plain(marked: Marked) -> str:
    """Without any style; where a link leads is said behind its text."""
    written, position = [], 0
    for link in (span for span in marked.spans if span.kind is Kind.LINK):
        label = marked.text[link.begin : link.end]
        address = "" if label == link.detail else f" ({link.detail})"
        written += [marked.text[position : link.begin], label, address]
        position = link.end
    return "".join((*written, marked.text[position:]))


def _tags(span: Span) -> tuple[str, str]:
    match span.kind:
        case Kind.BOLD:
            return "<b>", "</b>"
        case Kind.CODE:
            return "<code>", "</code>"
        case Kind.PRE if span.detail:
            return f'<pre><code class="language-{html.escape(span.detail)}">', "</code></pre>"
        case Kind.PRE:
            return "<pre>", "</pre>"
        case Kind.LINK:
            return f'<a href="{html.escape(span.detail)}">', "</a>"
