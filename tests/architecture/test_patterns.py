"""Patterns mean the same on every supported Python, and take time that is linear in the text."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.architecture import patterns
from tests.architecture.source import ROOT

# As they were, on the event loop, before a message of 4,000 characters held every door for three minutes.
GREW = {
    "orders, cubic": r"\b[a-z]+\d+[a-z\d]+\s+\w?\d+\s+[a-z\d]*\d[a-z\d]*\b",
    "orders, dots": r"(?im)(?:^|[.!?;…])\W*(?:finance\W+)*finance\b\W*?(?:only\W*?)?(?:$|[.!?;…])",
    "orders, rules": r"(?i)(?:instru\w*|rules?)[^.\n]{0,12}?(?:ignor\w*|forget)",
    "clauses": r"(?:[,;:.\s)]\s*)(?:[-–—]\s*)?(?=(?:also|btw)\b)|\s+[-–—]+\s+",
    "borders": r"(?:[.!?…]+[\"')]*(?:\s+|$))|\n+",
    "a block": r"(?s)\A\s*```(?:json)?\s*\n(?P<inside>.*)\n```\s*\Z",
    "the end of a script": r"(?i)</\s*script[^>]*>",
    "names of secrets": r"(?i)\b([\w-]*(?:password|secret|token))([\"']?\s*[:=]\s*)\S+",
    "web tokens": r"\beyJ[\w-]+\.[\w-]+\.[\w-]*",
    "exponential": r"(?:\n\s*)+x",
}
SOON = ("orders, cubic", "a block", "the end of a script", "web tokens", "exponential")  # seen within two seconds
STAYS = (r"\b[a-z]+\d[a-z\d]+\s+\w?\d+\s+[a-z]*\d[a-z\d]*\b", r"(?<!\s)\s+(?:and|or)\s+", r"<b>[^<>]{0,60}</b>")


def measured(*given: str) -> dict[str, Any]:
    """In a process of its own: modules that were imported compile nothing, and timers are the tests' own."""
    command = [sys.executable, "-m", "tests.architecture.pattern_growth", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", [(), pytest.param(("--all",), marks=pytest.mark.heavy)], ids=["new", "all"])
def test_no_pattern_takes_more_than_linear_time(which: tuple[str, ...]) -> None:
    result = measured(*which)

    assert result["patterns"] > 150, "nearly all are found"
    assert result["unseen"] == [], "a pattern that only a running program knows cannot be measured"
    assert result["too_fast"] == []
    assert which or result["measured"] < 40, "run: python -m tests.architecture.pattern_growth --record"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", [SOON, pytest.param(tuple(GREW), marks=pytest.mark.heavy)], ids=["soon", "all"])
def test_the_measure_sees_what_grows(names: tuple[str, ...]) -> None:
    result = measured(*(GREW[name] for name in names), *STAYS)

    places = [complaint.partition(":")[0] for complaint in result["too_fast"]]
    assert places == [f"argument {number}" for number in range(1, len(names) + 1)], result


@pytest.mark.slow
def test_no_pattern_means_something_else_on_another_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert patterns.main() == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ('re.compile(r"[^`]++`")', "a possessive repeat"),
        ('re.sub(r"(?:a|b)*+c", "", text)', "a possessive repeat"),
        ('re.search("x?+y", text)', "a possessive repeat"),
        ('re.search(rb"x{1,3}+y", data)', "a possessive repeat"),
        ('_PART = r"a++"\nre.compile(rf"(?:{_PART})|{other}")', "a possessive repeat"),
        ('re.compile("""  (?> a | b )  # either""", re.VERBOSE)', "an atomic group"),
        ('pytest.raises(ValueError, match=r"(?>a)b")', "an atomic group"),
        ('re.compile("|".join(parts) + r"a++")', "a possessive repeat"),
    ],
)
def test_what_early_pythons_misread_is_refused(code: str, what: str) -> None:
    [complaint] = patterns.complaints_of(code)

    assert what in complaint


def test_a_plus_that_is_no_possessive_repeat_is_not() -> None:
    assert patterns.complaints_of(r're.compile(r"a\++[+*]+(?:b+)+ \{3\}+ (?P<x>y)")') == []
