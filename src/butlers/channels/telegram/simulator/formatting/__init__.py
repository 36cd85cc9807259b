"""From what a bot sends (text, parse mode, entities) to what a chat shows (plain text and entities)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from butlers.channels.telegram.simulator.formatting.html import parse_html
from butlers.channels.telegram.simulator.formatting.markdown import parse_markdown
from butlers.channels.telegram.simulator.formatting.markdown_v2 import parse_markdown_v2
from butlers.channels.telegram.simulator.formatting.text import Formatted, given_entities, trimmed, utf16_length
from butlers.channels.telegram.simulator.model import bad_request

MAX_TEXT = 4096  # UTF-16 units, counted after the markup is taken out
MAX_ENTITIES = 100  # further ones are not shown

_PARSERS = {"html": parse_html, "markdown": parse_markdown, "markdownv2": parse_markdown_v2}


def format_text(text: str | None, parse_mode: str | None, entities: Any) -> Formatted:
    """Read the markup and check the length, refusing as the Bot API does."""
    if not text:
        raise bad_request("message text is empty")
    formatted = trimmed(_parsed(text, parse_mode, entities))
    if not formatted.text:
        raise bad_request("message text is empty")
    if utf16_length(formatted.text) > MAX_TEXT:
        raise bad_request("message is too long")
    return replace(formatted, entities=formatted.entities[:MAX_ENTITIES])


def _parsed(text: str, parse_mode: str | None, entities: Any) -> Formatted:
    if not parse_mode:
        return given_entities(text, entities)
    parser = _PARSERS.get(parse_mode.lower())
    if parser is None:
        raise bad_request("unsupported parse_mode")
    return parser(text)


__all__ = ["MAX_TEXT", "Formatted", "format_text", "utf16_length"]
