"""Answers without a model: acknowledge what is told, answer a question from what was told before."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import date

GREETINGS = frozenset({"/start", "/help", "help"})
HELP = (
    "Tell me what I should remember, for example: I paid the electricity bill, 84 euros. "
    "Ask me about it later: When did I pay the electricity bill?"
)
LONGEST_QUOTE = 120  # characters of a kept note that an answer repeats

_WORD = re.compile(r"[^\W_]+")
_QUESTION_WORDS = frozenset(
    {"what", "when", "where", "who", "whom", "whose", "which", "why", "how", "did", "do", "does"}
    | {"is", "are", "was", "were", "can", "could"}
)
_EMPTY_WORDS = _QUESTION_WORDS | frozenset(
    {"a", "an", "the", "i", "you", "my", "me", "your", "to", "of", "for", "in", "on", "at", "about"}
    | {"tell", "have", "has", "it"}
)


def is_question(text: str) -> bool:
    words = _WORD.findall(text.casefold())
    return text.rstrip().endswith("?") or bool(words and words[0] in _QUESTION_WORDS)


def search_words(text: str) -> list[str]:
    """The words of a question that can find a note."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return list(dict.fromkeys(word for word in words if word not in _EMPTY_WORDS))[:20]


def local_answer(butler: str, text: str, notes: Sequence[tuple[str, date]]) -> str:
    """`notes` are what was told before, each with its day."""
    if text.strip().casefold() in GREETINGS:
        return HELP
    if not is_question(text):
        return f"Noted: {_quote(text)}"
    if not notes:
        return f"I have nothing on that yet. Tell me, and {butler} will remember it."
    lines = "\n".join(f"- {_quote(note)} (on {day.isoformat()})" for note, day in notes)
    return f"This is what you told me:\n{lines}"


def _quote(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST_QUOTE else f"{flat[: LONGEST_QUOTE - 1]}…"
