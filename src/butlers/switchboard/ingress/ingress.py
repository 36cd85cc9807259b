"""The door in: accept, deduplicate, decide whether there is room, store; then tell the buffer.

Many submissions at once share one transaction (group commit), so durability costs little. A reply means that the
message is on disk.

    accept -> group commit: ask admission -> insert what has a place -> look up what was known -> reply | refusal

Being known comes before being refused: a retry of something that is stored gets its request back however full it is,
because refusing it would free nothing and make the caller come again. Within the transaction that costs one look-up,
and only for what is not new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext, invalid
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.errors import ClassifiedError
from butlers.storage.database import Database
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.admission import WAITS, Admission, Outcome
from butlers.switchboard.ingress.authority import authorize
from butlers.switchboard.ingress.submission import Offer, Placed, Submission
from butlers.switchboard.registry import NOT_ROUTABLE, Registry
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    ADMISSION,
    INGRESS_ACCEPT_LATENCY,
    MESSAGE_DEDUPLICATED,
    MESSAGE_RECEIVED,
    MESSAGE_REJECTED,
    REQUEST_FINISHED,
)
from butlers.telemetry.spans import INGEST

log = get_logger("butlers.ingress")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRef:
    """A stored message, as the buffer's queues carry it."""

    request_id: UUID
    received_at: datetime
    policy_tier: str
    source_channel: str = ""  # whose turn it is, within a tier
    attempts: int = 0  # that were begun and have not ended, when it was found


class HotPath(Protocol):
    def offer(self, message: MessageRef) -> object: ...

    def full(self) -> bool: ...


class Gate(Protocol):
    async def admit(self, envelope: IngestEnvelope, submitted_by: Caller) -> bool:
        """True: to be worked on; false: it was a command and is done. Raises `SenderRefused`."""


class Ingress:
    """Accepts envelopes."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        hot_path: HotPath,
        admission: Admission,
        gate: Gate,
        roster: Collection[str],
        registry: Registry,  # knows butlers beyond the roster, too
        clock: Clock,
        new_id: Callable[[], UUID],
        telemetry: Telemetry,
        content_window_s: float = 300.0,
        shows_end: Callable[[RequestContext], bool] = lambda _: False,  # its author is told when it is shed
        accepted: Callable[[datetime, str, float], None] = lambda *_: None,  # when it came, by which channel, after ms
    ) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard", schema=schema)
        self._hot_path = hot_path
        self._admission = admission
        self._gate = gate
        self._roster = roster
        self._registry = registry
        self._clock = clock
        self._new_id = new_id
        self._telemetry = telemetry
        self._window = timedelta(seconds=content_window_s)
        self._shows_end = shows_end
        self._accepted = accepted
        self._committer = GroupCommitter(self._commit, max_batch=500, isolate_failures=True)

    async def accept(self, envelope: IngestEnvelope, *, submitted_by: Caller) -> IngestReply:
        """Store one message, or find the request it repeats. Raises `Forbidden` when the caller may not speak for the
        source, `SenderRefused` when its sender may not write in, and `OverloadRejected` when there is no room.
        """
        started, source, control = self._clock.monotonic(), envelope.source, envelope.control
        authorize(submitted_by, envelope)
        if not await self._gate.admit(envelope, submitted_by):
            # A command to the door itself: it is done, and nothing is left to be worked on.
            return IngestReply(request_id=self._new_id(), duplicate=False)
        if control.pinned_target is not None:
            await self._check_target(control.pinned_target)
        with self._telemetry.span(INGEST, parent=control.trace_context, source_channel=source.channel):
            offer = Offer(
                envelope=envelope,
                submitted_by=submitted_by,
                received_at=self._clock.now(),
                started=started,
                trace_context=control.trace_context or self._telemetry.inject(),
            )
            placed = await self._committer.submit(offer)
        if placed.request_id is None:
            raise self._admission.refusal()
        return IngestReply(request_id=placed.request_id, duplicate=placed.outcome is None)

    def count_refusal(self, error: ClassifiedError) -> None:
        self._telemetry.count(MESSAGE_REJECTED, error_class=error.error_class.value)

    async def close(self) -> None:
        await self._committer.close()

    async def _check_target(self, target: str) -> None:
        """No butler of that name will ever take it, so the caller is refused now."""
        if target in self._roster:
            return
        known = {*self._roster, *(butler.name for butler in await self._registry.butlers())}
        if target not in known:
            there = ", ".join(sorted(known - NOT_ROUTABLE))
            raise invalid("control.pinned_target", f"is no butler here; there are {there}")

    async def _commit(self, offers: Sequence[Offer]) -> Sequence[Placed]:
        """One transaction for the whole batch; returns what became of each."""
        submissions = [Submission.of(offer, self._new_id()) for offer in offers]
        first_of_key: dict[str, Submission] = {}
        for submission in submissions:
            first_of_key.setdefault(submission.identity.key, submission)
        full = self._hot_path.full()
        outcomes = {
            key: self._admission.decide(
                channel=first.context.source_channel, tier=first.envelope.control.policy_tier, queues_full=full
            )
            for key, first in first_of_key.items()
        }
        request_ids: dict[str, UUID] = {}
        fresh: set[str] = set()
        try:
            fresh, request_ids = await self._store(first_of_key, outcomes)
        finally:
            for key, outcome in outcomes.items():
                if outcome in WAITS:
                    channel = first_of_key[key].context.source_channel
                    self._admission.occupancy.settle(channel, stored=key in fresh)
        placed = []
        for submission in submissions:
            key, became = submission.identity.key, None
            if key not in request_ids:
                became = Outcome.REJECTED
            elif key in fresh and submission is first_of_key[key]:
                became = outcomes[key]
            placed.append(Placed(request_id=request_ids.get(key), outcome=became))
        self._tell(submissions, placed)
        return placed

    async def _store(
        self, submissions: Mapping[str, Submission], outcomes: Mapping[str, Outcome]
    ) -> tuple[set[str], dict[str, UUID]]:
        """The keys that were new and are stored now, and the requests of these and of the keys that were known."""
        rows = []
        for key, submission in submissions.items():
            shed = outcomes[key] is Outcome.SHED
            if outcomes[key] is not Outcome.REJECTED:
                rows.append(submission.row(shed=shed, signal_pending=shed and self._shows_end(submission.context)))
        async with self._database.transaction() as connection:
            fresh: set[str] = set()
            if rows:
                columns = [list(column) for column in zip(*rows, strict=True)]  # faster to take apart than a document
                stored = await connection.fetch(self._queries.admit_events, *columns, self._window)
                fresh = {row["dedupe_key"] for row in stored}
            request_ids = {key: submissions[key].context.request_id for key in fresh}
            if repeated := submissions.keys() - fresh:
                oldest = min(submissions[key].context.received_at for key in repeated) - self._window
                known = await connection.fetch(self._queries.known_requests, list(repeated), oldest)
                request_ids |= {row["dedupe_key"]: row["request_id"] for row in known}
        return fresh, request_ids

    def _tell(self, submissions: Sequence[Submission], placed: Sequence[Placed]) -> None:
        """Count and log what became of a batch, and hand the buffer what waits."""
        counts: Counter[tuple[str, str, Outcome | None, str]] = Counter()
        now = self._clock.monotonic()
        for submission, place in zip(submissions, placed, strict=True):
            context, tier = submission.context, submission.envelope.control.policy_tier
            channel, elapsed_ms = context.source_channel, (now - submission.started) * 1000
            counts[channel, tier, place.outcome, submission.identity.strategy] += 1
            self._telemetry.observe(INGRESS_ACCEPT_LATENCY, elapsed_ms, source_channel=channel)
            if place.request_id is not None:
                self._accepted(context.received_at, channel, elapsed_ms)
            _log(submission, place)
            if place.outcome in WAITS:
                self._hot_path.offer(
                    MessageRef(
                        request_id=context.request_id,
                        received_at=context.received_at,
                        policy_tier=tier,
                        source_channel=channel,
                    )
                )
        for (channel, policy_tier, outcome, strategy), number in counts.items():
            self._telemetry.count(MESSAGE_RECEIVED, number, source_channel=channel, policy_tier=policy_tier)
            if outcome is None:
                self._telemetry.count(MESSAGE_DEDUPLICATED, number, source_channel=channel, strategy=strategy)
            else:
                self._telemetry.count(
                    ADMISSION, number, source_channel=channel, policy_tier=policy_tier, outcome=outcome.value
                )
            if outcome is Outcome.SHED:
                self._telemetry.count(REQUEST_FINISHED, number, source_channel=channel, lifecycle_state="errored")


def _log(submission: Submission, placed: Placed) -> None:
    ids = {"request_id": placed.request_id, "source_channel": submission.context.source_channel}
    key, outcome = submission.identity.key, placed.outcome
    match outcome:
        case None:
            log.info("ingest deduplicated", dedupe_key=key, dedupe_action="deduped", **ids)
        case Outcome.ACCEPTED:
            log.info("ingest accepted", dedupe_key=key, dedupe_action="accepted", **ids)
        case Outcome.REJECTED:
            log.info("ingest rejected", dedupe_key=key, outcome=outcome, **ids)
        case Outcome.DEFERRED | Outcome.SHED:
            log.info("ingest overflow", dedupe_key=key, dedupe_action="accepted", outcome=outcome, **ids)
