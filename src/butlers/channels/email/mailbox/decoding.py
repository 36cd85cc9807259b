"""Header words in other character sets (RFC 2047) and the words of HTML mail, each in one pass."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from html import unescape

_MAX_CHARSET = 60  # characters, a language tag included


def decode_encoded_words(text: str) -> str:
    """The text with its encoded words decoded; what cannot be decoded stays as it is."""
    pieces: list[str] = []
    held: tuple[str, bytes] | None = None  # words of one charset belong together: a character may span two of them
    for gap, charset, content in _words(text):
        if charset is None:
            pieces += [_characters(*held)] if held else []
            pieces.append(gap)
            return "".join(pieces)
        if held is not None and gap.strip() == "" and held[0] == charset:
            held = (charset, held[1] + content)
            continue
        if held is not None:
            pieces.append(_characters(*held))
        if held is None or gap.strip():
            pieces.append(gap)  # blanks between two encoded words are no text
        held = (charset, content)
    return "".join(pieces)


def _words(text: str) -> Iterator[tuple[str, str | None, bytes]]:
    """(plain text before, charset, decoded bytes) per encoded word, then (the rest, None, b"")."""
    place = start = 0
    while (start := text.find("=?", start)) >= 0:
        charset, kind, begin = _opening(text, start)
        if charset is None:
            start += 2
            continue
        end = text.find("?=", begin)
        if end < 0:
            break
        content = _content(kind, text[begin:end])
        if content is None:
            start = end + 2
            continue
        yield text[place:start], charset, content
        place = start = end + 2
    yield text[place:], None, b""


def _opening(text: str, start: int) -> tuple[str | None, str, int]:
    """`=?charset?q?` at this place: the charset, the kind, and where the content begins."""
    mark = text.find("?", start + 2, start + 2 + _MAX_CHARSET)
    kind = text[mark + 1 : mark + 2].lower()
    if mark <= start + 2 or kind not in ("q", "b") or text[mark + 2 : mark + 3] != "?":
        return None, "", start
    return text[start + 2 : mark].partition("*")[0].lower(), kind, mark + 3


def _content(kind: str, encoded: str) -> bytes | None:
    try:
        if kind == "q":
            return binascii.a2b_qp(encoded.encode("ascii"), header=True)
        return binascii.a2b_base64(encoded + "==")
    except ValueError:
        return None


def _characters(charset: str, content: bytes) -> str:
    try:
        return content.decode(charset, "replace")
    except (LookupError, ValueError):
        return content.decode("latin-1")


_TAG_NAME = re.compile(r"/?\s{0,8}([a-zA-Z][a-zA-Z0-9]*)")
_BREAKS = frozenset({"p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "table", "blockquote"})
_CLOSING = {
    name: re.compile(rf"</\s{{0,8}}{name}(?![a-zA-Z0-9])", re.IGNORECASE)
    for name in ("script", "style", "head", "title")
}
_BLANK_LINES = re.compile(r"\n{3,}")
_NO_CHARACTER = re.compile(r"&#[xX]?[0-9a-fA-F]{8,};?")  # a number so long that the library refuses to read it


def html_to_text(html: str) -> str:
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
