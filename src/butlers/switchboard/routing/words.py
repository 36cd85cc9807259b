"""The words of a text, as rules and triggers compare them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def holds_phrase(said: Sequence[str], phrase: str) -> bool:
    """Whether the words of a phrase stand there, side by side and in order."""
    wanted = words(phrase)
    return bool(wanted) and f" {' '.join(wanted)} " in f" {' '.join(said)} "
