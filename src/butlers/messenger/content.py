"""How a message, its subject and the subject of an answer show who it comes from (seed 001 section 6.3)."""

from __future__ import annotations

import re
from typing import Any

DEFAULT_SUBJECT = "Message"
_REPLY = re.compile(r"(?:re|aw|sv|antw)\s?(?:[\[(]\d{1,3}[\])])?\s?:", re.IGNORECASE)
_TOKEN = re.compile(r"\[[^\[\]]{1,64}\]")


def with_origin(text: str, origin: str) -> str:
    """The text with `[origin]` in front, once."""
    mark = f"[{origin}]"
    return text if text.startswith(mark) else f"{mark} {text}"


def subject_with_origin(subject: str | None, origin: str) -> str:
    mark = f"[{origin}]"
    subject = (subject or "").strip() or DEFAULT_SUBJECT
    return subject if mark in subject else f"{mark} {subject}"


def reply_subject(*, own: str | None, parent: str | None, origin: str) -> str | None:
    """The subject of an answer: the butler's own words, else those it answers, with the origin's token once.

    None when neither says anything; the caller then has words for that.
    """
    subject = _text(own).strip() or _text(parent).strip()
    token = f"[{origin}]"
    if not subject:
        return None
    return reply_once(subject if token in subject else f"{token} {subject}")


def reply_once(subject: str) -> str:
    """`Re:` exactly once and in front, tokens behind it, none of them twice."""
    tokens, rest = _leading(subject)
    kept = [token for token in dict.fromkeys(tokens) if token not in rest]
    return " ".join(["Re:", *kept, *([rest] if rest else [])])


def _leading(subject: str) -> tuple[list[str], str]:
    tokens: list[str] = []
    rest = subject.strip()
    while match := _REPLY.match(rest) or _TOKEN.match(rest):
        if match.re is _TOKEN:
            tokens.append(match[0])
        rest = rest[match.end() :].strip()
    return tokens, rest


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
