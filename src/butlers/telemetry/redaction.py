"""Takes secrets out of text that we did not write ourselves.

Our own log lines cannot hold a secret: their fields are listed and their messages are fixed. This is for the lines of
the libraries (a URL with a bot token in its path, a header, a connection string) and for hints from other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[redacted]"

_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'&,;)}\]]+)"""
_NAMES = r"[\w-]*(?:password|passwd|pwd|passphrase|secret|token|api[_-]?key|authorization)"

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # scheme://user:password@host
    (re.compile(r"(?<=://)[^\s/@]+@"), f"{REDACTED}@"),
    # 123456789:AAF... with or without the Bot API's /bot in front
    (re.compile(r"(?<=/bot)\d+:[^\s/\"']+"), REDACTED),
    (re.compile(r"\b\d{6,12}:[A-Za-z0-9_-]{30,}"), REDACTED),
    # Authorization: Basic dXNlcjpwYXNz, "Bearer abc"
    (re.compile(r"\b(bearer|basic)\s+[^\s\"',;)}\]]+", re.IGNORECASE), rf"\1 {REDACTED}"),
    # password=x, "api_key": "x", TELEGRAM_TOKEN=x, token: x
    (
        re.compile(rf"\b({_NAMES})([\"']?\s*[:=]\s*)(?!(?:bearer|basic)\b){_VALUE}", re.IGNORECASE),
        rf"\1\2{REDACTED}",
    ),
    # Keys of model providers, and JSON web tokens
    (re.compile(r"\bsk-[A-Za-z0-9_-]{12,}"), REDACTED),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), REDACTED),
)

_MAY_HOLD_ONE = re.compile(r"[:=\s]|sk-|eyJ")  # each pattern needs one of these


class Redaction:
    """Scrubs whatever looks like a secret, and the known secrets of this process by their value."""

    SHORTEST_SECRET = 6  # a shorter one would tear holes into ordinary words

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= self.SHORTEST_SECRET}
        self._known = sorted(known, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, REDACTED)
        if not _MAY_HOLD_ONE.search(text):  # most of what is logged: a word, a number, a name
            return text
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def __repr__(self) -> str:
        return f"Redaction({len(self._known)} known secrets)"
