"""The words of an HTML mail, in one pass.

The parser of the standard library takes minutes for a few hundred kilobytes of unfinished comments, and anybody may
send us those. Here every search begins where the last one ended, and a search that finds nothing is the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

_TAG_NAME = re.compile(r"/?\s{0,8}([a-zA-Z][a-zA-Z0-9]*)")
_BREAKS = frozenset({"p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "table", "blockquote"})
_CLOSING = {
    name: re.compile(rf"</\s{{0,8}}{name}(?![a-zA-Z0-9])", re.IGNORECASE)
    for name in ("script", "style", "head", "title")
}
_BLANK_LINES = re.compile(r"\n{3,}")
_NO_CHARACTER = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")  # a number so long that the library refuses to read it


def words_of(html: str) -> str:
    text = unescape(_NO_CHARACTER.sub("\ufffd", "".join(_pieces(html))))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _pieces(html: str) -> Iterator[str]:
    """Text between tags, and a line break where a tag makes one."""
    place = 0
    while (start := html.find("<", place)) >= 0:
        yield html[place:start].replace("\n", " ")
        end, piece = _tag(html, start)
        if end < 0:
            return  # nothing closes it: what follows is no text
        place = end
        yield piece
    yield html[place:].replace("\n", " ")


def _tag(html: str, start: int) -> tuple[int, str]:
    """Where a tag that begins here ends, with all that it hides, and what it means for the text."""
    if html.startswith("<!--", start):
        return _behind(html, "-->", start + 4), ""
    end = _behind(html, ">", start)
    named = _TAG_NAME.match(html, start + 1)
    name = named[1].lower() if named else ""
    if end >= 0 and name in _CLOSING and html[start + 1] != "/":
        closing = _CLOSING[name].search(html, end)
        return (_behind(html, ">", closing.end()) if closing else -1), ""
    return end, "\n" if name in _BREAKS else ""


def _behind(html: str, mark: str, place: int) -> int:
    found = html.find(mark, place)
    return found + len(mark) if found >= 0 else -1
