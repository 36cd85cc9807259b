"""The message rows: claimed with a lease and a fencing token, so that nothing is lost and nothing is finished twice.

Messages of one thread are claimed in the order in which they came: while an earlier one is to be done or in hand, a
later one cannot be claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.context import RequestContext
from butlers.errors import LeaseLost
from butlers.storage.claims import SUSPECT_AFTER
from butlers.storage.database import Database, Executor, Record
from butlers.storage.queries import Queries
from butlers.switchboard.ingress import MessageRef
from butlers.switchboard.routing.question import RoutingQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedMessage:
    """A message that this worker, and nobody else, may process now."""

    ref: MessageRef
    claim_token: UUID
    context: RequestContext
    text: str
    attachments: Sequence[Mapping[str, Any]]
    pinned_target: str | None
    routing_output: Mapping[str, Any] | None  # an earlier worker's decision
    attempts: int
    dispatch_outcomes: Sequence[Mapping[str, Any]] = ()  # what an earlier worker had from whom
    raw_payload: Mapping[str, Any] | None = None
    thread_key: str | None = None
    override: Mapping[str, Any] | None = None  # what an operator decided about it
    progress_at: datetime | None = None  # when a worker first had it in hand
    first: bool = True  # nobody had it in hand before
    calls: int = 0  # of butlers and models that were made for it before
    last_failure: str | None = None  # why the last attempt did not end, when its worker could still say so

    @property
    def waiting_since(self) -> datetime:
        """Since when it has been waiting: since it came, or since an operator put it back."""
        again = (self.override or {}).get("at")
        return datetime.fromisoformat(again) if isinstance(again, str) else self.ref.received_at

    def question(self) -> RoutingQuestion:
        """What is to be routed."""
        context = self.context
        return RoutingQuestion(
            text=self.text,
            channel=context.source_channel,
            sender=context.source_sender_identity,
            endpoint=context.source_endpoint_identity,
            thread=context.source_thread_identity,
            pinned_target=self.pinned_target,
            policy_tier=self.ref.policy_tier,
            request_id=context.request_id,
            received_at=context.received_at,
            raw_payload=self.raw_payload,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a request ended."""

    state: str  # parsed | errored
    outcomes: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    signal: bool = False  # its author is to be shown


class MessageInbox:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def claim(
        self, ref: MessageRef, *, worker: str, lease_s: float, suspect: bool = False
    ) -> ClaimedMessage | None:
        """None: somebody else has it, it is not its turn, or it is a suspect and `suspect` is not said."""
        now, token = self._clock.now(), self._new_id()
        row = await self._database.fetchrow(
            self._queries.claim_message,
            ref.request_id,
            ref.received_at,
            token,
            worker,
            now + timedelta(seconds=lease_s),
            now,
            suspect,
            SUSPECT_AFTER,
        )
        return _claimed(ref, token, row, now) if row else None

    async def renew(self, tokens: Sequence[UUID], *, oldest: datetime, lease_s: float) -> set[UUID]:
        """The claims that still stand."""
        expires = self._clock.now() + timedelta(seconds=lease_s)
        rows = await self._database.fetch(self._queries.renew_messages, list(tokens), expires, oldest)
        return {row["claim_token"] for row in rows}

    async def release(self, workers: Sequence[str]) -> int:
        """Free what these had in hand; they are known to be dead."""
        return len(await self._database.fetch(self._queries.release_claims, list(workers), self._clock.now()))

    async def give_back(self, message: ClaimedMessage, *, failure: str | None = None) -> None:
        """The attempt ended early: with a failure it counts, and that is noted; without one it never was."""
        ref = message.ref
        values = (message.claim_token, failure is None, failure, self._clock.now())
        await self._database.execute(self._queries.give_message_back, ref.request_id, ref.received_at, *values)

    async def record_routing(self, message: ClaimedMessage, routing_output: Mapping[str, Any]) -> None:
        versions = (routing_output.get("prompt_version"), routing_output.get("model_version"))
        await self._write(self._queries.record_routing, message, routing_output, *versions, self._clock.now())

    async def record_outcomes(self, message: ClaimedMessage, outcomes: Sequence[Mapping[str, Any]]) -> None:
        await self._write(self._queries.record_outcomes, message, list(outcomes), self._clock.now())

    async def put_off(
        self,
        message: ClaimedMessage,
        *,
        not_before: datetime,
        waiting_for: Sequence[str] | None,  # None: not known
        calls: int,  # that were made for it so far
        settled: Sequence[Mapping[str, Any]] = (),
        keep_decision: bool = False,
    ) -> None:
        """For later; what is settled stays so."""
        names = None if waiting_for is None else list(waiting_for)
        values = (not_before, self._clock.now(), names, list(settled), keep_decision, calls)
        await self._write(self._queries.put_off_message, message, *values)

    async def finish(self, connection: Executor, message: ClaimedMessage, end: End) -> None:
        """Within the caller's transaction, beside whatever else belongs to the end."""
        values = (end.state, list(end.outcomes), end.reply, end.error, self._clock.now(), end.signal)
        await self._write(self._queries.finish_message, message, *values, connection=connection)

    async def waiting(self, *, grace_s: float, limit: int) -> list[MessageRef]:
        now = self._clock.now()
        rows = await self._database.fetch(self._queries.waiting_messages, now - timedelta(seconds=grace_s), now, limit)
        return [MessageRef(**dict(row)) for row in rows]

    async def next_in_thread(self, message: ClaimedMessage) -> MessageRef | None:
        if message.thread_key is None:
            return None
        row = await self._database.fetchrow(self._queries.next_in_thread, message.thread_key, self._clock.now())
        return MessageRef(**dict(row)) if row else None

    async def held_up_until(self, message: ClaimedMessage, butlers: Sequence[str]) -> datetime | None:
        """Until when an earlier message of the same thread waits for one of these butlers."""
        if message.thread_key is None:
            return None
        ref, now = message.ref, self._clock.now()
        values = (message.thread_key, ref.received_at, ref.request_id, now, list(butlers))
        until: datetime | None = await self._database.fetchval(self._queries.held_up_in_thread, *values)
        return until

    async def log_routing(self, lines: Sequence[tuple[Any, ...]]) -> None:
        await self._database.executemany(self._queries.log_routing, [(self._new_id(), *line) for line in lines])

    async def _write(
        self, query: str, message: ClaimedMessage, *values: Any, connection: Executor | None = None
    ) -> None:
        """A change that only the holder of the claim may make."""
        ref = message.ref
        written = await (connection or self._database).fetchval(
            query, ref.request_id, ref.received_at, message.claim_token, *values
        )
        if not written:
            raise LeaseLost(f"request {ref.request_id} was taken over")


def _claimed(ref: MessageRef, token: UUID, row: Record, now: datetime) -> ClaimedMessage:
    return ClaimedMessage(
        ref=ref,
        claim_token=token,
        context=RequestContext.model_validate(row["request_context"], strict=False),
        text=row["normalized_text"],
        attachments=row["attachments"],
        pinned_target=row["pinned_target"],
        routing_output=row["routing_output"],
        dispatch_outcomes=row["dispatch_outcomes"] or (),
        attempts=row["attempts"],
        raw_payload=row["raw_payload"],
        thread_key=row["thread_key"],
        override=row["override"],
        progress_at=row["progress_at"],
        first=row["progress_at"] == now,
        calls=row["calls"],
        last_failure=row["last_failure"],
    )
