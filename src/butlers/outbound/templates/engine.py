"""The template engine: Liquid for values, MJML for the layout of mail, CSS written into the tags.

It runs in a worker process (`renderer`) and nowhere else. Liquid's own limits bound loops and output, but not the work
of a filter (`replace` can square the length of a text), and the MJML parser overflows the stack of its process on deep
nesting.

Nothing is read from elsewhere: templates cannot include others, `mj-include` finds no loader, style sheets are not
fetched, and the HTML names no web font. There is no clock and no chance, so equal input gives equal output.
"""

from __future__ import annotations

import json
import unicodedata
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import css_inline
import mrml
from liquid import BoundTemplate, Environment, FalsyStrictUndefined, Undefined
from liquid.exceptions import LiquidError, LiquidSyntaxError, ResourceLimitError, UndefinedError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOST_ITERATIONS: Final = 10_000  # of nested loops, multiplied
LONGEST_OUTPUT: Final = 1024 * 1024  # bytes of one part before MJML
LARGEST_LOCALS: Final = 512 * 1024  # bytes of what a template assigns
TAGS: Final = _words("content output illegal if unless case for break continue assign capture comment #")
FILTERS: Final = _words(
    """
    abs append at_least at_most capitalize ceil compact concat default divided_by downcase escape first floor join
    last lstrip map minus modulo newline_to_br plus prepend remove remove_first replace replace_first reverse round
    rstrip size slice sort split strip strip_newlines sum times truncate truncatewords uniq upcase url_encode where
    """
)
_MARKUP: Final = ("mjml", "html")  # parts whose values are escaped
_LINE_BREAKS: Final = frozenset({"Cc", "Zl", "Zp", "Cs"})  # controls, line and paragraph separators, lone surrogates
# Per type: a value that a trial shows, and one that it hides. A number is 1 in both: templates divide by numbers.
_SAMPLES: Final[Mapping[str, tuple[Any, Any]]] = {
    "string": ("x", ""),
    "number": (1, 1),
    "boolean": (True, False),
    "list": ([{}], []),
    "object": ({}, {}),
}

Parts = Mapping[str, str]  # subject, text, and mjml or html


class Refused(Exception):
    """A part cannot be parsed or rendered; the words quote no value of a variable."""

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(f"{part} {problem}")
        self.part = part
        self.problem = problem


class _Environment(Environment):
    loop_iteration_limit = MOST_ITERATIONS
    output_stream_limit = LONGEST_OUTPUT
    local_namespace_limit = LARGEST_LOCALS

    def setup_tags_and_filters(self, *, extra: bool = False) -> None:
        """Only what is listed: no includes, no `safe`, no `date` with its clock, no encodings."""
        super().setup_tags_and_filters(extra=extra)
        self.tags = {name: tag for name, tag in self.tags.items() if name in TAGS}
        self.filters = {name: function for name, function in self.filters.items() if name in FILTERS}


@cache
def _environment(*, escapes: bool, strict: bool) -> Environment:
    # A name that is missing may be asked for (`if`, `default`), but not shown.
    return _Environment(autoescape=escapes, undefined=FalsyStrictUndefined if strict else Undefined)


class ParsedSources:
    """Parsed sources by their text, the latest ones: what is rendered is what the caller brought, whatever its id.

    A parsed source takes some 150 times the memory of its text, so their length is limited and not their number.
    """

    def __init__(self, most_characters: int = 100_000) -> None:
        self._most = most_characters
        self._held: OrderedDict[tuple[str, bool], BoundTemplate] = OrderedDict()
        self.characters = 0

    def get(self, source: str, *, escapes: bool) -> BoundTemplate:
        key = (source, escapes)
        if (held := self._held.get(key)) is not None:
            self._held.move_to_end(key)
            return held
        parsed = _environment(escapes=escapes, strict=True).from_string(source)
        self._held[key] = parsed
        self.characters += len(source)
        while self.characters > self._most:
            (text, _), _ = self._held.popitem(last=False)
            self.characters -= len(text)
        return parsed


@cache
def _parsed_sources() -> ParsedSources:
    """Of this process."""
    return ParsedSources()


def render_document(data: bytes) -> dict[str, Any]:
    """`{parts, variables}` -> `{parts: {subject, text, html}}`, or `{refused: {part, problem}}`."""
    given = json.loads(data)
    try:
        return {"parts": _rendered(given["parts"], given["variables"], strict=True)}
    except Refused as refusal:
        return {"refused": {"part": refusal.part, "problem": refusal.problem}}


def examine_document(data: bytes) -> dict[str, Any]:
    """`{parts, types}` -> `{names: {part: [name]}}`, or `{refused: {part, problem}}`.

    With types of variables it also renders the parts twice with samples, so that MJML which cannot become HTML is
    refused when it is stored and not when it is sent.
    """
    given = json.loads(data)
    try:
        names = {part: _names(part, source) for part, source in given["parts"].items()}
        if given["types"] is not None:
            for hidden in (False, True):
                samples = {name: _SAMPLES[kind][hidden] for name, kind in given["types"].items()}
                _try(given["parts"], samples)
    except Refused as refusal:
        return {"refused": {"part": refusal.part, "problem": refusal.problem}}
    return {"names": names}


def _names(part: str, source: str) -> list[str]:
    """The names that a source takes from outside."""
    try:
        parsed = _environment(escapes=part in _MARKUP, strict=True).from_string(source)
        analysis = parsed.analyze(include_partials=False)
    except LiquidError as error:
        raise Refused(part, _syntax(error)) from error
    except RecursionError as error:
        raise Refused(part, "is nested too deeply") from error
    if unknown := sorted(analysis.filters.keys() - FILTERS):
        raise Refused(part, f"uses the filter {unknown[0]}, which templates do not have")
    return sorted(analysis.globals)


def _try(parts: Parts, samples: Mapping[str, Any]) -> None:
    try:
        _rendered(parts, samples, strict=False)
    except Refused as refusal:
        # A sample that a filter cannot use is not the template's fault; a limit that it exceeds is.
        cause = refusal.__cause__
        if not isinstance(cause, LiquidError) or isinstance(cause, ResourceLimitError):
            raise


def _rendered(parts: Parts, variables: Mapping[str, Any], *, strict: bool) -> dict[str, str]:
    done = {}
    for part, source in parts.items():
        text = _filled(part, source, variables, strict=strict)
        match part:
            case "subject":
                done["subject"] = _one_line(text)
            case "mjml":
                done["html"] = _inlined(part, _laid_out(text))
            case "html":
                done["html"] = _inlined(part, text)
            case _:
                done[part] = text
    return done


def _filled(part: str, source: str, variables: Mapping[str, Any], *, strict: bool) -> str:
    try:
        escapes = part in _MARKUP
        lax = None if strict else _environment(escapes=escapes, strict=False).from_string(source)
        return (lax or _parsed_sources().get(source, escapes=escapes)).render(dict(variables))
    except MemoryError:
        raise
    except UndefinedError as error:
        raise Refused(part, f"needs a value that is missing: {error.message}") from error
    except ResourceLimitError as error:
        raise Refused(part, f"goes beyond a limit: {error.message}") from error
    except LiquidSyntaxError as error:
        raise Refused(part, _syntax(error)) from error
    except LiquidError as error:  # the message of the library may quote a value
        raise Refused(part, "has a filter or a loop that cannot use its value") from error
    except RecursionError as error:
        raise Refused(part, "is nested too deeply") from error
    except (ValueError, ArithmeticError, TypeError) as error:
        raise Refused(part, f"cannot be rendered ({type(error).__name__})") from error


def _syntax(error: LiquidError) -> str:
    context = error.context() if error.token is not None else None
    where = f" in line {context[0]}" if context is not None else ""
    return f"is not valid Liquid{where}: {error.message}"


def _laid_out(source: str) -> str:
    parser = mrml.ParserOptions(include_loader=mrml.noop_loader())
    try:
        return mrml.to_html(source, parser, mrml.RenderOptions(fonts={})).content
    except (OSError, ValueError) as error:
        raise Refused("mjml", f"is not valid MJML: {error}") from error


def _inlined(part: str, html: str) -> str:
    """With the rules of style tags in the tags that they are about; what needs a rule (media queries) stays one."""
    inliner = css_inline.CSSInliner(load_remote_stylesheets=False, keep_at_rules=True)
    try:
        return inliner.inline(html)
    except (css_inline.InlineError, ValueError) as error:
        raise Refused(part, f"has styles that cannot be read: {error}") from error


def _one_line(text: str) -> str:
    printable = "".join(" " if unicodedata.category(c) in _LINE_BREAKS else c for c in text)
    return " ".join(printable.split())
