"""Names of streams (`agents/jen/inbox`) and patterns over them (`agents/*/inbox`, `agents/*`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from butlers.courier.errors import InvalidEnvelope

LONGEST_NAME = 256
_PART = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.\-]{1,128}"  # . and .. would be folders
_STREAM = re.compile(rf"{_PART}(?:/{_PART})*")
_PATTERN = re.compile(rf"(?:\*|{_PART})(?:/(?:\*|{_PART}))*")
LONGEST_GROUP = 64
DEAD_SUFFIX = "/$dead"  # shown as a stream of its own; no producer and no subscriber may name it


@lru_cache(maxsize=4_096)
def check_stream(name: str) -> None:
    """Raises `InvalidEnvelope`; names that are in order are remembered."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _STREAM.fullmatch(name):
        raise InvalidEnvelope(
            f"is no name of a stream: parts of letters, digits, _ . - joined by /, at most {LONGEST_NAME} characters",
            field="stream",
        )


def check_group(name: str) -> None:
    if not 0 < len(name) <= LONGEST_GROUP:
        raise InvalidEnvelope(f"must have 1 to {LONGEST_GROUP} characters", field="group")


def check_pattern(pattern: str) -> None:
    if not isinstance(pattern, str) or len(pattern) > LONGEST_NAME or not _PATTERN.fullmatch(pattern):
        raise InvalidEnvelope("is neither the name of a stream nor a pattern with * for whole parts", field="stream")


@lru_cache(maxsize=1_024)
def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Whether a name fits: `*` stands for one part, at the end for one or more."""
    parts = pattern.split("/")

    def fits(name: str) -> bool:
        given = name.split("/")
        if parts[-1] == "*" and len(given) > len(parts):
            given = [*given[: len(parts) - 1], ""]
        return len(given) == len(parts) and all(part in ("*", one) for part, one in zip(parts, given, strict=True))

    return fits
