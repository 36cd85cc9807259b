"""What people wrote, as a model gets it: data on one line that nothing inside of it can end.

    runtime's fence     BEGIN <random mark> message        the mark is made per call and checked against the data
      this file           {"length": 31, "pieces": [{"start": 0, "end": 31, "text": "..."}]}
    runtime's fence     END <random mark>

A text becomes a JSON string, so quotes, line breaks and control characters are written as escapes; so is everything
that cannot be seen or that changes the direction of writing (zero-width, bidi, tags, variation selectors, odd spaces,
unassigned). Letters of all scripts stay, also those that look like others: they are what the author wrote, and a border
that is found by a random mark is not found by how letters look. Offsets are those of the original text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

# Where one thought may end: after a full stop and the like, or at a line break.
_BORDER = re.compile(r"(?:(?<![.!?…。！？])[.!?…。！？]+[\"'»”’)\]]*(?:\s+|$))|\n+")
_ORDINAL_DAY = re.compile(r"\d\.\s+(?:jan|feb|mär|apr|mai|jun|jul|aug|sep|okt|nov|dez)", re.IGNORECASE)
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_UNSEEN_LETTERS = (
    frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
    | {chr(code) for code in range(0x180B, 0x1810)}
    | {chr(code) for code in range(0xFE00, 0xFE10)}  # variation selectors, and more of them
    | {chr(code) for code in range(0xE0100, 0xE01F0)}
)


def message_data(text: str) -> str:
    """The message to be routed, with the offsets to choose from."""
    pieces = [{"start": start, "end": end, "text": text[start:end]} for start, end in pieces_of(text)]
    return as_data({"length": len(text), "pieces": pieces})


def as_data(document: Any) -> str:
    """JSON in one line of characters that can be seen."""
    written = json.dumps(document, ensure_ascii=False)
    unseen = {ord(letter): _escaped(letter) for letter in set(written) if _is_unseen(letter)}
    return written.translate(unseen) if unseen else written


def pieces_of(text: str) -> Iterator[tuple[int, int]]:
    """The spans of a text, side by side from beginning to end."""
    start = 0
    for border in _BORDER.finditer(text):
        is_day = _ORDINAL_DAY.match(text, max(border.start() - 1, 0)) is not None
        if text[start : border.end()].strip() and not is_day:
            yield start, border.end()
            start = border.end()
    if start < len(text):
        yield start, len(text)


def clean_line(text: str, limit: int) -> str:
    """One line of what can be seen, cut to a length: for what a model says about a text."""
    seen = "".join(" " if _is_unseen(letter) else letter for letter in unicodedata.normalize("NFC", text))
    flat = " ".join(seen.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def _is_unseen(letter: str) -> bool:
    if letter.isascii():
        return not letter.isprintable()
    return unicodedata.category(letter) in _UNSEEN_CATEGORIES or letter in _UNSEEN_LETTERS


def _escaped(letter: str) -> str:
    """As JSON escapes it."""
    return json.dumps(letter)[1:-1]
