"""What a model said, checked to the last key. Nothing it wrote is passed on: it chose spans and butlers.

    [{"butler": "...", "segment": {"start": 0, "end": 9}, "confidence": 0.9, "rationale": "..."}, ...]

Whatever is not exactly this is a `ClassificationError`, and the message goes to `general` as it was written. What is
this is brought into order:

- No word of the author is lost: what lies between two chosen parts goes with the one before it, what lies in front of
  all goes with the first.
- `general` never stands beside a specialist: its parts fall to their neighbours.
- Parts of one butler side by side are one part.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

from butlers.errors import ClassificationError
from butlers.switchboard.registry import FALLBACK
from butlers.switchboard.routing.decision import Segment

MAX_ANSWER = 20_000  # characters
MAX_PARTS = 12
MAX_RATIONALE = 200  # characters that are kept
_PART_KEYS = {"butler", "segment", "confidence", "rationale"}
_SPAN_KEYS = {"start", "end"}
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
    unseen = {ord(letter): json.dumps(letter)[1:-1] for letter in set(written) if _is_unseen(letter)}
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


def read_segments(answer: str, text: str, names: frozenset[str]) -> tuple[Segment, ...]:
    """The parts of the text that the answer names, in order; raises `ClassificationError`."""
    parsed = strict_json(answer)
    if not isinstance(parsed, list) or not 1 <= len(parsed) <= MAX_PARTS:
        raise ClassificationError(f"the model's answer is not a list of 1 to {MAX_PARTS} parts")
    parts = sorted((_part(item, text, names) for item in parsed), key=lambda part: part.start)
    for before, after in pairwise(parts):
        if after.start < before.end:
            raise ClassificationError("the model's parts overlap")
    specialists = [part for part in parts if part.butler != FALLBACK]
    return _segments(_joined(specialists or parts), text)


# --- reading ---------------------------------------------------------------------------------------------------------


def strict_json(answer: str, *, limit: int = MAX_ANSWER) -> Any:
    """JSON without NaN, infinities and keys that stand there twice."""
    if len(answer) > limit:
        raise ClassificationError(f"the model's answer is longer than {limit} characters")
    try:
        return json.loads(answer, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise ClassificationError("the model's answer is not JSON") from None


def confidence_of(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise ClassificationError("the model's confidence is not a number from 0 to 1")
    return float(value)


def exactly(value: Any, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != keys:
        raise ClassificationError(f"the model's answer needs objects with exactly: {', '.join(sorted(keys))}")
    return value


def _part(item: Any, text: str, names: frozenset[str]) -> Segment:
    given = exactly(item, _PART_KEYS)
    butler, rationale = given["butler"], given["rationale"]
    if not isinstance(butler, str) or butler not in names:
        raise ClassificationError("the model named a butler that may not take this message")
    if not isinstance(rationale, str):
        raise ClassificationError("the model's rationale is not a text")
    start, end = _span(given["segment"], text)
    return Segment(
        segment_id="",  # numbered when they are in order
        butler=butler,
        start=start,
        end=end,
        confidence=confidence_of(given["confidence"]),
        rationale=clean_line(rationale, MAX_RATIONALE),
    )


def _span(value: Any, text: str) -> tuple[int, int]:
    span = exactly(value, _SPAN_KEYS)
    start, end = span["start"], span["end"]
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
        raise ClassificationError("the model's span lies outside of the text")
    if not text[start:end].strip():
        raise ClassificationError("the model's span is empty")
    if _cuts_a_word(text, start) or _cuts_a_word(text, end):
        raise ClassificationError("the model's span cuts a word")
    return start, end


def _cuts_a_word(text: str, place: int) -> bool:
    if not 0 < place < len(text):
        return False
    # Scripts without case are often written without spaces, and have no border to be seen here.
    return all(letter.islower() or letter.isupper() or letter.isdigit() for letter in text[place - 1 : place + 1])


# --- bringing into order ---------------------------------------------------------------------------------------------


def _joined(parts: Iterable[Segment]) -> list[Segment]:
    joined: list[Segment] = []
    for part in parts:
        if joined and joined[-1].butler == part.butler:
            last = joined[-1]
            joined[-1] = replace(last, end=part.end, confidence=min(last.confidence, part.confidence))
        else:
            joined.append(part)
    return joined


def _segments(parts: Sequence[Segment], text: str) -> tuple[Segment, ...]:
    starts = [0, *(part.start for part in parts[1:])]
    return tuple(
        replace(
            part,
            segment_id=f"s{number}",
            start=start,
            end=len(text) if len(parts) == 1 else start + len(text[start:end].rstrip()),
            confidence=round(part.confidence, 3),
        )
        for number, (part, start, end) in enumerate(zip(parts, starts, [*starts[1:], len(text)], strict=True), start=1)
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("not a number")
