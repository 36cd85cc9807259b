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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext, invalid
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.errors import ClassifiedError
from butlers.storage.database import Database, Executor
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.admission import Admission, Outcome
from butlers.switchboard.ingress.authority import authorize
from butlers.switchboard.ingress.submission import Offer, Placed, Submission, columns
from butlers.switchboard.registry import NOT_ROUTABLE, Registry
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import (
    INGRESS_ACCEPT_LATENCY,
    MESSAGE_DEDUPLICATED,
    MESSAGE_RECEIVED,
    MESSAGE_REJECTED,
    REQUEST_FINISHED,
)
from butlers.telemetry.spans import INGEST

log = get_logger("butlers.ingress")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRecord:
    telemetry: Telemetry
    admission: Admission
    clock: Clock
    accepted: Callable[[datetime, str, float], None]  # when it came, by which channel, after ms

    def tell(self, results: Iterable[tuple[Submission, Placed]]) -> None:
        counts: Counter[tuple[str, str, Outcome | None, str]] = Counter()
        now = self.clock.monotonic()
        for submission, placed in results:
            channel, elapsed_ms = submission.channel, (now - submission.started) * 1000
            counts[channel, submission.tier, placed.outcome, submission.identity.strategy] += 1
            self.telemetry.observe(INGRESS_ACCEPT_LATENCY, elapsed_ms, source_channel=channel)
            if placed.request_id is not None:
                self.accepted(submission.context.received_at, channel, elapsed_ms)
            _log(submission, placed)
        for (channel, tier, outcome, strategy), number in counts.items():
            self._count(channel, tier, outcome, strategy, number)

    def _count(self, channel: str, tier: str, outcome: Outcome | None, strategy: str, number: int) -> None:
        self.telemetry.count(MESSAGE_RECEIVED, number, source_channel=channel, policy_tier=tier)
        if outcome is None:
            self.telemetry.count(MESSAGE_DEDUPLICATED, number, source_channel=channel, strategy=strategy)
        else:
            self.admission.record(outcome, number, channel=channel, tier=tier)
        if outcome is Outcome.SHED:
            self.telemetry.count(REQUEST_FINISHED, number, source_channel=channel, lifecycle_state="errored")


def _log(submission: Submission, placed: Placed) -> None:
    ids = {"request_id": placed.request_id, "source_channel": submission.channel}
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


_WAITS = frozenset({Outcome.ACCEPTED, Outcome.DEFERRED})


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRef:
    """A stored message, as the buffer's queues carry it."""

    request_id: UUID
    received_at: datetime
    policy_tier: str
    source_channel: str = ""  # whose turn it is, within a tier
    attempts: int = 0  # that were begun and have not ended, when it was found


class HotPath(Protocol):
    def offer(self, message: MessageRef) -> None: ...

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
        self._record = IngestRecord(telemetry=telemetry, admission=admission, clock=clock, accepted=accepted)
        self._committer = GroupCommitter(self._commit, max_batch=500, isolate_failures=True)

    async def accept(self, envelope: IngestEnvelope, *, submitted_by: Caller) -> IngestReply:
        """Store one message, or find the request it repeats. Raises `Forbidden` when the caller may not speak for the
        source, `SenderRefused` when its sender may not write in, and `OverloadRejected` when there is no room.
        """
        started = self._clock.monotonic()
        authorize(submitted_by, envelope)
        if not await self._gate.admit(envelope, submitted_by):
            # A command to the door itself: it is done, and nothing is left to be worked on.
            return IngestReply(request_id=self._new_id(), duplicate=False)
        if envelope.control.pinned_target is not None:
            await self._check_target(envelope.control.pinned_target)
        with self._telemetry.span(
            INGEST, parent=envelope.control.trace_context, source_channel=envelope.source.channel
        ):
            offer = Offer(
                envelope=envelope,
                submitted_by=submitted_by,
                received_at=self._clock.now(),
                started=started,
                trace_context=envelope.control.trace_context or self._telemetry.inject(),
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
        """Nobody of that name will ever take it, so whoever hands it in hears that now."""
        if target in self._roster:
            return
        known = {*self._roster, *(butler.name for butler in await self._registry.butlers())}
        if target not in known:
            there = ", ".join(sorted(known - NOT_ROUTABLE))
            raise invalid("control.pinned_target", f"is no butler here; there are {there}")

    async def _commit(self, offers: Sequence[Offer]) -> Sequence[Placed]:
        """One transaction for the whole batch; returns what became of each."""
        submissions = [Submission.of(offer, self._new_id()) for offer in offers]
        placed = await self._place(submissions)
        self._record.tell(zip(submissions, placed, strict=True))
        for submission, place in zip(submissions, placed, strict=True):
            if place.outcome in _WAITS:
                self._hot_path.offer(_reference(submission))
        return placed

    async def _place(self, submissions: Sequence[Submission]) -> list[Placed]:
        first_of_key: dict[str, Submission] = {}
        for submission in submissions:
            first_of_key.setdefault(submission.identity.key, submission)
        outcomes = self._ask(first_of_key)
        fresh: set[str] = set()
        try:
            async with self._database.transaction() as connection:
                stored = await self._insert(connection, first_of_key, outcomes)
                known = await self._known(connection, first_of_key, first_of_key.keys() - stored)
            fresh = stored
        finally:
            for key, outcome in outcomes.items():
                self._admission.settle(outcome, channel=first_of_key[key].channel, stored=key in fresh)
        return [_placed(submission, first_of_key, fresh, known, outcomes) for submission in submissions]

    def _ask(self, submissions: dict[str, Submission]) -> dict[str, Outcome]:
        full = self._hot_path.full()
        return {
            key: self._admission.ask(channel=submission.channel, tier=submission.tier, queues_full=full)
            for key, submission in submissions.items()
        }

    async def _insert(
        self, connection: Executor, submissions: dict[str, Submission], outcomes: dict[str, Outcome]
    ) -> set[str]:
        """The keys that were new and are stored now."""
        rows = [
            self._row(submission, outcomes[key])
            for key, submission in submissions.items()
            if outcomes[key] is not Outcome.REJECTED
        ]
        if not rows:
            return set()
        stored = await connection.fetch(self._queries.admit_events, *columns(rows), self._window)
        return {row["dedupe_key"] for row in stored}

    def _row(self, submission: Submission, outcome: Outcome) -> tuple[object, ...]:
        shed = outcome is Outcome.SHED
        return submission.row(shed=shed, signal_pending=shed and self._shows_end(submission.context))

    async def _known(
        self, connection: Executor, submissions: dict[str, Submission], keys: Collection[str]
    ) -> dict[str, UUID]:
        """The requests that these keys belong to already."""
        if not keys:
            return {}
        oldest = min(submissions[key].context.received_at for key in keys) - self._window
        rows = await connection.fetch(self._queries.known_requests, list(keys), oldest)
        return {row["dedupe_key"]: row["request_id"] for row in rows}


def _placed(
    submission: Submission,
    first_of_key: dict[str, Submission],
    fresh: Collection[str],
    known: dict[str, UUID],
    outcomes: dict[str, Outcome],
) -> Placed:
    key = submission.identity.key
    first = first_of_key[key]
    if key in fresh:
        return Placed(request_id=first.context.request_id, outcome=outcomes[key] if submission is first else None)
    if key in known:
        return Placed(request_id=known[key], outcome=None)
    return Placed(request_id=None, outcome=Outcome.REJECTED)


def _reference(submission: Submission) -> MessageRef:
    return MessageRef(
        request_id=submission.context.request_id,
        received_at=submission.context.received_at,
        policy_tier=submission.tier,
        source_channel=submission.channel,
    )
