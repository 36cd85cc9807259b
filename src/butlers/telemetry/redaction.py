"""Takes secrets out of text that we did not write ourselves.

Our own log lines cannot hold a secret: their fields are listed and their messages are fixed. `Redaction` is for the
lines of the libraries (a URL with a bot token in its path, a header, a connection string) and for hints from other
programs.

`SecretFilter` is for messages that leave. People may write "my password is ..." to each other, so it knows no names of
secrets: only the system's own secrets by their value, and the shapes in which well-known providers write theirs. Both
take time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import unquote, urlsplit

REDACTED = "[redacted]"
_SECRET_WORDS = ("TOKEN", "PASSWORD", "SECRET", "KEY")  # in the name of a variable that holds one
_MOST_SEARCHED = 2_000  # characters of a line
_SHORTEST_VALUE = 8  # a shorter one would tear holes into ordinary words

_VALUE = r"""(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s"'&,;)}\]]+)"""
_NAMES = r"[\w-]*(?:password|passwd|pwd|passphrase|secret|token|api[_-]?key|authorization)"

# What may begin anywhere in a run of letters is looked for from the run's beginning only, so that none is read twice.
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
        re.compile(rf"(?<![\w-])({_NAMES})([\"']?\s*[:=]\s*)(?!(?:bearer|basic)\b){_VALUE}", re.IGNORECASE),
        rf"\1\2{REDACTED}",
    ),
    # Keys of model providers, and JSON web tokens
    (re.compile(r"\bsk-[A-Za-z0-9_-]{12,}"), REDACTED),
    (re.compile(r"(?<![\w-])(?=[\w-]*\beyJ)[\w-]+\.[\w-]+\.[\w-]*"), REDACTED),
)

_MAY_HOLD_ONE = re.compile(r"[:=\s]|sk-|eyJ")  # each pattern needs one of these
# A run of letters is looked at from its beginning only, so that none is read twice.
_SHAPES = re.compile(
    r"(?<![\w-])(?:"
    r"sk-[A-Za-z0-9_-]{20,}"  # keys of model providers
    r"|gh[oprsu]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"  # of code hosts
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"  # of Slack
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}(?!\w)|AIza[\w-]{35}"  # of clouds
    r"|\d{6,12}:[A-Za-z0-9_-]{34,}"  # of Telegram bots
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"  # signed web tokens
    r")"
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----")
_KEY_ENDS = "PRIVATE KEY-----"


class Redaction:
    """Scrubs whatever looks like a secret, and the known secrets of this process by their value."""

    SHORTEST_SECRET = 6  # a shorter one would tear holes into ordinary words

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {secret for secret in secrets if len(secret) >= self.SHORTEST_SECRET}
        self._known = sorted(known, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        return self._without_shapes(self._without_known(text))

    def first_line(self, text: str, longest: int) -> str:
        """The beginning of the first line, whatever its length: only so much of it is searched for shapes."""
        line = self._without_known(text.partition("\n")[0])
        if len(line) > _MOST_SEARCHED:
            words = line[:_MOST_SEARCHED].rsplit(maxsplit=1)  # the last may be half of a secret, which has no shape
            line = words[0] if len(words) > 1 else f"[withheld: {len(line)} characters]"
        return self._without_shapes(line)[:longest]

    def _without_known(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, REDACTED)
        return text

    def _without_shapes(self, text: str) -> str:
        if not _MAY_HOLD_ONE.search(text):  # most of what is logged: a word, a number, a name
            return text
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def __repr__(self) -> str:
        return f"Redaction({len(self._known)} known secrets)"


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """The values of the variables that hold a secret by their name, and the passwords of URLs."""
    named = [value for name, value in environment.items() if any(word in name.upper() for word in _SECRET_WORDS)]
    passwords = [password for value in environment.values() if (password := password_in(value))]
    return [secret for secret in (*named, *passwords) if len(secret) >= _SHORTEST_VALUE]


def password_in(url: str) -> str | None:
    """The password of a connection string such as postgresql://user:password@host/name."""
    if "://" not in url or "@" not in url:
        return None
    try:
        return unquote(urlsplit(url).password or "") or None
    except ValueError:
        return None


class SecretFilter:
    """Replaces secrets in messages that leave, and says how many there were."""

    def __init__(self, known: Callable[[], Iterable[str]] = tuple, *, shapes: bool = True) -> None:
        self._known = known  # asked each time: tokens come and go
        self._shapes = shapes  # also what only looks like a credential

    def __call__(self, text: str) -> tuple[str, int]:
        found = 0
        for secret in sorted({*self._known()}, key=len, reverse=True):
            if len(secret) >= _SHORTEST_VALUE and secret in text:
                found += text.count(secret)
                text = text.replace(secret, REDACTED)
        if not self._shapes:
            return text, found
        text, keys = _without_private_keys(text)
        text, tokens = _SHAPES.subn(REDACTED, text)
        return text, found + keys + tokens

    def __repr__(self) -> str:
        return "SecretFilter()"


def _without_private_keys(text: str) -> tuple[str, int]:
    """Without private key blocks; one that has no end goes up to the end of the text."""
    parts, place, found = [], 0, 0
    while (begins := _KEY_BEGINS.search(text, place)) is not None:
        ends = text.find(_KEY_ENDS, begins.end())
        parts += [text[place : begins.start()], REDACTED]
        place, found = len(text) if ends < 0 else ends + len(_KEY_ENDS), found + 1
    return "".join([*parts, text[place:]]), found
