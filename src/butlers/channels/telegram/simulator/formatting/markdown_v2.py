"""The parse mode MarkdownV2: nested spans, and eighteen characters that must be escaped when they mean nothing.

*bold*  _italic_  __underline__  ~strike~  ||spoiler||  `code`  ```block```  [text](url)  ![x](tg://emoji?id=1)
>quote, at the start of a line; `||` at its very end folds it
"""

from __future__ import annotations

from dataclasses import dataclass

from butlers.channels.telegram.simulator.formatting.markdown import split_language
from butlers.channels.telegram.simulator.formatting.text import Builder, Formatted, byte_offset, cannot_parse

_RESERVED = frozenset("_*[]()~`>#+-=|{}.!")
_FENCE = "```"
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
class _Open:
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
        self._opened: list[_Open] = []
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
        self._opened.append(_Open(kind=kind, since=self._builder.length, mark=self._builder.mark(), at=self._at))
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
