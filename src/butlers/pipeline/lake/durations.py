"""Times that somebody typed: 10s, 5m, 1h."""

from __future__ import annotations

import re

from butlers.contracts.envelope import invalid

_DURATION = re.compile(r"(\d{1,6})(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(name: str, text: str) -> float:
    """How many seconds an argument stands for."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        raise invalid(name, "must be a number and a unit: 500ms, 10s, 5m, 1h, 1d")
    return int(matched[1]) * _SECONDS[matched[2]]


def whole(name: str, text: str, *, least: int) -> int:
    """An argument that must be a whole number."""
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise invalid(name, f"must be a whole number, {least} or more")
    return int(text)
