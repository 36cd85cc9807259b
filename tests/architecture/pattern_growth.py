"""How the work of a pattern grows with hostile text, measured on texts that are derived from the pattern itself.

For each place in a pattern where something repeats, the texts are what leads there, the repeated part many times, and
an end that does not fit; then each kind of character that the pattern names, alone and between such ends; then
beginnings of what it matches, one after the other:

    [.!?]\\W*finance     ".........."   ". . . . . "   ".finance.finance"   "!!!!!!!!!!_"

A text of 4 n must take less than twice what is linear, compared with a text of n; half the length and an eighth of it
tell most of them apart. Times are of the processor, the least of several; a suspicion is measured again before it is
held against a pattern, and what takes next to nothing is not counted. Run as a program it prints as JSON what grows too
fast:

    python -m tests.architecture.pattern_growth             patterns of src that MEASURED does not name
    python -m tests.architecture.pattern_growth --all       every pattern of src: a minute of the processor
    python -m tests.architecture.pattern_growth --record    every pattern, and writes MEASURED anew
    python -m tests.architecture.pattern_growth PATTERN ... those

How a pattern grows depends on the pattern alone, so the default suite measures what is new, and the heavy one all.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tests.architecture.patterns import ROOT, Found, every_pattern, parsed

MEASURED = ROOT / "tests" / "data" / "measured_patterns.txt"  # digests of patterns that were found linear, one a line

LONG, SHORT = 4_096, 1_024  # characters
FLOOR_S = 0.000_8  # for the long text; what takes less is not counted
LIMIT_S = 1.0  # on the wall's clock; what takes longer is stopped, and a thousand times too slow
MOST_GROWTH = 8.0  # linear is 4, quadratic is 16
ROUNDS = 4  # of suspicion; what is slow beyond doubt needs no more than two
SLOW_S = 0.03
REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
FEW = 40  # times; a repeat with a smaller bound cannot make much of a text
KINDS = "a1 _A\n\t.-é字"  # characters of every kind, for classes that name none
ENDS = ("", "_", "\x00", " !")
MOST_STARTS = 90  # beginnings that are repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A place where something repeats: what leads there, and what is repeated."""

    before: str
    item: str


# --- texts -----------------------------------------------------------------------------------------------------------


def hostile_texts(pattern: str | bytes, flags: int = 0) -> list[tuple[str, str, str]]:
    """(beginning, what is repeated, end) of each text."""
    tree = parsed(pattern, flags)
    repeats = list(dict.fromkeys(_repeats(tree, "")))
    kinds = list(dict.fromkeys((*_kinds(tree), *KINDS)))
    texts = [(each.before, each.item, end) for each in repeats if each.item for end in ENDS]
    texts += [(each.before, kind, end) for each in repeats[:12] for kind in kinds[:10] for end in ENDS[:2]]
    texts += [("", kind, end) for kind in kinds for end in ENDS]
    texts += [("", one + other, end) for one in kinds[:8] for other in " .\n-" for end in ENDS[:2]]
    texts += [("", start, "") for start in _starts(repeats)]
    return list(dict.fromkeys(texts))


def _starts(repeats: list[Repeat]) -> list[str]:
    starts = [each.before + each.item * times for each in repeats for times in (0, 1, 2)]
    starts += [start + between for between in " -" for start in starts]
    return [start for start in dict.fromkeys(starts) if start][:MOST_STARTS]


def _inside(kind: str, argument: Any) -> list[Any]:
    """The trees that a node holds."""
    if kind in REPEATS:
        return [argument[2]]
    if kind == "BRANCH":
        return list(argument[1])
    if kind == "SUBPATTERN":
        return [argument[3]]
    if kind in ("ASSERT", "ASSERT_NOT"):
        return [argument[1]]
    return [argument] if kind == "ATOMIC_GROUP" else []


def _repeats(tree: Any, before: str) -> Iterator[Repeat]:
    """Every repeat of a tree, also those inside of others, with a text that leads to it."""
    for name, argument in tree:
        kind = str(name)
        if kind in REPEATS and argument[1] > FEW:
            yield Repeat(before=before, item=_sample(argument[2]))
        for inner in _inside(kind, argument):
            yield from _repeats(inner, before)
        before += _sample_of(kind, argument)


def _sample(tree: Any) -> str:
    """A text that the tree matches, or nearly."""
    return "".join(_sample_of(str(name), argument) for name, argument in tree)


def _sample_of(kind: str, argument: Any) -> str:
    if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        return next(_characters(kind, argument), "a")
    if kind in REPEATS:
        return _sample(argument[2]) * min(max(int(argument[0]), 1), FEW)
    # What is only looked at is no part of a text.
    return _sample(_inside(kind, argument)[0]) if kind in ("SUBPATTERN", "BRANCH", "ATOMIC_GROUP") else ""


def _characters(kind: str, argument: Any) -> Iterator[str]:
    """Characters that a node of one character matches."""
    if kind == "LITERAL":
        yield chr(argument)
    elif kind == "IN":
        yield from _members(argument)
    elif kind in ("NOT_LITERAL", "ANY"):
        yield "b" if argument == ord("a") else "a"


def _members(items: Any) -> Iterator[str]:
    """Characters of a class: those of every kind that belong to it, then those that it names."""
    single = re._compiler.compile(_as_tree(items))  # type: ignore[attr-defined]
    yield from (kind for kind in KINDS if single.match(kind))
    for name, argument in items:
        if str(name) in ("LITERAL", "RANGE"):
            letter = chr(argument if str(name) == "LITERAL" else argument[0])
            if single.match(letter):
                yield letter


def _as_tree(items: Any) -> Any:
    tree = parsed("")
    tree.data = [(re._constants.IN, list(items))]  # type: ignore[attr-defined]
    return tree


def _kinds(tree: Any) -> Iterator[str]:
    """Characters of every class that a tree names."""
    for name, argument in tree:
        yield from islice(_characters(str(name), argument), 6)
        for inner in _inside(str(name), argument):
            yield from _kinds(inner)


# --- times -----------------------------------------------------------------------------------------------------------


def _find_all(pattern: re.Pattern[Any], text: Any) -> None:
    deque(pattern.finditer(text), maxlen=0)


def _match_whole(pattern: re.Pattern[Any], text: Any) -> None:
    pattern.fullmatch(text)


WAYS: tuple[Callable[[re.Pattern[Any], Any], None], ...] = (_find_all, _match_whole)


def _stop(_signal: int, _frame: Any) -> None:
    raise TimeoutError


def seconds(way: Callable[[re.Pattern[Any], Any], None], pattern: re.Pattern[Any], text: Any) -> float:
    """Of the processor; without end when it had to be stopped."""
    # A timer of the processor's time would make its clock coarse.
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    began = time.process_time()
    try:
        way(pattern, text)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeoutError:
        return math.inf
    return time.process_time() - began


def growth(found: Found) -> str | None:
    """What makes the pattern work more than its length; None when nothing does."""
    pattern = found.compiled()
    for beginning, item, end in hostile_texts(found.pattern, found.flags):
        for way in WAYS:
            times = _suspicious(way, pattern, (beginning, item, end))
            if times is not None:
                shown = f"{beginning[:60]!r} + {item[:60]!r} x n + {end!r}"
                return f"{found.place}: {times} on {shown} ({way.__name__.strip('_')})"
    return None


def _suspicious(
    way: Callable[[re.Pattern[Any], Any], None], pattern: re.Pattern[Any], parts: tuple[str, str, str]
) -> str | None:
    if _is_linear_at_a_glance(way, pattern, parts):
        return None
    long, short = (_text(parts, size, pattern) for size in (LONG, SHORT))
    slow, fast = seconds(way, pattern, long), 0.0
    if slow < FLOOR_S:
        return None
    if slow == math.inf:
        return f"more than {LIMIT_S:g} s for {len(long)} characters"
    for _ in range(ROUNDS if slow < SLOW_S else 2):
        slow = min(slow, *(seconds(way, pattern, long) for _ in range(2)))
        if slow < FLOOR_S:
            return None
        fast = min(seconds(way, pattern, short) for _ in range(3))
        if slow < MOST_GROWTH * fast:
            return None
    return f"{fast * 1000:.2f} ms for {len(short)} characters, {slow * 1000:.2f} ms for {len(long)}"


def _is_linear_at_a_glance(
    way: Callable[[re.Pattern[Any], Any], None], pattern: re.Pattern[Any], parts: tuple[str, str, str]
) -> bool:
    """Most texts need no more than this: half the length, and an eighth of it."""
    half = seconds(way, pattern, _text(parts, LONG // 2, pattern))
    if half < FLOOR_S / 4:  # quadratic or not, the long text takes less than its floor
        return True
    if half == math.inf:
        return False
    eighth = min(seconds(way, pattern, _text(parts, LONG // 8, pattern)) for _ in range(2))
    return half < 1.5 * 4 * eighth


def _text(parts: tuple[str, str, str], size: int, pattern: re.Pattern[Any]) -> str | bytes:
    beginning, item, end = parts
    text = beginning + item * (size // len(item)) + end
    return text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text


def too_fast(patterns: list[Found]) -> list[str]:
    signal.signal(signal.SIGALRM, _stop)
    gc.disable()
    return [complaint for found in patterns if (complaint := growth(found)) is not None]


def digest(found: Found) -> str:
    text = found.pattern if isinstance(found.pattern, str) else found.pattern.decode("latin-1")
    kind = type(found.pattern).__name__
    return hashlib.sha256(f"{kind} {found.flags} {text}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


def main(arguments: list[str]) -> int:
    if arguments and not arguments[0].startswith("--"):
        given = [Found(place=f"argument {index}", pattern=text) for index, text in enumerate(arguments, start=1)]
        print(json.dumps({"too_fast": (complaints := too_fast(given))}))
        return bool(complaints)
    patterns, unseen = every_pattern()
    known = set() if arguments else set(MEASURED.read_text(encoding="ascii").split())
    fresh = [found for found in patterns if digest(found) not in known]
    complaints = too_fast(fresh)
    if arguments == ["--record"] and not complaints:
        MEASURED.write_text("".join(f"{line}\n" for line in sorted(map(digest, patterns))), encoding="ascii")
    counts = {"patterns": len(patterns), "measured": len(fresh)}
    print(json.dumps(counts | {"unseen": unseen, "too_fast": complaints}))
    return bool(complaints or unseen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
