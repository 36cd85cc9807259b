"""Text with entities. Offsets and lengths are UTF-16 units, as everywhere in Telegram."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from butlers.channels.telegram.simulator.model import ApiError, Wire, bad_request

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


def utf16_length(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def byte_offset(source: str, index: int) -> int:
    return len(source[:index].encode())


def cannot_parse(what: str) -> ApiError:
    return bad_request(f"can't parse entities: {what}")


class Builder:
    """Plain text that grows, and the entities over it."""

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
    kept = (_clipped(entity, lead, utf16_length(text)) for entity in formatted.entities)
    return Formatted(text=text, entities=tuple(entity for entity in kept if entity["length"] > 0))


def _clipped(entity: Wire, lead: int, length: int) -> Wire:
    start = max(0, entity["offset"] - lead)
    end = min(length, entity["offset"] - lead + entity["length"])
    return entity | {"offset": start, "length": end - start}


def given_entities(text: str, entities: Any) -> Formatted:
    """The bot's own list of entities, checked against the text."""
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
    boundaries = _boundaries(text)
    if offset not in boundaries or offset + length not in boundaries:
        raise cannot_parse("entity begins or ends in a middle of a UTF-16 symbol")
    return entity


def _unit(entity: dict[str, Any], name: str) -> int:
    value = entity.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise cannot_parse(f"entity with incorrect {name}")
    return value


def _boundaries(text: str) -> frozenset[int]:
    position = 0
    found = {0}
    for character in text:
        position += utf16_length(character)
        found.add(position)
    return frozenset(found)
