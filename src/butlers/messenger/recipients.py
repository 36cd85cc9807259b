"""Who may be written to: the configured lists first, then what providers and people said about a recipient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientPolicy:
    """Patterns `channel:address`; deny wins, an empty allow list allows everybody."""

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientRule:
    rule: str  # suppressed | moved
    moved_to: str | None
    reason: str
    since: datetime


RecipientRules = Mapping[tuple[str, str], RecipientRule]  # (channel, target) -> rule


def not_permitted(policy: RecipientPolicy, *, channel: str, target: str) -> str | None:
    """Why the lists forbid this recipient, if they do."""
    address = f"{channel}:{target}".lower()
    if any(fnmatchcase(address, pattern.lower()) for pattern in policy.deny):
        return "is on the deny list"
    if policy.allow and not any(fnmatchcase(address, pattern.lower()) for pattern in policy.allow):
        return "is not on the allow list"
    return None


def suppressed(rule: RecipientRule | None, *, wrote_at: datetime | None) -> str | None:
    """Why this recipient is not written to any more, if so; `wrote_at`: when they wrote what is answered."""
    if rule is None or rule.rule != "suppressed":
        return None
    # Whoever blocked us and writes again is back.
    if wrote_at is not None and wrote_at > rule.since:
        return None
    return f"is suppressed since {rule.since:%Y-%m-%d}: {rule.reason}"
