"""Long messages become parts: where they are cut, and that nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from butlers.channels.telegram.simulator.formatting import format_text
from butlers.channels.telegram.text import LIMIT, Marked, is_boundary, marked, parts, split, utf16_length


def texts(message: str, limit: int = LIMIT) -> list[str]:
    return [part.text for part in parts(message, limit=limit)]


def html(message: str, limit: int) -> list[str | None]:
    return [part.html for part in parts(message, limit=limit)]


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_what_fits_is_one_part() -> None:
    assert texts("x" * 4096) == ["x" * 4096]
    assert texts("😀" * 2048) == ["😀" * 2048]
    assert texts(f"**{'x' * 4096}**") == ["x" * 4096], "markup does not count"
    assert texts("&" * 4096) == ["&" * 4096], "nor do escapes"
    assert texts("  x" + " " * 5000) == ["x"]
    assert texts(" \n ") == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("one two.\n\nthree\nfour five", ["one two.", "three\nfour five"]),
        ("one two.\n\nthree four\nfive six seven", ["one two.", "three four", "five six seven"]),
        ("one two three four", ["one two three", "four"]),
        ("aaa\u00a0bbbb cccc\u00a0ddddd", ["aaa\u00a0bbbb", "cccc\u00a0ddddd"]),
        ("one two.\r\n\r\nthree\r\nfour five", ["one two.", "three", "four five"]),
        ("abcdefghijklmnopqrst", ["abcdefghijklmno", "pqrst"]),
        ("one two.\n\nabcdefghijklmnopqrst", ["one two.", "abcdefghijklmno", "pqrst"]),
        ("hi\n\nabcdefghijklmnopqrstuvwxyz", ["hi\n\nabcdefghijk", "lmnopqrstuvwxyz"]),
    ],
)
def test_the_best_seam_is_taken(message: str, expected: list[str]) -> None:
    assert texts(message, 15) == expected


def test_a_surrogate_pair_stays_whole() -> None:
    assert texts("x" + "😀" * 4, 4) == ["x😀", "😀😀", "😀"]


@pytest.mark.parametrize(
    "cluster", ["e\u0301", "👨\u200d💻", "👍🏽", "🇩🇪", "❤\ufe0f", "각", "\u1100\u1161\u11a8", "🏴\U000e0067"]
)
def test_what_a_reader_sees_as_one_character_stays_whole(cluster: str) -> None:
    for part in texts("x" + cluster * 20, 12):
        assert re.fullmatch(f"x?({cluster})+", part)


def test_a_character_too_long_for_a_part_is_cut_all_the_same() -> None:
    assert "".join(texts("e" + "\u0301" * 30, 8)) == "e" + "\u0301" * 30


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("some text **bold words**", ["some text", "<b>bold words</b>"]),
        ("some text `a b c d`", ["some text", "<code>a b c d</code>"]),
        ("some text [a b c](http://e.org)", ["some text", '<a href="http://e.org">a b c</a>']),
        ("text:\n```\na b\n\nc d e\n```", ["text:", "<pre>a b\n\nc d e</pre>"]),
        ("字字字字字字字字字**重重重重重重重**", ["字字字字字字字字字", "<b>重重重重重重重</b>"]),
    ],
)
def test_a_span_that_fits_is_not_cut(message: str, expected: list[str]) -> None:
    assert html(message, 12) == expected


def test_a_span_that_does_not_fit_is_closed_and_opened_again() -> None:
    assert html("**one two three four**", 10) == ["<b>one two</b>", "<b>three four</b>"]
    assert html("[one two three](http://e.org)", 10) == [
        '<a href="http://e.org">one two</a>',
        '<a href="http://e.org">three</a>',
    ]


def test_code_is_cut_between_lines_and_keeps_its_indentation_and_language() -> None:
    assert html("```py\nif x:\n    y = 1\n    z = 2\n```", 18) == [
        '<pre><code class="language-py">if x:\n    y = 1</code></pre>',
        '<pre><code class="language-py">    z = 2</code></pre>',
    ]


def test_no_part_has_more_spans_than_telegram_shows() -> None:
    for message in ("**a** " * 250, "`a`-" * 250, f"[a](http://e.org/{'x' * 1500}) " * 30):
        found = split(marked(message), LIMIT)
        assert all(len(part.spans) <= 100 for part in found)
        assert sum(len(part.spans) for part in found) == len(marked(message).spans)
    assert all(len((part.html or "").encode()) < 32_000 for part in parts(f"[a](http://e.org/{'&' * 2000}) " * 30))


ALPHABET = "ab1 \n\t*`_[]()<&é😀\u0301\u200d🇩🇪\r"
MESSAGES = st.lists(
    st.sampled_from(
        [
            *("word ", "long" * 5, "\n", "\n\n", "**bold text** ", "**b**", "`co de`", "```\nblock of\n  code\n```\n"),
            *("[a link](https://e.org)", "😀", "👨\u200d💻", "e\u0301", "🇩🇪", "<tag>", "&", "  ", "**", "`"),
        ]
    )
    | st.text(ALPHABET, max_size=8),
    max_size=40,
).map("".join)


@given(MESSAGES, st.integers(min_value=2, max_value=60))
@example("```\n" + " " * 10 + "\nx\n```", 4)
def test_nothing_is_lost_and_no_part_is_too_long(message: str, limit: int) -> None:
    found = texts(message, limit)
    assert squeezed("".join(found)) == squeezed(marked(message).text)
    assert all(1 <= utf16_length(text) <= limit and text.strip() for text in found)


@given(MESSAGES, st.integers(min_value=2, max_value=60))
def test_each_part_stands_for_itself(message: str, limit: int) -> None:
    for part in parts(message, limit=limit):
        shown = format_text(part.html, "HTML", None)
        assert shown.text == part.text
        assert utf16_length(part.plain) <= limit


@given(MESSAGES, st.integers(min_value=20, max_value=60))
def test_spans_that_fit_are_found_whole(message: str, limit: int) -> None:
    whole = marked(message)
    found = split(whole, limit)
    fitting = [s for s in whole.spans if utf16_length(whole.text[s.begin : s.end]) <= limit]
    cuts = sum(len(part.spans) for part in found) - len(whole.spans)
    if len(fitting) == len(whole.spans) and not _glued_across_spans(whole):
        blank = sum(not whole.text[s.begin : s.end].strip() for s in whole.spans)
        assert -blank <= cuts <= 0


def _glued_across_spans(whole: Marked) -> bool:
    """A character that begins inside a span and ends outside: then one of the two has to be cut."""
    edges = {edge for span in whole.spans for edge in (span.begin, span.end)}
    return any(not is_boundary(whole.text, edge) for edge in edges)


@given(st.text(ALPHABET, max_size=300), st.integers(min_value=8, max_value=40))
def test_without_a_parse_mode_the_text_itself_is_split(message: str, limit: int) -> None:
    found = parts(message, parse_mode="none", limit=limit)
    assert squeezed("".join(part.plain for part in found)) == squeezed(message)
    assert all(part.html is None and utf16_length(part.plain) <= limit for part in found)


CLUSTERS = ["a", "e\u0301\u0327", "👨\u200d💻", "👍🏽", "🇩🇪", "\u1100\u1161\u11a8", "ก\u0e33", "1\ufe0f\u20e3", "字"]


@given(st.lists(st.sampled_from(CLUSTERS), max_size=80), st.integers(min_value=7, max_value=30))
def test_no_cut_goes_through_what_a_reader_sees_as_one_character(clusters: list[str], limit: int) -> None:
    edges, place = {0}, 0
    for cluster in clusters:
        edges.add(place := place + len(cluster))
    cuts, place = set(), 0
    for text in texts("".join(clusters), limit):
        cuts.add(place := place + len(text))
    assert cuts <= edges
    assert max(cuts, default=0) == max(edges)


@pytest.mark.parametrize(
    "message",
    [
        "**a " * 9000,
        "`a " * 9000,
        " ```py\n" * 5000,
        "[a](http" * 5000,
        "\n" * 50_000 + "x",
        "🇩" * 9000,
        "**a** " * 5000,
    ],
)
@pytest.mark.timeout(10)
def test_hostile_messages_take_no_longer_than_others(message: str) -> None:
    assert squeezed("".join(texts(message))) == squeezed(marked(message).text)
