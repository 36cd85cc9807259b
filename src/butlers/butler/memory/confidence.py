"""How sure a memory still is, and which of several comes first. Pure functions of the time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from butlers.butler.memory.values import Maturity

# A memory of a month ago counts for two thirds of a fresh one, and none for less than half: a birthday told years ago
# is still worth finding.
RECENCY_FLOOR, RECENCY_DAYS = 0.5, 30.0

ESTABLISHED, PROVEN, REFUTED = 3, 10, 3  # how often a rule must have helped, or done harm
TOLERATED_HARM = 0.2  # of a proven rule's uses
_LADDER: tuple[Maturity, ...] = ("candidate", "established", "proven")
# A refuted rule ranks high: what not to do is worth knowing.
RULE_CONFIDENCE: Mapping[Maturity, float] = {
    "candidate": 0.4,
    "established": 0.7,
    "proven": 0.95,
    "anti_pattern": 0.8,
}


def days_between(since: datetime, now: datetime) -> float:
    """Never negative: another process's clock may be ahead."""
    return max(0.0, (now - since).total_seconds() / 86_400)


def effective_confidence(confidence: float, decay_rate: float, confirmed_at: datetime, now: datetime) -> float:
    """What is left of the confidence: it fades by `decay_rate` a day since it was last confirmed."""
    return confidence * math.exp(-decay_rate * days_between(confirmed_at, now))


def recency(since: datetime, now: datetime) -> float:
    """1 for what is new, and towards the floor with age."""
    return RECENCY_FLOOR + (1 - RECENCY_FLOOR) * math.exp(-days_between(since, now) / RECENCY_DAYS)


def score(*, matched: int, asked: int, confidence: float, since: datetime, now: datetime) -> float:
    """Text match (share of the words that were found) times effective confidence times recency."""
    match = matched / asked if asked else 0.0
    return match * confidence * recency(since, now)


def maturity_after(current: Maturity, helpful: int, harmful: int) -> Maturity:
    """What a rule is after so many uses. It climbs, and only harm takes it down."""
    if harmful >= REFUTED and harmful > helpful:
        return "anti_pattern"
    earned: Maturity = "candidate"
    if helpful >= ESTABLISHED and helpful > harmful:
        earned = "proven" if helpful >= PROVEN and harmful <= TOLERATED_HARM * helpful else "established"
    if current == "anti_pattern":
        return earned if helpful > harmful else current
    return max(current, earned, key=_LADDER.index)
