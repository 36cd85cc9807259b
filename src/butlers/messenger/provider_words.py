"""What a provider says, made fit to be kept.

A provider, or whoever sits between, may answer with anything JSON can hold; Postgres holds no NUL, UTF-8 no half of a
surrogate pair, JSON no infinity. An outcome that cannot be written down would be tried again for ever and keep a hand
of the worker busy, so every result passes here before anything is decided on it, whichever adapter it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from butlers.channels.adapter import AttemptResult, NotSent, Sent, Throttle
from butlers.errors import ClassifiedError, from_wire

LONGEST_NAME = 512  # characters; more does not fit an index
LONGEST_TEXT = 2_000
DEEPEST = 10  # of evidence within evidence


def storable(result: AttemptResult) -> AttemptResult:
    """The same result in words that can be kept."""
    response, moved_to = evidence(result.response), _address(result.moved_to)
    if isinstance(result, Sent):
        return replace(
            result, provider_delivery_id=name(result.provider_delivery_id), response=response, moved_to=moved_to
        )
    error, throttle = _error(result.error), _throttle(result)
    return replace(result, error=error, throttle=throttle, response=response, moved_to=moved_to)


def name(given: str) -> str:
    """What the provider calls a message."""
    return text(given)[:LONGEST_NAME]


def text(given: str) -> str:
    return given.replace("\0", "").encode("utf-8", "replace").decode()


def evidence(given: Mapping[str, Any]) -> dict[str, Any]:
    return {text(str(key)): _kept(value, DEEPEST) for key, value in given.items()}


def _kept(value: Any, depth: int) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping() if depth:
            return {text(str(key)): _kept(inner, depth - 1) for key, inner in value.items()}
        case list() | tuple() if depth:
            return [_kept(inner, depth - 1) for inner in value]
    return text(str(value))[:LONGEST_TEXT]


def _error(error: ClassifiedError) -> ClassifiedError:
    message, wait = text(error.message)[:LONGEST_TEXT], _seconds(error.retry_after)
    if (message, wait) == (error.message, error.retry_after):
        return error
    return from_wire(error.error_class.value, message, retryable=error.retryable, retry_after=wait)


def _throttle(result: NotSent) -> Throttle | None:
    seconds = _seconds(result.throttle.seconds) if result.throttle is not None else None
    return None if result.throttle is None or seconds is None else replace(result.throttle, seconds=seconds)


def _seconds(given: float | None) -> float | None:
    """A time to wait; what is none counts as not said."""
    return given if given is not None and 0 <= given < math.inf else None


def _address(given: str | None) -> str | None:
    """A new address, or nothing: one that had to be mended would be somebody else's."""
    fits = given is not None and given == text(given) and 0 < len(given) <= LONGEST_NAME
    return given if fits else None
