"""What the classifier and the rules see of a text: one spelling for lookalikes, words, tokens, features."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
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
_LOOKALIKES = str.maketrans(
    "аеорсухісԁѕјӏһԛԝвкмнтгзбАВЕКМНОРСТУХІЅЈαβγεηικνορτυχωΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxicdsjlhqwbkmhtr3bABEKMHOPCTYXISJabyenikvoptuxwABEZHIKMNOPTYX",
)
_LONE_LOOKALIKES = {
    "ı": "i",
    "ø": "o",
    "đ": "d",
    "ł": "l",
    "ß": "ss",
    "æ": "ae",
    "œ": "oe",
    "’": "'",
    "‘": "'",
    "ʼ": "'",
}
_WORD = re.compile(r"[^\W\d_]{2,}")
_DISGUISED = re.compile(r"[\u0370-\u03ff\u0400-\u052f]")
_PLAIN = re.compile(r"[\x00-\x7f]*\Z")
_ARABIC_MARKS = re.compile("[\u064b-\u0652]")
_SPOKEN_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
# Two letters that stand for a whole sentence: written out, a text of them would be eighteen times as long.
_SENTENCES = ("\ufdfa", "\ufdfb")


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


def token_features(sequence: Sequence[Token], names: frozenset[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Per token the buckets of the token itself, and of it with those that follow. `names`: hashes of first names."""
    texts = [("NAME" if crc32(token.text.encode()) in names else token.text) for token in sequence]
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for index, token in enumerate(sequence):
        own = pieces(token.text) if token.kind in _PIECED else (bucket("w " + token.text),)
        if texts[index] != token.text:
            own = (*own, bucket("w NAME"))
        together = [bucket(f"2 {texts[index]} {following}") for following in texts[index + 1 : index + 2]]
        if index + 2 < len(texts):
            first, second, third = texts[index : index + 3]
            together.append(bucket(f"3 {first} {second} {third}" if token.kind == "far" else f"s {first} {third}"))
        rows.append((own, tuple(together)))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    text: str
    origin: tuple[int, ...] | range  # one more than there are characters: the last is the original's length


def fold(text: str) -> Folded:
    if _PLAIN.match(text):
        return Folded(text=text, origin=range(len(text) + 1))
    pieces: list[str] = []
    origin: list[int] = []
    base = ""
    for index, character in enumerate(text):
        plain = _plain(character)
        if not plain or (_is_stacked(character) and _takes_no_marks(base)):
            continue
        base = plain[-1]
        pieces.append(plain)
        origin.extend([index] * len(plain))
    plain_text = "".join(pieces)
    if _DISGUISED.search(plain_text):  # the same length: only letters within words that are partly Latin change
        plain_text = _WORD.sub(lambda match: _latin(match.group()), plain_text)
    return Folded(text=plain_text, origin=(*origin, len(text)))


@lru_cache(maxsize=8192)
def _plain(character: str) -> str:
    """What one character comes to; nothing for what cannot be seen."""
    if character in _LONE_LOOKALIKES:
        return _LONE_LOOKALIKES[character]
    if unicodedata.category(character) in {"Cf", "Cs", "Co", "Cn"} or _ARABIC_MARKS.match(character):
        return ""
    if "\ufe00" <= character <= "\ufe0f" or character in "\u0640\u034f\u115f\u1160\u3164\uffa0":
        return ""
    plain = unicodedata.normalize("NFKC", character)
    return "".join(_unmarked(part) for part in plain)


def _unmarked(character: str) -> str:
    """A Latin or Greek letter without its accents; other scripts need theirs."""
    decomposed = unicodedata.normalize("NFD", character)
    return decomposed[0] if len(decomposed) > 1 and _takes_no_marks(decomposed[0]) else character


def _is_stacked(character: str) -> bool:
    return "\u0300" <= character <= "\u036f" or "\u20d0" <= character <= "\u20ff"


def _takes_no_marks(base: str) -> bool:
    return base < "\u0400" or base in "\u2190\u2191"


def _latin(word: str) -> str:
    strange = sum("\u0370" <= character <= "\u052f" for character in word)
    return word.translate(_LOOKALIKES) if 0 < strange < len(word) else word


def words(text: str) -> list[str]:
    return _SPOKEN_WORD.findall(_compatibility_form(text))


def holds_one_of(text: str, phrases: Iterable[str]) -> bool:
    """Whether a text of any length holds one of the phrases.

    Whatever has not even the letters of a phrase is not taken apart: that is most of the work.
    """
    letters = _letters(text)
    possible = [phrase for phrase in phrases if _letters(phrase) <= letters]
    plain = _compatibility_form(text) if possible else ""
    likely = [phrase for phrase in possible if all(word in plain for word in words(phrase))]
    joined = side_by_side(_SPOKEN_WORD.findall(plain)) if likely else ""
    return any(holds_phrase(joined, phrase) for phrase in likely)


def _compatibility_form(text: str) -> str:
    if not text.isascii():
        for letter in _SENTENCES:
            text = text.replace(letter, " ")
        text = unicodedata.normalize("NFKC", text)
    return text.casefold()


def _letters(text: str) -> set[str]:
    """What its words are made of, taken apart as far as it goes: a letter and its accent are two."""
    different = set(text).difference(_SENTENCES)
    plain = unicodedata.normalize("NFKC", "".join(different)).casefold()
    return {letter for letter in unicodedata.normalize("NFKD", plain) if letter.isalnum()}


def side_by_side(texts: Iterable[str]) -> str:
    """Words in the form in which phrases are looked for."""
    return f" {' '.join(texts)} "


def holds_phrase(joined: str, phrase: str) -> bool:
    """Whether the words of a phrase stand in `side_by_side` words, in order."""
    needed = words(phrase)
    return bool(needed) and side_by_side(needed) in joined
