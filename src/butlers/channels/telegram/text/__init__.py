"""From a stored message to the texts that Telegram takes.

    message -- markup --> text + spans -- splitting --> parts of at most 4096 units -- rendering --> HTML, or plain

Messages are plain text or the light Markdown that language models write. What is certainly markup becomes a span;
everything else stays as it was written. Parts follow from the message alone, so a later attempt finds the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from butlers.channels.telegram.text.markup import Marked, as_html, as_plain, marked
from butlers.channels.telegram.text.splitting import split, utf16_length

ParseMode = Literal["HTML", "none"]

LIMIT = 4096  # UTF-16 units of one message, counted without its markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    text: str  # as the chat shows it
    html: str | None  # for parse_mode HTML; None: send it as plain text
    plain: str  # without markup, links spelt out


def parts(message: str, *, parse_mode: ParseMode = "HTML", limit: int = LIMIT) -> tuple[Part, ...]:
    """What to send, in order; nothing when there is nothing to see."""
    if parse_mode == "none":
        return tuple(Part(text=one.text, html=None, plain=one.text) for one in split(Marked(text=message), limit))
    return tuple(_part(one, limit) for one in split(marked(message), limit))


def _part(one: Marked, limit: int) -> Part:
    plain = as_plain(one)
    fitting = plain if utf16_length(plain) <= limit else one.text
    return Part(text=one.text, html=as_html(one), plain=fitting)


__all__ = ["LIMIT", "ParseMode", "Part", "parts", "utf16_length"]
