"""The dead letters: requests, or parts of them, that failed for good, with a copy of all that a replay needs.

    a request ends -> the parts that failed are set aside (or told again on their letter)
                   -> letters whose parts did not fail again, or are not missed any more, are settled

There is one letter per part, however often it fails, so that the count of its replays stands in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.clock import Clock
from butlers.errors import ClassifiedError, ErrorClass, NotFound, Quarantined
from butlers.operations import operators as operations
from butlers.operations.operation import page, place
from butlers.operations.operators import DeadLettersArguments
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.switchboard.requests.inbox import MessageRef
from butlers.telemetry import get_logger

log = get_logger("butlers.dead_letters")

Outcome = Mapping[str, Any]  # one entry of `dispatch_outcomes`

WHOLE = ""  # the request itself, when it failed before a butler had a part of it
ROUND = "~"  # `s1~2`: the second time that an operator had `s1` worked on anew
REFUSED_AGAIN = "the content was refused, and would be refused again; correct it and hand it in anew"
_UNDECIDED = frozenset({ErrorClass.CLASSIFICATION_ERROR.value, ErrorClass.ROUTING_ERROR.value})
_SPENT = frozenset({ErrorClass.TIMEOUT.value, ErrorClass.OVERLOAD_REJECTED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One part that failed for good."""

    segment_id: str  # as it was first called
    subrequest_id: UUID | None
    target_butler: str | None
    category: str  # retries_exhausted | non_retryable | budget_exhausted | classification | quarantined
    error_class: str
    reason: str
    attempts: int | None  # None: as often as the request was claimed
    ineligible_reason: str | None  # None: a replay may help


class DeadLetters:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.operators", schema=schema)
        self._clock = clock
        self._new_id = new_id

    def tools(self) -> list[AnyTool]:
        return [Tool.of(operations.DEAD_LETTERS, self._answer)]

    async def ended(
        self,
        connection: Executor,
        ref: MessageRef,
        *,
        state: str,  # parsed | errored
        failures: Sequence[Failure],
        override: Mapping[str, Any] | None,  # what an operator decided about the request
    ) -> None:
        """Within the transaction that ended the request, after its row was written."""
        captured = [failure.segment_id for failure in failures if await self._capture(connection, ref, failure)]
        if override is not None:  # only an operator can have opened a request again that has letters
            await self._settle(connection, ref.request_id, state, captured)

    async def resolve(self, connection: Executor, request_id: UUID) -> None:
        """An operator declared the request done."""
        await self._settle(connection, request_id, "parsed", [])

    async def stop_replays(self, connection: Executor, request_id: UUID) -> None:
        """An operator stopped the request; its letters can be replayed another time."""
        await connection.execute(self._queries.stop_replays, request_id, self._clock.now())

    async def get(self, dead_letter_id: UUID) -> dict[str, Any] | None:
        row = await self._database.fetchrow(self._queries.get_letter, dead_letter_id)
        return dict(row) if row else None

    async def list(self, arguments: DeadLettersArguments) -> dict[str, Any]:
        rows = await self._database.fetch(
            self._queries.list_letters,
            arguments.request_id,
            arguments.target_butler,
            arguments.error_class,
            arguments.failure_category,
            arguments.since,
            arguments.include_resolved,
            *place(arguments.cursor),
            arguments.limit + 1,
        )
        letters, following = page([dict(row) for row in rows], arguments.limit)
        return {"dead_letters": letters, "next_cursor": following}

    async def _answer(self, _caller: Caller, arguments: DeadLettersArguments) -> dict[str, Any]:
        if arguments.dead_letter_id is None:
            return wire(await self.list(arguments))
        letter = await self.get(arguments.dead_letter_id)
        if letter is None:
            raise NotFound.of("dead_letter_id", "no such dead letter")
        return wire({"dead_letter": letter})

    async def _capture(self, connection: Executor, ref: MessageRef, failure: Failure) -> bool:
        """False: another part has made up for it."""
        captured = await connection.fetchval(
            self._queries.capture,
            ref.request_id,
            ref.received_at,
            self._new_id(),
            failure.segment_id,
            failure.subrequest_id,
            failure.target_butler,
            failure.category,
            failure.error_class,
            failure.reason,
            failure.attempts,
            failure.ineligible_reason,
            self._clock.now(),
        )
        if captured is None:
            return False
        log.warning(
            "dead letter",
            request_id=ref.request_id,
            segment_id=failure.segment_id,
            target_butler=failure.target_butler,
            error_class=failure.error_class,
            reason=failure.category,
        )
        return True

    async def _settle(self, connection: Executor, request_id: UUID, state: str, failing: Sequence[str]) -> None:
        values = (request_id, list(failing), state, self._clock.now())
        await connection.execute(self._queries.settle_letters, *values)


def failures_of(
    request_id: UUID,
    *,
    outcomes: Iterable[Outcome],
    error: ClassifiedError | None,
    category: str | None = None,
) -> list[Failure]:
    """The parts that failed; the request as a whole when it failed and none of its parts did."""
    parts = [
        _failure(
            outcome["error"],
            segment_id=first_name(str(outcome["segment_id"])),
            subrequest_id=UUID(str(outcome.get("subrequest_id") or uuid5(request_id, str(outcome["segment_id"])))),
            target_butler=outcome.get("target_butler"),
            category=category,
            answered=outcome.get("raw_response") is not None,
            attempts=outcome.get("attempts") or 0,
        )
        for outcome in outcomes
        if outcome.get("error") and not skipped(outcome)
    ]
    if parts or error is None:
        return parts
    return [_failure(error.describe(), segment_id=WHOLE, category=category)]


def skipped(outcome: Outcome) -> bool:
    return bool(outcome.get("skipped")) or outcome.get("status") == "skipped"


def succeeded(outcome: Outcome) -> bool:
    return not outcome.get("error") and not skipped(outcome)


def first_name(segment_id: str) -> str:
    """`s1` of `s1~2`."""
    return segment_id.partition(ROUND)[0]


def _failure(
    error: Mapping[str, Any],
    *,
    segment_id: str,
    category: str | None,
    subrequest_id: UUID | None = None,
    target_butler: str | None = None,
    answered: bool = False,
    attempts: int | None = None,
) -> Failure:
    return Failure(
        segment_id=segment_id,
        subrequest_id=subrequest_id,
        target_butler=target_butler,
        category=category or _category(error, answered=answered),
        error_class=error["class"],
        reason=error["message"],
        attempts=attempts,
        ineligible_reason=REFUSED_AGAIN if error["class"] == ErrorClass.VALIDATION_ERROR else None,
    )


def _category(error: Mapping[str, Any], *, answered: bool) -> str:
    if error["message"].startswith(Quarantined.OPENING):
        return "quarantined"
    if error["class"] in _UNDECIDED:
        return "classification"
    if error.get("retryable"):
        return "retries_exhausted"
    # No butler answered and trying again is ruled out: the request has used up what it may take.
    return "budget_exhausted" if error["class"] in _SPENT and not answered else "non_retryable"
