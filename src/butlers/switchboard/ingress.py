"""The door in: accept, deduplicate, store; then tell the buffer.

Many submissions at once share one transaction (group commit), so durability costs little. A reply means that the
message is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from butlers.butler.identity import Caller, Role
from butlers.clock import Clock
from butlers.contracts.context import RequestContext
from butlers.contracts.envelope import invalid
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.storage.database import Database
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries
from butlers.switchboard.dedupe import DedupeIdentity, dedupe_identity
from butlers.switchboard.registry import NOT_ROUTABLE, Registry
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import INGRESS_ACCEPT_LATENCY, MESSAGE_DEDUPLICATED, MESSAGE_RECEIVED
from butlers.telemetry.spans import INGEST

log = get_logger("butlers.ingress")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRef:
    """A stored message, as the buffer's queues carry it."""

    request_id: UUID
    received_at: datetime
    policy_tier: str
    source_channel: str = ""  # whose turn it is, within a tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    envelope: IngestEnvelope
    context: RequestContext
    identity: DedupeIdentity
    submitted_by: str

    def row(self) -> dict[str, Any]:
        payload, control = self.envelope.payload, self.envelope.control
        return {
            "dedupe_key": self.identity.key,
            "strategy": self.identity.strategy,
            "request_id": self.context.request_id,
            "received_at": self.context.received_at,
            "request_context": self.context.to_wire(),
            "raw_payload": payload.raw if control.ingestion_tier == "full" else None,
            "normalized_text": payload.normalized_text,
            "attachments": [attachment.to_wire() for attachment in payload.attachments],
            "policy_tier": control.policy_tier,
            "pinned_target": control.pinned_target,
            "submitted_by": self.submitted_by,
            "schema_version": self.envelope.schema_version,
        }


class HotPath(Protocol):
    def offer(self, message: MessageRef) -> None: ...


class Ingress:
    """Accepts envelopes."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        hot_path: HotPath,
        roster: Collection[str],
        registry: Registry,  # knows butlers beyond the roster, too
        clock: Clock,
        new_id: Callable[[], UUID],
        telemetry: Telemetry,
        content_window_s: float = 300.0,
    ) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard", schema=schema)
        self._hot_path = hot_path
        self._roster = roster
        self._registry = registry
        self._clock = clock
        self._new_id = new_id
        self._telemetry = telemetry
        self._window = timedelta(seconds=content_window_s)
        self._committer = GroupCommitter(self._commit, max_batch=500, isolate_failures=True)

    async def accept(self, envelope: IngestEnvelope, *, submitted_by: Caller) -> IngestReply:
        """Store one message, or find the request it repeats."""
        started = self._clock.monotonic()
        await self._check_target(envelope.control.pinned_target)
        with self._telemetry.span(
            INGEST, parent=envelope.control.trace_context, source_channel=envelope.source.channel
        ):
            submission = self._submission(envelope, submitted_by)
            request_id = await self._committer.submit(submission)
        duplicate = request_id != submission.context.request_id
        self._record(submission, request_id, duplicate, started)
        if not duplicate:
            self._hot_path.offer(_reference(submission))
        return IngestReply(request_id=request_id, duplicate=duplicate)

    async def close(self) -> None:
        await self._committer.close()

    async def _check_target(self, target: str | None) -> None:
        """Nobody of that name will ever take it, so whoever hands it in hears that now."""
        if target is None or target in self._roster:
            return
        known = {*self._roster, *(butler.name for butler in await self._registry.butlers())}
        if target not in known:
            there = ", ".join(sorted(known - NOT_ROUTABLE))
            raise invalid("control.pinned_target", f"is no butler here; there are {there}")

    def _submission(self, envelope: IngestEnvelope, submitted_by: Caller) -> Submission:
        context = RequestContext(
            request_id=self._new_id(),
            received_at=self._clock.now(),
            source_channel=envelope.source.channel,
            source_endpoint_identity=envelope.source.endpoint_identity,
            source_sender_identity=envelope.sender.identity,
            source_thread_identity=envelope.event.external_thread_id,
            trace_context=envelope.control.trace_context or self._telemetry.inject(),
        )
        return Submission(
            envelope=envelope,
            context=context,
            identity=dedupe_identity(envelope, from_connector=submitted_by.role is Role.CONNECTOR),
            submitted_by=submitted_by.name,
        )

    async def _commit(self, submissions: Sequence[Submission]) -> Sequence[UUID]:
        """One transaction for the whole batch; returns the canonical request of each."""
        first_of_key: dict[str, Submission] = {}
        for submission in submissions:
            first_of_key.setdefault(submission.identity.key, submission)
        rows = [submission.row() for submission in first_of_key.values()]
        async with self._database.transaction() as connection:
            fresh = await connection.fetch(self._queries.admit_events, rows, self._window)
            canonical = {row["dedupe_key"]: first_of_key[row["dedupe_key"]].context.request_id for row in fresh}
            if known := list(first_of_key.keys() - canonical.keys()):
                stored = await connection.fetch(self._queries.known_requests, known)
                canonical |= {row["dedupe_key"]: row["request_id"] for row in stored}
        return [canonical[submission.identity.key] for submission in submissions]

    def _record(self, submission: Submission, request_id: UUID, duplicate: bool, started: float) -> None:
        channel, control = submission.envelope.source.channel, submission.envelope.control
        self._telemetry.count(MESSAGE_RECEIVED, source_channel=channel, policy_tier=control.policy_tier)
        if duplicate:
            self._telemetry.count(MESSAGE_DEDUPLICATED, source_channel=channel, strategy=submission.identity.strategy)
        self._telemetry.observe(
            INGRESS_ACCEPT_LATENCY, (self._clock.monotonic() - started) * 1000, source_channel=channel
        )
        log.info(
            "ingest deduplicated" if duplicate else "ingest accepted",
            request_id=request_id,
            source_channel=channel,
            dedupe_key=submission.identity.key,
            dedupe_action="deduped" if duplicate else "accepted",
        )


def _reference(submission: Submission) -> MessageRef:
    return MessageRef(
        request_id=submission.context.request_id,
        received_at=submission.context.received_at,
        policy_tier=submission.envelope.control.policy_tier,
        source_channel=submission.envelope.source.channel,
    )
