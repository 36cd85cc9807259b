"""What is said to whoever wrote a message that could not be dealt with: what happened, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from butlers.errors import ErrorClass

MAX_ITEMS = 5
_ADVICE: Mapping[str, str] = {
    ErrorClass.CLASSIFICATION_ERROR: "Say it in other words, please.",
    ErrorClass.VALIDATION_ERROR: "It cannot be done as it was written; say it in other words, please.",
    ErrorClass.ROUTING_ERROR: "Nobody here could take it.",
    ErrorClass.TARGET_UNAVAILABLE: "Please send it again in a few minutes.",
    ErrorClass.TIMEOUT: "It took too long. Please look whether it was done before you send it again.",
    ErrorClass.OVERLOAD_REJECTED: "Too much is going on. Please send it again in a few minutes.",
    ErrorClass.INTERNAL_ERROR: "This is a fault on our side; the message is kept.",
}


def error_reply(error: Mapping[str, Any], outcomes: Sequence[Mapping[str, Any]], request_id: object) -> str:
    """What was done, what was not and why, and the number to ask about it with."""
    done = sorted({str(outcome["target_butler"]) for outcome in outcomes if outcome.get("success")})
    lines = [f"Done: {', '.join(done)}."] if done else []
    lines += [_failure(outcome) for outcome in outcomes if outcome.get("error")][:MAX_ITEMS]
    if len(lines) == len(done[:1]):  # nobody was asked at all
        lines.append(f"That did not work: {_sentence(error.get('message'))}")
    return "\n".join([*lines, _advice(error), f"Reference: {request_id}"])


def _failure(outcome: Mapping[str, Any]) -> str:
    error = outcome["error"]
    return f"{outcome['target_butler']} could not do its part ({error.get('class')}): {_sentence(error.get('message'))}"


def _advice(error: Mapping[str, Any]) -> str:
    return _ADVICE.get(str(error.get("class")), _ADVICE[ErrorClass.INTERNAL_ERROR])


def _sentence(words: object) -> str:
    text = str(words or "no reason was given").strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
