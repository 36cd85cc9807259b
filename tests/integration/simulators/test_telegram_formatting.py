"""Parse modes, entities and the length of a message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.telegram.simulator.formatting import format_text, parse_markdown_v2
from butlers.channels.telegram.simulator.model import ApiError
from butlers.channels.telegram.text import utf16_length

READABLE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(str.strip)


def shown(text: str, mode: str) -> tuple[str, list[tuple[Any, ...]]]:
    formatted = format_text(text, mode, None)
    return formatted.text, [(e["type"], e["offset"], e["length"]) for e in formatted.entities]


def problem(text: str, mode: str | None = None, entities: Any = None) -> str:
    with pytest.raises(ApiError) as caught:
        format_text(text, mode, entities)
    assert caught.value.code == 400
    return caught.value.description


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("HTML", "a <b>bold</b> &lt;x&gt;", ("a bold <x>", [("bold", 2, 4)])),
        ("HTML", "<b>one <i>two</i></b>", ("one two", [("bold", 0, 7), ("italic", 4, 3)])),
        ("HTML", '<a href="https://e.org/?a=1">x</a> a & b', ("x a & b", [("text_link", 0, 1)])),
        ("HTML", '<span class="tg-spoiler">s</span>', ("s", [("spoiler", 0, 1)])),
        ("HTML", '<pre><code class="language-py">x = 1</code></pre>', ("x = 1", [("pre", 0, 5)])),
        ("HTML", "😀<u>x</u>", ("😀x", [("underline", 2, 1)])),
        ("MarkdownV2", r"*b* _i_ __u__ ~s~ ||p||", ("b i u s p", [
            ("bold", 0, 1), ("italic", 2, 1), ("underline", 4, 1), ("strikethrough", 6, 1), ("spoiler", 8, 1),
        ])),
        ("MarkdownV2", r"1\.5 \- 2\!", ("1.5 - 2!", [])),
        ("MarkdownV2", "*a _b_*", ("a b", [("bold", 0, 3), ("italic", 2, 1)])),
        ("MarkdownV2", "`a.b` ```py\nx-1```", ("a.b x-1", [("code", 0, 3), ("pre", 4, 3)])),
        ("MarkdownV2", r"[x\.y](https://e.org/a_b)", ("x.y", [("text_link", 0, 3)])),
        ("MarkdownV2", ">a\n>b\nc", ("a\nb\nc", [("blockquote", 0, 3)])),
        ("Markdown", "*b* _i_ `c` [x](http://e.org) 1.5!", ("b i c x 1.5!", [
            ("bold", 0, 1), ("italic", 2, 1), ("code", 4, 1), ("text_link", 6, 1),
        ])),
        ("Markdown", r"snake\_case", ("snake_case", [])),
        ("html", "  <b>x</b>  ", ("x", [("bold", 0, 1)])),
    ],
)  # fmt: skip
def test_markup_becomes_text_and_entities(mode: str, text: str, expected: object) -> None:
    assert shown(text, mode) == expected


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [
        ("HTML", "<b>x", 'Can\'t find end tag corresponding to start tag "b"'),
        ("HTML", "<b>x</i>", 'Unmatched end tag at byte offset 4, expected "</b>", found "</i>"'),
        ("HTML", "é <blink>x</blink>", 'Unsupported start tag "blink" at byte offset 3'),
        ("HTML", "1 < 2", "Unclosed start tag at byte offset 2"),
        ("HTML", "x</b>", "Unexpected end tag at byte offset 1"),
        ("MarkdownV2", "Done.", r"Character '.' is reserved and must be escaped with the preceding '\'"),
        ("MarkdownV2", "a-b", r"Character '-' is reserved and must be escaped with the preceding '\'"),
        ("MarkdownV2", "a > b", r"Character '>' is reserved and must be escaped with the preceding '\'"),
        ("MarkdownV2", "é *x", "Can't find end of Bold entity at byte offset 3"),
        ("MarkdownV2", "*a _b*", "Can't find end of Bold entity at byte offset 5"),
        ("MarkdownV2", "`x", "Can't find end of Code entity at byte offset 0"),
        ("MarkdownV2", "[x](http://e", "Can't find end of a URL at byte offset 3"),
        ("Markdown", "snake_case", "Can't find end of the entity starting at byte offset 5"),
    ],
)
def test_broken_markup_is_refused(mode: str, text: str, reason: str) -> None:
    assert problem(text, mode) == f"Bad Request: can't parse entities: {reason}"


@pytest.mark.parametrize(
    "entity",
    [
        {"type": "bold", "offset": 0, "length": 4},
        {"type": "bold", "offset": 4, "length": 1},
        {"type": "bold", "offset": -1, "length": 1},
        {"type": "bold", "offset": 0, "length": 0},
        {"type": "bold", "offset": 1, "length": 1},
        {"type": "bold", "offset": 0, "length": "1"},
        {"type": "shouting", "offset": 0, "length": 1},
        "bold",
    ],
)
def test_entities_must_lie_within_the_text(entity: object) -> None:
    assert problem("😀x", None, [entity]).startswith("Bad Request: can't parse entities: ")


def test_entities_that_fit_are_kept() -> None:
    entity = {"type": "bold", "offset": 2, "length": 1}
    assert format_text("😀x", None, [entity]).entities == (entity,)


def test_length_is_counted_in_utf16_units() -> None:
    assert utf16_length(format_text("😀" * 2048, None, None).text) == 4096
    assert problem("😀" * 2048 + "x") == "Bad Request: message is too long"
    assert problem("x" * 4097) == "Bad Request: message is too long"


def test_references_are_read_in_attributes_too() -> None:
    (entity,) = format_text('<a href="https://e.org/?a=1&amp;b=2">x</a>', "HTML", None).entities
    assert entity["url"] == "https://e.org/?a=1&b=2"


def test_white_space_in_front_goes_up_to_the_first_entity() -> None:
    assert shown(" \n <pre>  x</pre> ", "HTML") == ("  x", [("pre", 0, 3)])
    assert shown("  x <b> y </b> ", "HTML") == ("x  y", [("bold", 2, 2)])
    assert problem("<pre>  </pre>", "HTML") == "Bad Request: message text is empty"


def test_no_more_than_a_hundred_entities_are_shown() -> None:
    formatted = format_text("<b>a</b> " * 150, "HTML", None)
    assert (len(formatted.entities), len(formatted.text)) == (100, 299)


def test_length_is_counted_without_the_markup() -> None:
    assert len(format_text(f"<b>{'x' * 4096}</b>", "HTML", None).text) == 4096


@given(READABLE)
def test_escaped_text_comes_out_as_it_went_in(text: str) -> None:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert format_text(escaped, "HTML", None).text == text.strip()
    reserved = r"_*[]()~`>#+-=|{}.!" + "\\"
    slashed = "".join(f"\\{character}" if character in reserved else character for character in text)
    assert parse_markdown_v2(slashed).text == text


@given(st.text(alphabet="ab😀*_~`[]()<>/&;|\\\n!.-", max_size=30), st.sampled_from(["HTML", "Markdown", "MarkdownV2"]))
def test_any_text_is_either_shown_or_refused_and_entities_always_fit(text: str, mode: str) -> None:
    try:
        formatted = format_text(text, mode, None)
    except ApiError as error:
        assert error.code == 400
        return
    for entity in formatted.entities:
        assert entity["length"] > 0
        assert 0 <= entity["offset"] <= utf16_length(formatted.text) - entity["length"]
