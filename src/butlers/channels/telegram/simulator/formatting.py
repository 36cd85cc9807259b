"""From what a bot sends (text, parse mode, entities) to what a chat shows (plain text and entities)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from butlers.channels.telegram.simulator.model import ApiError, Wire, bad_request
from butlers.channels.telegram.text import utf16_length

SHOWN_KINDS = frozenset(
    {
        *("mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number"),
        *("bold", "italic", "underline", "strikethrough", "spoiler", "blockquote", "expandable_blockquote"),
        *("code", "pre", "text_link", "text_mention", "custom_emoji"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    text: str
    entities: tuple[Wire, ...] = ()


def byte_offset(source: str, index: int) -> int:
    return len(source[:index].encode())


def cannot_parse(what: str) -> ApiError:
    return bad_request(f"can't parse entities: {what}")


class Builder:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self._entities: list[Wire] = []
        self.length = 0  # UTF-16 units so far

    def add(self, text: str) -> None:
        self._parts.append(text)
        self.length += utf16_length(text)

    def at_line_start(self) -> bool:
        last = next((part for part in reversed(self._parts) if part), "\n")
        return last.endswith("\n")

    def cover(self, kind: str, since: int, **extra: str) -> None:
        """An entity from `since` to here; an empty one is not shown."""
        if self.length > since:
            self._entities.append({"type": kind, "offset": since, "length": self.length - since, **extra})

    def text_since(self, mark: int) -> str:
        return "".join(self._parts[mark:])

    def mark(self) -> int:
        return len(self._parts)

    def build(self) -> Formatted:
        return Formatted(text="".join(self._parts), entities=_ordered(self._entities))


def _ordered(entities: Iterable[Wire]) -> tuple[Wire, ...]:
    return tuple(sorted(entities, key=lambda entity: (entity["offset"], -entity["length"])))


def trimmed(formatted: Formatted) -> Formatted:
    """Without the white space around, up to the first entity; entities keep to what is left."""
    units = [entity["offset"] for entity in formatted.entities]
    lead = utf16_length(formatted.text) - utf16_length(formatted.text.lstrip())
    lead = min([lead, *units])  # white space lies in the basic plane: units are characters here
    text = formatted.text[lead:].rstrip()
    if text == formatted.text:
        return formatted
    clipped = (_clipped(entity, lead, utf16_length(text)) for entity in formatted.entities)
    return Formatted(text=text, entities=tuple(entity for entity in clipped if entity["length"] > 0))


def _clipped(entity: Wire, lead: int, length: int) -> Wire:
    start = max(0, entity["offset"] - lead)
    end = min(length, entity["offset"] - lead + entity["length"])
    return entity | {"offset": start, "length": end - start}


def given_entities(text: str, entities: Any) -> Formatted:
    if entities is None:
        return Formatted(text=text)
    if not isinstance(entities, list):
        raise cannot_parse("expected an Array of MessageEntity")
    return Formatted(text=text, entities=_ordered(_checked(text, entity) for entity in entities))


def _checked(text: str, entity: Any) -> Wire:
    if not isinstance(entity, dict) or entity.get("type") not in SHOWN_KINDS:
        raise cannot_parse("unsupported type of MessageEntity")
    offset, length = _unit(entity, "offset"), _unit(entity, "length")
    if length == 0 or offset + length > utf16_length(text):
        raise cannot_parse(f"entity with incorrect length {length} at offset {offset}")
    boundaries = {0, *accumulate(utf16_length(character) for character in text)}
    if offset not in boundaries or offset + length not in boundaries:
        raise cannot_parse("entity begins or ends in a middle of a UTF-16 symbol")
    return entity


def _unit(entity: dict[str, Any], name: str) -> int:
    value = entity.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise cannot_parse(f"entity with incorrect {name}")
    return value


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
    def character(found: re.Match[str]) -> str:
        name = found[1]
        if name in _NAMED:
            return _NAMED[name]
        code = int(name[2:], 16) if name[1] == "x" else int(name[1:])
        printable = 0 < code < 0x110000 and not 0xD800 <= code < 0xE000
        return chr(code) if printable else found[0]

    return _REFERENCE.sub(character, text)


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
        folded = start.tag == "blockquote" and start.bare
        kind = "expandable_blockquote" if folded else _SIMPLE_KINDS.get(start.tag, "spoiler")
        builder.cover(kind, start.since, **extra)


_MARKS = "_*`["
_FENCE = "```"
_KINDS = {"_": "italic", "*": "bold", "`": "code", _FENCE: "pre"}


def parse_markdown(source: str) -> Formatted:
    builder, at = Builder(), 0
    while at < len(source):
        character = source[at]
        if character == "\\" and at + 1 < len(source) and source[at + 1] in _MARKS:
            builder.add(source[at + 1])
            at += 2
        elif character == "[":
            at = _link(source, at, builder)
        elif character in _MARKS:
            at = _marked(source, at, _FENCE if source.startswith(_FENCE, at) else character, builder)
        else:
            builder.add(character)
            at += 1
    return builder.build()


def _marked(source: str, at: int, mark: str, builder: Builder) -> int:
    begin = at + len(mark)
    end = _end(source, mark, begin, at)
    since = builder.length
    language, text = split_language(source[begin:end]) if mark == _FENCE else ("", source[begin:end])
    builder.add(text)
    builder.cover(_KINDS[mark], since, **({"language": language} if language else {}))
    return end + len(mark)


def _end(source: str, mark: str, begin: int, opened_at: int) -> int:
    found = source.find(mark, begin)
    if found < 0:
        raise cannot_parse(f"Can't find end of the entity starting at byte offset {byte_offset(source, opened_at)}")
    return found


def split_language(block: str) -> tuple[str, str]:
    first, newline, below = block.partition("\n")
    if newline and first and not first.isspace() and " " not in first:
        return first, below
    return ("", below) if newline and not first else ("", block)


def _link(source: str, at: int, builder: Builder) -> int:
    end = _end(source, "]", at + 1, at)
    since = builder.length
    builder.add(source[at + 1 : end])
    if not source.startswith("(", end + 1):
        return end + 1
    close = _end(source, ")", end + 2, at)
    builder.cover("text_link", since, url=source[end + 2 : close])
    return close + 1


_RESERVED = frozenset("_*[]()~`>#+-=|{}.!")
_SPANS = {"__": "underline", "||": "spoiler", "_": "italic", "*": "bold", "~": "strikethrough"}
_NAMES = {
    "underline": "Underline",
    "spoiler": "Spoiler",
    "italic": "Italic",
    "bold": "Bold",
    "strikethrough": "Strikethrough",
    "text_link": "TextUrl",
    "custom_emoji": "CustomEmoji",
    "code": "Code",
    "pre": "Pre",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSpan:
    kind: str
    since: int  # UTF-16 units
    mark: int  # where its text begins in the builder
    at: int  # where the mark stands in the source


def parse_markdown_v2(source: str) -> Formatted:
    return _Parser(source).parse()


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._builder = Builder()
        self._opened: list[_OpenSpan] = []
        self._quote_since: int | None = None
        self._quote_kind = "blockquote"

    def parse(self) -> Formatted:
        while self._at < len(self._source):
            self._step()
        if self._opened:
            raise self._no_end(self._opened[-1].kind, self._opened[-1].at)
        self._end_quote()
        return self._builder.build()

    def _step(self) -> None:
        character = self._source[self._at]
        if character == "\\" and self._at + 1 < len(self._source) and "\0" < self._source[self._at + 1] < "\x7f":
            self._literal(self._source[self._at + 1], 2)
        elif character == "\n":
            self._newline()
        elif character in _RESERVED:
            self._markup(character)
        else:
            self._literal(character, 1)

    def _literal(self, text: str, width: int) -> None:
        self._builder.add(text)
        self._at += width

    def _newline(self) -> None:
        if not self._source.startswith(">", self._at + 1):
            self._end_quote()
        self._literal("\n", 1)

    def _markup(self, character: str) -> None:
        if character == "`":
            self._code()
        elif character == ">" and self._builder.at_line_start():
            self._begin_quote()
        elif character == "[" or self._source.startswith("![", self._at):
            self._open("text_link" if character == "[" else "custom_emoji", 1 if character == "[" else 2)
        elif character == "]" and self._top() in ("text_link", "custom_emoji"):
            self._link()
        else:
            self._span(character)

    def _span(self, character: str) -> None:
        mark = next((mark for mark in _SPANS if self._source.startswith(mark, self._at)), None)
        if mark is None:
            raise cannot_parse(f"Character '{character}' is reserved and must be escaped with the preceding '\\'")
        if mark == "||" and self._folds_quote():
            self._quote_kind = "expandable_blockquote"
            self._at += 2
        elif self._top() == _SPANS[mark]:
            span = self._opened.pop()
            self._builder.cover(span.kind, span.since)
            self._at += len(mark)
        else:
            self._open(_SPANS[mark], len(mark))

    def _open(self, kind: str, width: int) -> None:
        self._opened.append(_OpenSpan(kind=kind, since=self._builder.length, mark=self._builder.mark(), at=self._at))
        self._at += width

    def _top(self) -> str | None:
        return self._opened[-1].kind if self._opened else None

    def _link(self) -> None:
        link = self._opened.pop()
        self._at += 1
        url = self._builder.text_since(link.mark)
        if self._source.startswith("(", self._at):
            url = self._url()
        if link.kind == "text_link":
            self._builder.cover("text_link", link.since, url=url)
        else:
            self._builder.cover("custom_emoji", link.since, custom_emoji_id=url.rpartition("id=")[2])

    def _url(self) -> str:
        begin = self._at
        self._at += 1
        url = self._raw_until(")")
        if url is None:
            raise cannot_parse(f"Can't find end of a URL at byte offset {byte_offset(self._source, begin)}")
        return url

    def _code(self) -> None:
        begin, since = self._at, self._builder.length
        fence = _FENCE if self._source.startswith(_FENCE, begin) else "`"
        kind = "pre" if fence == _FENCE else "code"
        self._at += len(fence)
        raw = self._raw_until(fence)
        if raw is None:
            raise self._no_end(kind, begin)
        language, code = split_language(raw) if kind == "pre" else ("", raw)
        self._builder.add(code)
        self._builder.cover(kind, since, **({"language": language} if language else {}))

    def _raw_until(self, end: str) -> str | None:
        """Text in which only the backslash and the end mean something; leaves the position after the end."""
        parts: list[str] = []
        while self._at < len(self._source):
            if self._source.startswith(end, self._at):
                self._at += len(end)
                return "".join(parts)
            self._at += self._source[self._at] == "\\" and self._at + 1 < len(self._source)
            parts.append(self._source[self._at])
            self._at += 1
        return None

    def _begin_quote(self) -> None:
        if self._quote_since is None:
            self._quote_since, self._quote_kind = self._builder.length, "blockquote"
        self._at += 1

    def _folds_quote(self) -> bool:
        rest = self._source[self._at + 2 :]
        return self._quote_since is not None and self._top() != "spoiler" and (not rest or rest[0] == "\n")

    def _end_quote(self) -> None:
        if self._quote_since is not None:
            self._builder.cover(self._quote_kind, self._quote_since)
        self._quote_since = None

    def _no_end(self, kind: str, at: int) -> Exception:
        offset = byte_offset(self._source, at)
        return cannot_parse(f"Can't find end of {_NAMES[kind]} entity at byte offset {offset}")


MAX_TEXT = 4096  # UTF-16 units, counted after the markup is taken out
MAX_ENTITIES = 100  # further ones are not shown

_PARSERS = {"html": parse_html, "markdown": parse_markdown, "markdownv2": parse_markdown_v2}


def format_text(text: str | None, parse_mode: str | None, entities: Any) -> Formatted:
    """Read the markup and check the length, refusing as the Bot API does."""
    if not text:
        raise bad_request("message text is empty")
    if parse_mode and parse_mode.lower() not in _PARSERS:
        raise bad_request("unsupported parse_mode")
    formatted = trimmed(_PARSERS[parse_mode.lower()](text) if parse_mode else given_entities(text, entities))
    if not formatted.text:
        raise bad_request("message text is empty")
    if utf16_length(formatted.text) > MAX_TEXT:
        raise bad_request("message is too long")
    return replace(formatted, entities=formatted.entities[:MAX_ENTITIES])
