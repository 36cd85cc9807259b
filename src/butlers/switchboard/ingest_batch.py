"""Many messages in one call, each judged by itself.

Every item goes the way a single message goes (`Ingress.accept`), so one that is wrong or refused spoils nothing: its
place in the answer holds the error, and the others are stored. They share the group commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from butlers.butler.identity import Caller
from butlers.contracts.envelope import Value, invalid
from butlers.contracts.ingest import IngestEnvelope
from butlers.errors import ClassifiedError, InternalError
from butlers.operations.openapi import object_of
from butlers.switchboard.ingress import Ingress
from butlers.telemetry import get_logger

log = get_logger("butlers.ingress")

MAX_MESSAGES = 500  # in one batch: as many as one transaction takes
BODY_FACTOR = 8  # a batch may be so many times as large as a single message's body


class IngestBatch(Value):
    """What a batch looks like; its messages are checked one by one."""

    messages: list[IngestEnvelope] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="the messages, each an ingest.v1"
    )


def batch_schema() -> dict[str, Any]:
    """The body of `POST /api/ingest/batch`: there a message that is wrong is no mistake of the others."""
    one = {"description": "an IngestEnvelope; each is judged for itself, and has its own error in the answer"}
    many = {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": one}
    return object_of({"messages": many}, ("messages",)) | {"title": IngestBatch.__name__}


async def accept_batch(ingress: Ingress, raw: dict[str, Any], *, submitted_by: Caller) -> dict[str, Any]:
    """A result per message, in their order: the reply, or `error`."""
    messages = _messages(raw)
    results = await asyncio.gather(*(_accept_one(ingress, message, submitted_by) for message in messages))
    return {"results": results, **_tally(results)}


async def _accept_one(ingress: Ingress, message: Any, submitted_by: Caller) -> dict[str, Any]:
    try:
        if not isinstance(message, dict):
            raise invalid("", "must be a JSON object")
        return (await ingress.accept(IngestEnvelope.parse(message), submitted_by=submitted_by)).to_wire()
    except ClassifiedError as error:
        return _refused(ingress, error)
    except Exception as error:
        log.error("ingest failed", error=error)
        return _refused(ingress, InternalError("the message could not be taken"))


def _refused(ingress: Ingress, error: ClassifiedError) -> dict[str, Any]:
    ingress.count_refusal(error)
    return {"error": {"fields": []} | error.describe()}


def _messages(raw: dict[str, Any]) -> list[Any]:
    """The items of a batch that is one; what they hold is looked at later."""
    if unknown := sorted(raw.keys() - {"messages"}):
        raise invalid(unknown[0][:64], "is not a known field; there is messages")
    messages = raw.get("messages")
    if not isinstance(messages, list):
        raise invalid("messages", "is required" if messages is None else "must be a list")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise invalid("messages", f"must hold 1 to {MAX_MESSAGES} messages")
    return messages


def _tally(results: Sequence[dict[str, Any]]) -> dict[str, int]:
    refused = sum("error" in result for result in results)
    duplicates = sum(result.get("duplicate") is True for result in results)
    return {"accepted": len(results) - refused - duplicates, "duplicates": duplicates, "refused": refused}
