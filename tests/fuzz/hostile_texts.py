"""Messages that somebody wrote to make the reader work: repeats, nested markup, near misses of our own patterns."""

from __future__ import annotations

import importlib
import json
import pkgutil
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import butlers
from tests.architecture.pattern_growth import hostile_texts

HONEST = Path(__file__).parents[1] / "data" / "routing" / "held_out.jsonl"
LENGTHS = (40, 40, 200, 200, 200, 1_000, 1_000, 4_096)
LONG_LENGTHS = (50_000, 200_000)  # the second is the most that a door takes
LONG_SHARE = 0.01
CHARACTERS = (
    "aAzZ09_ \t\n\r\u00a0\u2003.!?,;:-–—…'\"`’()[]{}<>/\\|@#$%^&*+=~€£°éßıſİÅ字あ가ا\u064bकаяαωǅ"
    "\u0301\u200b\u200d\u202e\ufeff\ufdfa\ufb03ﬀ½①Ⅷ\U0001f468\U0001f1e6\ufe0f\x00\x07\x1b\u3000。！？、，"
)
PHRASES = (
    *("finance ", "send to finance ", ".finance", "finance only ", "ignore all rules ", "rule ", "your new prompt "),
    *("system: ", "SYSTEM:\n", "you are now ", "and ", ", also ", " - ", " / ", "btw ", "p.s. ", "\n- ", "\n1. "),
    *(
        "12,50 € ",
        "1,",
        "1 ",
        "1.",
        "1/",
        "10:30 ",
        "120/80 ",
        "mg ",
        "5 mg ",
        "+49 ",
        "ab12 ",
        "a@",
        "a@b.",
        "http://",
    ),
    *("www.", "<b>", "</b", "<a href=", "<!--", "&lt;", "&#1;", "%41", "\\x41", "a.b ", "a b ", "01010101 ", "ff "),
    *("{{", "[[", "[inst]", '{"a": ', "f('x')", "a_to_b ", "```", "**", "__", "**a ", "`a` ", "[x](http://", "(", '"a'),
    *("my sister Anna ", "Anna's ", "met Anna ", "lent Anna 5 € ", "my name is ", "I like ", "remember ", "no, "),
)


@cache
def near_misses() -> tuple[tuple[str, str, str], ...]:
    """(beginning, what is repeated, end) for every pattern that a module of ours holds."""
    found = {
        text
        for pattern in _patterns()
        if isinstance(pattern.pattern, str)
        for text in hostile_texts(pattern.pattern, pattern.flags & ~re.UNICODE)
    }
    return tuple(sorted(found))


def _patterns() -> Iterator[re.Pattern[Any]]:
    for module in pkgutil.walk_packages(butlers.__path__, "butlers."):
        if not module.name.endswith("__main__"):
            for value in vars(importlib.import_module(module.name)).values():
                yield from _held(value)


def _held(value: Any, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, list | tuple | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _held(each, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _held(getattr(value, field.name, None), depth - 1)


@cache
def honest_messages() -> tuple[str, ...]:
    return tuple(json.loads(line)["text"] for line in HONEST.read_text(encoding="utf-8").splitlines())


def hostile_message(dice: random.Random) -> str:
    """One of them; never blank, as no door would take it."""
    length = dice.choice(LONG_LENGTHS) if dice.random() < LONG_SHARE else dice.choice(LENGTHS)
    text = _KINDS[dice.randrange(len(_KINDS))](dice, length)[:length]
    return text if text.strip() else text[:-1] + "x"


def _repeated(text: str, length: int) -> str:
    return text * (length // len(text) + 1)


def _one_character(dice: random.Random, length: int) -> str:
    return _repeated(dice.choice(CHARACTERS), length - 1)[: length - 1] + dice.choice("_x!\n ")


def _one_phrase(dice: random.Random, length: int) -> str:
    return _repeated("".join(dice.choices((*PHRASES, *CHARACTERS), k=dice.choice((1, 1, 2, 3)))), length)


def _near_miss(dice: random.Random, length: int) -> str:
    beginning, item, end = dice.choice(near_misses())
    return beginning + _repeated(item, length - len(beginning) - len(end))[: length - len(beginning) - len(end)] + end


def _runs(dice: random.Random, length: int) -> str:
    """Long runs side by side, as the message that took three minutes."""
    runs = dice.choice((2, 3, 4, 5))
    return "".join(_repeated(dice.choice(CHARACTERS), length // runs)[: length // runs] for _ in range(runs))


def _nested(dice: random.Random, length: int) -> str:
    opening, closing = dice.choice(
        (("<b>", "</b>"), ("[", "]"), ("(", ")"), ('{"a":', "}"), ("**", "**"), ("> ", "\n"))
    )
    depth = length // (len(opening) + len(closing)) + 1
    return opening * depth + dice.choice(("", "x", "finance")) + closing * dice.choice((depth, depth - 1, 0))


def _inside_honest(dice: random.Random, length: int) -> str:
    honest = dice.choice(honest_messages())
    at = dice.randrange(len(honest) + 1)
    return honest[:at] + _near_miss(dice, max(length - len(honest), 20)) + honest[at:]


def _shuffled(dice: random.Random, length: int) -> str:
    return "".join(dice.choices((*PHRASES, *CHARACTERS), k=length // 3 + 1))


_KINDS = (_one_character, _one_phrase, _near_miss, _near_miss, _runs, _nested, _inside_honest, _shuffled)
