"""The parse mode HTML: a fixed set of tags, properly nested, and four named character references."""

from __future__ import annotations

import re
from dataclasses import dataclass

from butlers.channels.telegram.simulator.formatting.text import Builder, Formatted, byte_offset, cannot_parse

_TAG = re.compile(r"""<(/?)([a-zA-Z0-9-]*)(?![a-zA-Z0-9-])((?:[^<>"']|"[^"]*"|'[^']*')*)>""")
_ATTRIBUTE = re.compile(r"""(?<![a-zA-Z-])([a-zA-Z-]+)\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+)""")
_REFERENCE = re.compile(r"&(lt|gt|amp|quot|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"'}

_SIMPLE_KINDS = {
    **dict.fromkeys(("b", "strong"), "bold"),
    **dict.fromkeys(("i", "em"), "italic"),
    **dict.fromkeys(("u", "ins"), "underline"),
    **dict.fromkeys(("s", "strike", "del"), "strikethrough"),
    "tg-spoiler": "spoiler",
    "code": "code",
    "pre": "pre",
    "blockquote": "blockquote",
}
_TAGS = frozenset({*_SIMPLE_KINDS, "a", "span", "tg-emoji"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    tag: str
    attributes: dict[str, str]
    since: int  # UTF-16 units
    mark: int  # where its text begins in the builder
    bare: bool  # the attribute "expandable" stands without a value


def parse_html(source: str) -> Formatted:
    builder = Builder()
    opened: list[_Open] = []
    position = 0
    while position < len(source):
        begin = source.find("<", position)
        stop = len(source) if begin < 0 else begin
        builder.add(_dereference(source[position:stop]))
        position = stop if begin < 0 else _tag(source, begin, builder, opened)
    if opened:
        raise cannot_parse(f'Can\'t find end tag corresponding to start tag "{opened[-1].tag}"')
    return builder.build()


def _dereference(text: str) -> str:
    return _REFERENCE.sub(_dereferenced, text)


def _dereferenced(found: re.Match[str]) -> str:
    name = found[1]
    if name in _NAMED:
        return _NAMED[name]
    code = int(name[2:], 16) if name[1] == "x" else int(name[1:])
    printable = 0 < code < 0x110000 and not 0xD800 <= code < 0xE000
    return chr(code) if printable else found[0]


def _tag(source: str, begin: int, builder: Builder, opened: list[_Open]) -> int:
    """Read the tag that begins here; the position after it."""
    found = _TAG.match(source, begin)
    if found is None:
        raise cannot_parse(f"Unclosed start tag at byte offset {byte_offset(source, begin)}")
    closing, tag, rest = found[1], found[2].lower(), found[3]
    if closing:
        _close(source, begin, tag, builder, opened)
    else:
        opened.append(_start(source, begin, tag, rest, builder))
    return found.end()


def _start(source: str, begin: int, tag: str, rest: str, builder: Builder) -> _Open:
    attributes = {name.lower(): _dereference(value.strip("\"'")) for name, value in _ATTRIBUTE.findall(rest)}
    spoiler = tag == "span" and attributes.get("class") == "tg-spoiler"
    if tag not in _TAGS or (tag == "span" and not spoiler):
        raise cannot_parse(f'Unsupported start tag "{tag}" at byte offset {byte_offset(source, begin)}')
    bare = "expandable" in rest.split()
    return _Open(tag=tag, attributes=attributes, since=builder.length, mark=builder.mark(), bare=bare)


def _close(source: str, begin: int, tag: str, builder: Builder, opened: list[_Open]) -> None:
    if not opened:
        raise cannot_parse(f"Unexpected end tag at byte offset {byte_offset(source, begin)}")
    start = opened.pop()
    if tag not in ("", start.tag):
        raise cannot_parse(
            f"Unmatched end tag at byte offset {byte_offset(source, begin)}, "
            f'expected "</{start.tag}>", found "</{tag}>"'
        )
    _cover(builder, start, opened)


def _cover(builder: Builder, start: _Open, around: list[_Open]) -> None:
    if start.tag == "a":
        url = start.attributes.get("href") or builder.text_since(start.mark)
        builder.cover("text_link", start.since, url=url)
    elif start.tag == "tg-emoji":
        builder.cover("custom_emoji", start.since, custom_emoji_id=start.attributes.get("emoji-id", ""))
    elif start.tag == "code" and around and around[-1].tag == "pre" and "class" in start.attributes:
        # <pre><code class="language-x">: one entity, the language belongs to the pre around it.
        around[-1].attributes["language"] = start.attributes["class"].removeprefix("language-")
    else:
        extra = {"language": start.attributes["language"]} if "language" in start.attributes else {}
        builder.cover(_kind(start), start.since, **extra)


def _kind(start: _Open) -> str:
    if start.tag == "blockquote" and start.bare:
        return "expandable_blockquote"
    return _SIMPLE_KINDS.get(start.tag, "spoiler")
