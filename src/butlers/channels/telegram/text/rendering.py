"""Marked text in Telegram's HTML, and as text that needs no markup."""

from __future__ import annotations

import html
from collections import defaultdict
from itertools import pairwise

from butlers.channels.telegram.text.markup import Kind, Marked, Span


def as_html(marked: Marked) -> str:
    opening: defaultdict[int, str] = defaultdict(str)
    closing: defaultdict[int, str] = defaultdict(str)
    for span in marked.spans:
        opened, closed = _tags(span)
        opening[span.begin] += opened
        closing[span.end] = closed + closing[span.end]
    edges = sorted({0, len(marked.text), *opening, *closing})
    written = [closing[0] + opening[0]]
    for begin, end in pairwise(edges):
        written += [html.escape(marked.text[begin:end], quote=False), closing[end], opening[end]]
    return "".join(written)


def as_plain(marked: Marked) -> str:
    """Without any style; where a link leads is said behind its text."""
    written, position = [], 0
    for link in (span for span in marked.spans if span.kind is Kind.LINK):
        label = marked.text[link.begin : link.end]
        address = "" if label == link.detail else f" ({link.detail})"
        written += [marked.text[position : link.begin], label, address]
        position = link.end
    return "".join((*written, marked.text[position:]))


def _tags(span: Span) -> tuple[str, str]:
    match span.kind:
        case Kind.BOLD:
            return "<b>", "</b>"
        case Kind.CODE:
            return "<code>", "</code>"
        case Kind.PRE if span.detail:
            return f'<pre><code class="language-{html.escape(span.detail)}">', "</code></pre>"
        case Kind.PRE:
            return "<pre>", "</pre>"
        case Kind.LINK:
            return f'<a href="{html.escape(span.detail)}">', "</a>"
