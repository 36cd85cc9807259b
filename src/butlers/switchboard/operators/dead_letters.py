"""The dead letters: requests, or parts of them, that failed for good, with a copy of all that a replay needs.

    a request ends -> the parts that failed are set aside (or told again on their letter)
                   -> letters whose parts did not fail again, or are not missed any more, are settled

There is one letter per part, however often it fails, so that the count of its replays stands in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.errors import ClassifiedError
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.switchboard.ingress import MessageRef
from butlers.switchboard.operators.failures import Failure, Outcome, failures_of
from butlers.switchboard.operators.paging import page, place
from butlers.telemetry import get_logger

log = get_logger("butlers.dead_letters")


class DeadLetters:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard.operators", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def ended(
        self,
        connection: Executor,
        ref: MessageRef,
        *,
        state: str,  # parsed | errored
        outcomes: Sequence[Outcome],
        error: ClassifiedError | None,
        override: Mapping[str, Any] | None,  # what an operator decided about the request
        category: str | None = None,
    ) -> None:
        """Within the transaction that ended the request, after its row was written."""
        failures = failures_of(ref.request_id, outcomes=outcomes, error=error, category=category)
        kept = [failure.segment_id for failure in failures if await self._capture(connection, ref, failure)]
        if override is not None:  # only an operator can have opened a request again that has letters
            await self._settle(connection, ref.request_id, state, kept)

    async def resolve(self, connection: Executor, request_id: UUID) -> None:
        """An operator declared the request done."""
        await self._settle(connection, request_id, "parsed", [])

    async def stop_replays(self, connection: Executor, request_id: UUID) -> None:
        """An operator stopped the request; its letters can be replayed another time."""
        await connection.execute(self._queries.stop_replays, request_id, self._clock.now())

    async def get(self, dead_letter_id: UUID) -> dict[str, Any] | None:
        row = await self._database.fetchrow(self._queries.get_letter, dead_letter_id)
        return dict(row) if row else None

    async def list(
        self,
        *,
        request_id: UUID | None = None,
        target_butler: str | None = None,
        error_class: str | None = None,
        failure_category: str | None = None,
        since: datetime | None = None,
        include_resolved: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        rows = await self._database.fetch(
            self._queries.list_letters,
            request_id,
            target_butler,
            error_class,
            failure_category,
            since,
            include_resolved,
            *place(cursor),
            limit + 1,
        )
        letters, following = page([dict(row) for row in rows], limit)
        return {"dead_letters": letters, "next_cursor": following}

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
