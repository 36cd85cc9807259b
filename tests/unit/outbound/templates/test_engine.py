"""The engine itself: what Liquid may do here, what is escaped, and what is fetched (nothing)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butlers.outbound.templates.engine import (
    FILTERS,
    MOST_ITERATIONS,
    TAGS,
    ParsedSources,
    examine_document,
    render_document,
)
from tests.unit.outbound.templates.given import MJML


def rendered(parts: dict[str, str], **variables: Any) -> dict[str, str]:
    answer = render_document(json.dumps({"parts": parts, "variables": variables}).encode())
    assert "parts" in answer, answer
    done: dict[str, str] = answer["parts"]
    return done


def text_of(source: str, **variables: Any) -> str:
    return rendered({"text": source}, **variables)["text"]


def refusal(parts: dict[str, str], **variables: Any) -> str:
    answer = render_document(json.dumps({"parts": parts, "variables": variables}).encode())
    assert "refused" in answer, answer
    return f"{answer['refused']['part']} {answer['refused']['problem']}"


def examined(parts: dict[str, str], types: dict[str, str] | None = None) -> dict[str, Any]:
    return examine_document(json.dumps({"parts": parts, "types": types}).encode())


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_are_those_that_come_from_outside() -> None:
    source = (
        "{% assign total = price | times: count %}{{ total }}"
        "{% for line in lines %}{{ line.title }} {{ forloop.index }}{% endfor %}"
        "{% if paid %}{{ person.name }}{% endif %}{% comment %}{{ unused }}{% endcomment %}"
    )
    assert examined({"text": source}) == {"names": {"text": ["count", "lines", "paid", "person", "price"]}}


def test_the_clock_is_not_a_name_that_templates_have() -> None:
    assert examined({"text": "{{ now }} {{ today }}"}) == {"names": {"text": ["now", "today"]}}


@pytest.mark.parametrize(
    "source",
    ["{% include 'x' %}", "{% render 'x' %}", "{% increment n %}", "{% tablerow i in l %}{% endtablerow %}"],
)
def test_tags_that_are_not_listed_are_refused(source: str) -> None:
    assert "unexpected tag" in examined({"text": source})["refused"]["problem"]


@pytest.mark.parametrize("name", ["safe", "date", "base64_decode", "strip_html", "escapejs", "nonesuch"])
def test_filters_that_are_not_listed_are_refused_when_a_template_is_stored_and_do_nothing_when_it_is_not(
    name: str,
) -> None:
    source = f"{{{{ a | {name} }}}}"
    assert examined({"text": source})["refused"]["problem"] == f"uses the filter {name}, which templates do not have"
    assert "cannot use its value" in refusal({"text": source}, a="x")


def test_the_lists_name_what_the_library_has() -> None:
    from liquid import Environment

    shipped = Environment()
    assert shipped.tags.keys() >= TAGS
    assert shipped.filters.keys() >= FILTERS


@pytest.mark.parametrize("source", ["{{ a", "{% if %}", "{{ }}", "{% for %}{% endfor %}", "{% if a %}" * 50, "{%"])
def test_what_is_not_liquid_is_refused_in_words(source: str) -> None:
    assert examined({"text": source})["refused"]["problem"].startswith("is not valid Liquid")


# --- values ----------------------------------------------------------------------------------------------------------


def test_a_missing_part_of_an_object_may_be_asked_for_but_not_shown() -> None:
    assert text_of("{% if o.nick %}!{% endif %}{{ o.nick | default: 'you' }}", o={}) == "you"
    assert refusal({"text": "{{ o.nick }}"}, o={}) == "text needs a value that is missing: o.nick is undefined"


def test_a_refusal_quotes_no_value() -> None:
    for source in ("{{ 1 | divided_by: a }}", "{% for i in (1..a) %}{% endfor %}{{ a | slice: a }}"):
        assert "s3cret" not in refusal({"text": source}, a="s3cret")


def test_a_subject_is_one_line_whatever_its_values_are() -> None:
    subject = rendered({"subject": "Hi {{ name }}", "text": "x"}, name="A\r\nBcc: b@c\u2028d\x0be\x00f")["subject"]
    assert subject == "Hi A Bcc: b@c d e f"


def test_nested_loops_are_counted_together() -> None:
    inner = "{% for j in (1..200) %}x{% endfor %}"
    assert "loop iteration limit" in refusal({"text": f"{{% for i in (1..200) %}}{inner}{{% endfor %}}"})
    assert len(text_of(f"{{% for i in (1..{MOST_ITERATIONS // 200}) %}}{inner}{{% endfor %}}")) == MOST_ITERATIONS


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in (1..9000) %}{{ a }}{% endfor %}",
        "{% assign b = a %}" + "{% assign b = b | append: b %}" * 30,
        "{% capture b %}{% for i in (1..9000) %}{{ a }}{% endfor %}{% endcapture %}",
    ],
)
def test_output_and_memory_of_a_template_are_limited(source: str) -> None:
    assert "goes beyond a limit" in refusal({"text": source}, a="x" * 1_000)


@given(st.text())
def test_text_is_not_escaped_and_html_is(value: str) -> None:
    plain = value.replace("\r\n", "\n").replace("\r", "\n")
    assert text_of("{{ v }}", v=value) == plain
    html = rendered(
        {"text": "x", "html": "<html><head></head><body><p title='{{ v }}'>{{ v }}</p></body></html>"}, v=value
    )
    assert tags_of(html["html"]) == ["html", "head", "body", "p"]


@given(st.text(alphabet="<>&\"'{}%/!-[] abmjtextscriptonload=", max_size=60))
def test_no_value_makes_a_tag_or_an_attribute_in_mail(value: str) -> None:
    harmless = rendered({"mjml": MJML}, name="x", lines=[])["html"]
    assert tags_of(rendered({"mjml": MJML}, name=value, lines=[])["html"]) == tags_of(harmless)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


def tags_of(html: str) -> list[str]:
    parser = _Tags()
    parser.feed(html)
    return parser.seen


def test_parsed_sources_are_held_up_to_a_length() -> None:
    held = ParsedSources(most_characters=100)
    first = held.get("{{ a }}", escapes=False)
    assert held.get("{{ a }}", escapes=False) is first
    assert held.get("{{ a }}", escapes=True) is not first
    for number in range(50):
        held.get(f"{number:>40}", escapes=False)
        assert held.characters <= 100
    assert held.get("{{ a }}", escapes=False) is not first
    assert held.get("x" * 1_000, escapes=False) is not held.get("x" * 1_000, escapes=False)


# --- mail ------------------------------------------------------------------------------------------------------------


def test_mjml_becomes_html_with_its_styles_in_the_tags() -> None:
    styled = MJML.replace("<mj-body>", "<mj-head><mj-style>.big td { color: red }</mj-style></mj-head><mj-body>")
    html = rendered({"mjml": styled}, name="A & B", lines=[{"title": "<tea>", "price": 2}])["html"]
    assert html.startswith("<!doctype html>") or html.startswith("<!DOCTYPE html>")
    assert "Hello A &amp; B" in html
    assert "&lt;tea&gt;: 2" in html
    assert "border-collapse: collapse" in html  # of the layout's own style tag
    assert "@media" in html  # what needs a rule stays one


def test_equal_input_gives_equal_output() -> None:
    both = [rendered({"mjml": MJML, "text": "{{ name }}"}, name="Ann", lines=[]) for _ in range(2)]
    assert both[0] == both[1]


def test_mjml_that_is_none_is_refused_when_it_is_stored() -> None:
    broken = {"text": "x", "mjml": "<mjml><mj-body>{% if b %}<mj-text>{% endif %}</mj-body></mjml>"}
    assert examined(broken)["names"]["mjml"] == ["b"]
    assert "is not valid MJML" in examined(broken, {"b": "boolean"})["refused"]["problem"]


def test_a_trial_does_not_blame_a_template_for_its_samples() -> None:
    source = "{{ 1 | divided_by: o.count }}{% for i in l %}{{ i.a.b | upcase }}{% endfor %}{{ s | times: n }}"
    assert "names" in examined({"text": source}, {"o": "object", "l": "list", "s": "string", "n": "number"})


def test_a_trial_finds_a_loop_that_can_never_end_well() -> None:
    assert "loop iteration" in examined({"text": "{% for i in (1..99999) %}{% endfor %}"}, {})["refused"]["problem"]


@contextmanager
def unvisited_server() -> Iterator[int]:
    """The port of a server that no client may have come to by the end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        yield listener.getsockname()[1]
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_includes_are_not_followed(tmp_path: Path) -> None:
    own = tmp_path / "part.mjml"
    own.write_text("<mj-text>from a file</mj-text>", encoding="utf-8")
    with unvisited_server() as port:
        for path in (own, f"file://{own}", f"http://127.0.0.1:{port}/part.mjml"):
            source = f'<mjml><mj-body><mj-include path="{path}"/></mj-body></mjml>'
            assert "unable to load included template" in refusal({"mjml": source})


def test_style_sheets_are_not_loaded(tmp_path: Path) -> None:
    sheet = tmp_path / "style.css"
    sheet.write_text("p { color: red }", encoding="utf-8")
    with unvisited_server() as port:
        for address in (sheet, f"file://{sheet}", f"http://127.0.0.1:{port}/style.css"):
            html = (
                f'<html><head><link rel="stylesheet" href="{address}"><style>@import url("{address}");</style></head>'
                "<body><p>x</p></body></html>"
            )
            shown = rendered({"html": html})["html"]
            assert "<p>x</p>" in shown
            assert "<link" not in shown


def test_the_html_of_mjml_names_no_address_of_its_own() -> None:
    html = rendered({"mjml": MJML}, name="x", lines=[])["html"]
    assert "http" not in html.replace("http://www.w3.org/", "").replace("http-equiv", "")
    assert "@import" not in html
