"""What the classifier sees of a text: tokens, and for each token the features that begin there.

Words count as they are, with their neighbours, and by the pieces of three to five letters they are made of, so that an
unseen form of a known word still speaks. What varies without end has a name instead: amounts of money, times, dates,
measurements, phone numbers, flight numbers. Scripts that write without spaces are read character by character.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

BITS = 19
BUCKETS = 1 << BITS
_MASK = BUCKETS - 1

_CURRENCY = "€$£¥₹₽₺₩₴zł"
_MONEY_WORDS = (
    "eur|euro|euros|euron|usd|gbp|chf|sek|nok|dkk|pln|czk|huf|inr|jpy|rub|try|brl|aud|cad|dollars?|bucks?|quid|pounds"
    "|kr|zl|zlotych|tl|lira|rs|rupees|руб|рублей|р|грн|円|元|块|원|만원|fr|lei|ft|kc|reais|pavos|balles|k"
)
_UNITS = {
    "dose": "mg|mcg|µg|μg|ml|iu|мг|мл|mmol|mmol/l|mg/dl|drops|puffs|tablets?|pills?|capsules?",
    "body": "kg|kilos?|kgs|lbs?|st|stone|bpm|mmhg|кг|公斤|キロ",
    "food": "kcal|calories|cal|g|grams|carbs|kj",
    "sport": "km|k|miles?|mi|steps|reps|sets|laps|min/km|км",
    "heat": "c|f|degrees|°c|°f|°",
}
_EVERY_UNIT = "|".join(_UNITS.values())
_TOKEN = re.compile(
    rf"""
    (?P<url>https?://\S+|www\.\S+)
  | (?P<mail>[\w.+-]{{1,64}}@[\w-]+\.[\w.]+)
  | (?P<money>[{_CURRENCY[:-2]}]\s?\d[\d.,]*k?|\d[\d.,\s]{{0,12}}?\s?(?:[{_CURRENCY[:-2]}]|zł|(?:{_MONEY_WORDS})\b))
  | (?P<clock>\b\d{{1,2}}:\d\d(?::\d\d)?(?:\s?[ap]m)?\b|\b\d{{1,2}}\s?[ap]m\b|\b\d{{1,2}}h\d\d\b)
  | (?P<pressure>\b\d{{2,3}}\s?(?:/|over)\s?\d{{2,3}}\b(?!/))
  | (?P<date>\b\d{{4}}-\d\d-\d\d\b|\b\d{{1,2}}[./-]\d{{1,2}}(?:[./-]\d{{2,4}})?\.?(?!\w))
  | (?P<dose>\d[\d.,]{{0,15}}\s?(?:{_UNITS["dose"]})\b)
  | (?P<body>\d[\d.,]{{0,15}}\s?(?:{_UNITS["body"]})\b)
  | (?P<food>\d[\d.,]{{0,15}}\s?(?:{_UNITS["food"]})\b)
  | (?P<sport>\d[\d.,]{{0,15}}\s?(?:{_UNITS["sport"]})\b)
  | (?P<heat>\d[\d.,]{{0,15}}\s?(?:{_UNITS["heat"]})(?!\w))
  | (?P<phone>\+?\d[\d\s()-]{{7,16}}\d)
  | (?P<flight>\b[a-z]{{2}}\s?\d{{2,4}}\b(?![.,:/]\d|\s?(?:[{_CURRENCY[:-2]}%°]|(?:{_MONEY_WORDS}|{_EVERY_UNIT})\b)))
  | (?P<cents>\b\d+[.,]\d\d\b)
  | (?P<percent>\d[\d.,]{{0,15}}\s?%)
  | (?P<number>\d+(?:[.,]\d+)*)
  | (?P<far>[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f])
  | (?P<word>[^\W\d_]+(?:'[^\W\d_]{{1,3}}\b)?)
  | (?P<mark>[?!#&])
    """,
    re.VERBOSE,
)
_PIECED = frozenset({"word"})


@dataclass(frozen=True, slots=True)
class Token:
    text: str  # lower case; a kind in capitals for what varies
    start: int
    end: int
    kind: str


def tokens(folded: str, most: int = sys.maxsize) -> list[Token]:
    """The tokens of a text, at most so many of them."""
    lower = folded.lower()
    if len(lower) != len(folded):  # some letters become two
        lower = "".join(lower if len(lower := character.lower()) == 1 else character for character in folded)
    found: list[Token] = []
    for match in _TOKEN.finditer(lower):
        if len(found) >= most:
            break
        kind = match.lastgroup or "word"
        text = match.group()
        if kind == "number":
            text = f"NUMBER{min(len(text), 5)}"
        elif kind == "flight" and not folded[match.start() : match.start() + 2].isupper():
            found.extend(_apart(match.start(), text))
            continue
        elif kind not in {"word", "far", "mark"}:
            text = kind.upper()
        found.append(Token(text, match.start(), match.end(), kind))
    return found


def _apart(start: int, text: str) -> Iterator[Token]:
    """Two letters and a number that are no flight, like "at 9"."""
    digits = text[2:].lstrip()
    yield Token(text[:2], start, start + 2, "word")
    yield Token(f"NUMBER{len(digits)}", start + len(text) - len(digits), start + len(text), "number")


def bucket(feature: str) -> int:
    return crc32(feature.encode()) & _MASK


@lru_cache(maxsize=20_000)
def pieces(word: str) -> tuple[int, ...]:
    """The buckets of a word and of its letters in groups of three to five, its ends marked."""
    padded = f"<{word[:24]}>"
    size = len(padded)
    grams = {padded[at : at + n] for n in (3, 4, 5) for at in range(size - n + 1)}
    grams.discard(padded)
    return (bucket("w " + word), *(bucket("c " + gram) for gram in sorted(grams)))


def token_features(
    said: Sequence[Token], names: frozenset[str] = frozenset()
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Per token the buckets of the token itself, and of it with those that follow."""
    texts = [("NAME" if token.text in names else token.text) for token in said]
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for index, token in enumerate(said):
        own = pieces(token.text) if token.kind in _PIECED else (bucket("w " + token.text),)
        if texts[index] != token.text:
            own = (*own, bucket("w NAME"))
        rows.append((own, tuple(_together(texts, index, far=token.kind == "far"))))
    return rows


def _together(texts: Sequence[str], index: int, *, far: bool) -> Iterator[int]:
    first = texts[index]
    following = texts[index + 1 : index + 4]
    if following:
        yield bucket(f"2 {first} {following[0]}")
    if len(following) > 1:
        yield bucket(f"3 {first} {following[0]} {following[1]}" if far else f"s {first} {following[1]}")
