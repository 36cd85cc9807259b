"""Which Markdown is rendered, and what stays as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.channels.telegram.simulator.formatting import format_text
from butlers.channels.telegram.text import marked, parts


def html(message: str) -> str:
    (part,) = parts(message)
    assert part.html is not None
    return part.html


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("**bold** text", "<b>bold</b> text"),
        ("(**bold**)", "(<b>bold</b>)"),
        ("这是**重点**内容", "这是<b>重点</b>内容"),
        ("**a*b**", "<b>a*b</b>"),
        ("run `a<b`!", "run <code>a&lt;b</code>!"),
        ("```x < y```", "<pre>x &lt; y</pre>"),
        ("```\nx = 1\n```", "<pre>x = 1</pre>"),
        ("[fin] ```py\n  x**2**3\n```\nso", '[fin] <pre><code class="language-py">  x**2**3</code></pre>\nso'),
        ("```\r\nx\r\n```", "<pre>x</pre>"),
        ("[x](https://e.org/?a=1&b=2)", '<a href="https://e.org/?a=1&amp;b=2">x</a>'),
        ("[x](https://e.org/a_(b))", '<a href="https://e.org/a_(b)">x</a>'),
        ("**see [x](http://e.org)**", '<b>see <a href="http://e.org">x</a></b>'),
        ("[**x**](http://e.org)", '<a href="http://e.org"><b>x</b></a>'),
        ("[`x`](http://e.org)", '<a href="http://e.org">x</a>'),
        ("**a `c` b**", "<b>a </b><code>c</code><b> b</b>"),
        ("**`c`**", "<code>c</code>"),
    ],
)
def test_light_markdown_is_rendered(message: str, expected: str) -> None:
    assert html(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        *("2*3*4", "2**3**4", "a ** b ** c", "snake_case_names", "__init__", "_so_", "*so*", "***so***"),
        *("**unmatched", "unmatched**", "`unmatched", "it`s and it`s", "``a``", "```", "```py\nx = 1", "``` ```"),
        *("f(**a, **b)", "f(**a,**b)", r"\**a**", r"\`a`", "**a\nb**", "`a\nb`", "# Title\n- one\n* two\n1. three"),
        *("[x](ftp://e.org)", "[x](javascript:alert)", "[x](http://localhost:1/a)", "[x](http://[::1)", "[ ](http://e.org)"),
        *("![x](http://e.org)", "[x] (http://e.org)", "[x](http://e.org y)", f"[x](http://e.org/{'y' * 2100})", "[x]"),
        *("https://e.org/a_b_c?x=**", "~~gone~~", "> quote", "| a | b |", "` `"),
    ],
)  # fmt: skip
def test_everything_else_is_kept(message: str) -> None:
    assert marked(message).text == message
    assert marked(message).spans == ()


def test_what_html_would_read_is_escaped() -> None:
    assert html("a < b && c > <b>d</b>") == "a &lt; b &amp;&amp; c &gt; &lt;b&gt;d&lt;/b&gt;"


def test_as_plain_text_a_link_says_where_it_leads() -> None:
    (part,) = parts("**see** [x](http://e.org) and [http://e.org](http://e.org)")
    assert part.plain == "see x (http://e.org) and http://e.org"


def test_plain_text_that_would_grow_too_long_stays_the_text() -> None:
    (part,) = parts("[" + "x" * 4090 + "](http://e.org)")
    assert part.plain == part.text


LIKELY = st.text(alphabet="ab 1\n*`_[]()<>&\"'\\!#é😀", max_size=60) | st.lists(
    st.sampled_from(
        ["**", "`", "```", "\n", " ", "a", "word", "[x](http://e.org)", "[", "](", "http://e.org", ")", "<b>", "&lt;"]
    ),
    max_size=30,
).map("".join)


@given(LIKELY)
def test_telegram_reads_the_html_as_it_was_meant(message: str) -> None:
    whole = marked(message)
    for part in parts(message):
        shown = format_text(part.html, "HTML", None)
        assert shown.text == part.text
    kinds = {"bold", "code", "pre", "text_link"}
    assert {span.kind.value for span in whole.spans} <= {"bold", "code", "pre", "link"}
    assert all(e["type"] in kinds for p in parts(message) for e in format_text(p.html, "HTML", None).entities)


@given(LIKELY)
def test_reading_takes_away_markers_and_addresses_only(message: str) -> None:
    kept = iter(message)
    assert all(character in kept for character in marked(message).text), "the text is what is left of the message"


@given(LIKELY)
def test_spans_nest_or_are_apart(message: str) -> None:
    spans = marked(message).spans
    assert list(spans) == sorted(spans, key=lambda span: (span.begin, -span.end))
    assert all(span.begin < span.end for span in spans)
    for one in spans:
        for other in spans:
            assert not one.begin < other.begin < one.end < other.end, "crossing"
