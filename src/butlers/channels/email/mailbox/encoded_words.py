"""Words of a header that are written in another character set (RFC 2047), in one pass.

The decoder of the standard library searches the rest of the text from every place where a word might begin. Here each
search begins where the last one ended, and a search that finds nothing is the last one.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator

_MAX_CHARSET = 60  # characters, a language tag included


def decode_words(text: str) -> str:
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
