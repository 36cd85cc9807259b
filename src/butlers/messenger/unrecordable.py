"""An outcome that the database will not take, made one that it will.

Whatever a provider says passes `provider_words` first, so this is for what nobody thought of. That something was sent,
and when it is tried again, matters more than the words that came with it: those are left out.
"""

from __future__ import annotations

from dataclasses import replace

import asyncpg

from butlers.channels.adapter import AttemptResult, Sent
from butlers.errors import ClassifiedError, from_wire
from butlers.messenger.delivery import Ended

_REFUSALS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
_LEFT_OUT = "the provider's words could not be kept"
_MOST_PARTS = 2**31 - 1  # what the column holds


def is_refused(error: Exception) -> bool:
    """Whether the values, and not the server or the moment, are the trouble."""
    return isinstance(error, (*_REFUSALS, ValueError))  # the driver's own word for what it cannot encode


def without_words(ended: Ended) -> Ended:
    """The same outcome with nothing in it that a provider said."""
    settlement = ended.settlement
    error = _plain(settlement.error) if settlement.error is not None else None
    return replace(ended, result=_silent(ended), settlement=replace(settlement, error=error))


def _silent(ended: Ended) -> AttemptResult:
    result, response = ended.result, {"left_out": _LEFT_OUT}
    if not isinstance(result, Sent):
        return replace(result, error=_plain(result.error), response=response, moved_to=None)
    part = result.part if 0 < result.part <= _MOST_PARTS else 1
    name = f"unknown-{ended.delivery.attempt_id}"
    return Sent(provider_delivery_id=name, part=part, response=response)


def _plain(error: ClassifiedError) -> ClassifiedError:
    return from_wire(error.error_class.value, _LEFT_OUT, retryable=error.retryable)
