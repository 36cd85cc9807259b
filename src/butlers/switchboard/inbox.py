"""The message rows: claimed with a lease and a fencing token, so that nothing is lost and nothing is finished twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.clock import Clock
from butlers.contracts.context import RequestContext
from butlers.errors import LeaseLost
from butlers.storage.database import Database, Record
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
    raw_payload: Mapping[str, Any] | None = None

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


class MessageInbox:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def claim(self, ref: MessageRef, *, worker: str, lease_s: float) -> ClaimedMessage | None:
        now, token = self._clock.now(), self._new_id()
        row = await self._database.fetchrow(
            self._queries.claim_message,
            ref.request_id,
            ref.received_at,
            token,
            worker,
            now + timedelta(seconds=lease_s),
            now,
        )
        return _claimed(ref, token, row) if row else None

    async def renew(self, tokens: Sequence[UUID], *, oldest: datetime, lease_s: float) -> None:
        expires = self._clock.now() + timedelta(seconds=lease_s)
        await self._database.execute(self._queries.renew_messages, list(tokens), expires, oldest)

    async def record_routing(self, message: ClaimedMessage, routing_output: Mapping[str, Any]) -> None:
        written = await self._database.fetchval(
            self._queries.record_routing,
            message.ref.request_id,
            message.ref.received_at,
            message.claim_token,
            routing_output,
            routing_output.get("prompt_version"),
            routing_output.get("model_version"),
            self._clock.now(),
        )
        _must_hold(written, message)

    async def put_off(self, message: ClaimedMessage, *, not_before: datetime) -> None:
        written = await self._database.fetchval(
            self._queries.put_off_message,
            message.ref.request_id,
            message.ref.received_at,
            message.claim_token,
            not_before,
            self._clock.now(),
        )
        _must_hold(written, message)

    async def finish(
        self,
        message: ClaimedMessage,
        *,
        state: str,
        outcomes: Sequence[Mapping[str, Any]],
        reply: Mapping[str, Any] | None,
        error: Mapping[str, Any] | None,
    ) -> None:
        written = await self._database.fetchval(
            self._queries.finish_message,
            message.ref.request_id,
            message.ref.received_at,
            message.claim_token,
            state,
            list(outcomes),
            reply,
            error,
            self._clock.now(),
        )
        _must_hold(written, message)

    async def waiting(self, *, grace_s: float, limit: int) -> list[MessageRef]:
        now = self._clock.now()
        rows = await self._database.fetch(self._queries.waiting_messages, now - timedelta(seconds=grace_s), now, limit)
        return [MessageRef(**dict(row)) for row in rows]

    async def log_routing(self, lines: Sequence[tuple[Any, ...]]) -> None:
        await self._database.executemany(self._queries.log_routing, [(self._new_id(), *line) for line in lines])


def _claimed(ref: MessageRef, token: UUID, row: Record) -> ClaimedMessage:
    return ClaimedMessage(
        ref=ref,
        claim_token=token,
        context=RequestContext.model_validate(row["request_context"], strict=False),
        text=row["normalized_text"],
        attachments=row["attachments"],
        pinned_target=row["pinned_target"],
        routing_output=row["routing_output"],
        attempts=row["attempts"],
        raw_payload=row["raw_payload"],
    )


def _must_hold(written: Any, message: ClaimedMessage) -> None:
    if not written:
        raise LeaseLost(f"request {message.ref.request_id} was taken over")
