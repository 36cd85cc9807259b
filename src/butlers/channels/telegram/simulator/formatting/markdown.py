"""The old parse mode Markdown: no nesting, and only four characters mean anything."""

from __future__ import annotations

from butlers.channels.telegram.simulator.formatting.text import Builder, Formatted, byte_offset, cannot_parse

_MARKS = "_*`["
_KINDS = {"_": "italic", "*": "bold", "`": "code"}
_FENCE = "```"


def parse_markdown(source: str) -> Formatted:
    builder = Builder()
    position = 0
    while position < len(source):
        position = _step(source, position, builder)
    return builder.build()


def _step(source: str, at: int, builder: Builder) -> int:
    character = source[at]
    if character == "\\" and at + 1 < len(source) and source[at + 1] in _MARKS:
        builder.add(source[at + 1])
        return at + 2
    if character not in _MARKS:
        builder.add(character)
        return at + 1
    if character == "[":
        return _link(source, at, builder)
    if source.startswith(_FENCE, at):
        return _block(source, at, builder)
    return _span(source, at, builder)


def _end(source: str, mark: str, begin: int, opened_at: int) -> int:
    found = source.find(mark, begin)
    if found < 0:
        raise cannot_parse(f"Can't find end of the entity starting at byte offset {byte_offset(source, opened_at)}")
    return found


def _span(source: str, at: int, builder: Builder) -> int:
    end = _end(source, source[at], at + 1, at)
    since = builder.length
    builder.add(source[at + 1 : end])
    builder.cover(_KINDS[source[at]], since)
    return end + 1


def _block(source: str, at: int, builder: Builder) -> int:
    end = _end(source, _FENCE, at + 3, at)
    since = builder.length
    language, code = split_language(source[at + 3 : end])
    builder.add(code)
    builder.cover("pre", since, **({"language": language} if language else {}))
    return end + 3


def split_language(block: str) -> tuple[str, str]:
    """The word on the fence's own line, and the code below it."""
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
