"""How a message shows who it comes from (seed 001 section 6.3)."""

from __future__ import annotations

DEFAULT_SUBJECT = "Message"


def with_origin(text: str, origin: str) -> str:
    """The text with `[origin]` in front, once."""
    mark = f"[{origin}]"
    return text if text.startswith(mark) else f"{mark} {text}"


def subject_with_origin(subject: str | None, origin: str) -> str:
    mark = f"[{origin}]"
    subject = (subject or "").strip() or DEFAULT_SUBJECT
    return subject if mark in subject else f"{mark} {subject}"
