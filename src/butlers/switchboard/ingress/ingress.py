"""The door in: accept, deduplicate, decide whether there is room, store; then tell the buffer.

Many submissions at once share one transaction (group commit), so durability costs little. A reply means that the
message is on disk.

    accept -> group commit: ask admission -> insert what has a place -> look up what was known -> reply | refusal

Being known comes before being refused: a retry of something that is stored gets its request back however full it is,
because refusing it would free nothing and make the caller come again. Within the transaction that costs one look-up,
and only for what is not new.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from pydantic_core import to_json

from butlers.butler.identity import Caller
from butlers.channels.channel import Dedupe
from butlers.channels.registry import channel_of
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext, invalid
from butlers.contracts.ingest import IngestEnvelope, IngestReply
from butlers.errors import ClassifiedError
from butlers.operations.operation import Role
from butlers.reliability.idempotency import content_key, event_key
from butlers.storage.database import Database
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries
from butlers.switchboard.ingress.buffer import WAITS, Admission, Outcome, decide
from butlers.switchboard.registry import NOT_ROUTABLE, Registry
from butlers.switchboard.requests.inbox import MessageRef
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import (
    ADMISSION,
    INGRESS_ACCEPT_LATENCY,
    MESSAGE_DEDUPLICATED,
    MESSAGE_RECEIVED,
    MESSAGE_REJECTED,
    REQUEST_FINISHED,
)
from butlers.telemetry.spans import INGEST
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.ingress")
Strategy = Literal["event", "idempotency_key", "content"]
LONGEST_THREAD_KEY = 300
_SHED = to_json(
    {
        "class": "overload_rejected",
        "message": "more messages wait than may wait; this one is not worked on",
        "retryable": True,
    }
).decode()


class DedupeIdentity(NamedTuple):
    """What makes two messages one request."""

    key: str
    strategy: Strategy


class Placed(NamedTuple):
    """What became of one message."""

    request_id: UUID | None  # the canonical one; None: rejected, nothing is stored
    outcome: Outcome | None  # None: it was known already


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A message as it came to the door; what else its row needs is made for a whole batch (decision 0070)."""

    envelope: IngestEnvelope
    submitted_by: Caller
    received_at: datetime
    started: float  # on the monotonic clock
    trace_context: dict[str, str]

    def row(self, identity: DedupeIdentity, request_id: UUID, *, shed: bool, signal_pending: bool) -> tuple[Any, ...]:
        """Its values, in the order of the query `admit_events`. JSON goes as text: in an array of a column, a list
        would be taken for a dimension more.
        """
        envelope, payload, control = self.envelope, self.envelope.payload, self.envelope.control
        context = RequestContext(
            request_id=request_id,
            received_at=self.received_at,
            source_channel=envelope.source.channel,
            source_endpoint_identity=envelope.source.endpoint_identity,
            source_sender_identity=envelope.sender.identity,
            source_thread_identity=envelope.event.external_thread_id,
            trace_context=self.trace_context,
        )
        keep_raw = control.ingestion_tier == "full" and payload.raw is not None
        thread_key = None  # what orders the messages of one thread; a message without one stands alone
        if context.source_thread_identity is not None:
            thread_key = f"{context.source_channel}:{context.source_endpoint_identity}:{context.source_thread_identity}"
            if len(thread_key) > LONGEST_THREAD_KEY:
                thread_key = hashlib.sha256(thread_key.encode("utf-8", "surrogatepass")).hexdigest()
        return (
            identity.key,
            identity.strategy,
            request_id,
            context.received_at,
            to_json(context.to_wire()).decode(),
            to_json(payload.raw).decode() if keep_raw else None,
            payload.normalized_text,
            to_json([attachment.to_wire() for attachment in payload.attachments]).decode(),
            control.policy_tier,
            control.pinned_target,
            self.submitted_by.name,
            envelope.schema_version,
            context.source_channel,
            thread_key,
            "errored" if shed else "accepted",
            _SHED if shed else None,
            signal_pending,
        )


def dedupe_identity(envelope: IngestEnvelope, *, submitted_by: Caller) -> DedupeIdentity:
    source, event, control = envelope.source, envelope.event, envelope.control
    submitter = "caller" if submitted_by.role is Role.OPERATOR else f"{submitted_by.role.value}:{submitted_by.name}"
    inbound = channel_of(source.channel).inbound
    strategy: Strategy
    if inbound is not None and inbound.dedupe is Dedupe.EVENT:
        strategy, name = "event", event.external_event_id
    elif control.idempotency_key is not None:
        strategy, name = "idempotency_key", control.idempotency_key
    else:
        key = content_key(
            channel=f"{source.channel}:{submitter}",
            endpoint_identity=source.endpoint_identity,
            sender_identity=envelope.sender.identity,
            payload=f"{control.pinned_target or ''}\n{envelope.payload.normalized_text}",
            window=0,  # the window slides: the age of the stored row is compared instead
            external_event_id=event.external_event_id,
        )
        return DedupeIdentity(key, "content")
    key = event_key(
        channel=f"{source.channel}:{strategy}:{submitter}",
        endpoint_identity=source.endpoint_identity,
        external_event_id=name,
    )
    return DedupeIdentity(key, strategy)


class HotPath(Protocol):
    def offer(self, message: MessageRef) -> object: ...

    def full(self) -> bool: ...


class Gate(Protocol):
    async def admit(self, envelope: IngestEnvelope, submitted_by: Caller) -> bool:
        """True: to be worked on; false: it was a command and is done. Raises `Forbidden`, `SenderRefused`."""


@dataclass(slots=True, kw_only=True)
class Ingress:
    """Accepts envelopes."""

    database: Database
    queries: Queries  # of butlers.switchboard
    hot_path: HotPath
    admission: Admission
    gate: Gate
    roster: Collection[str]
    registry: Registry  # knows butlers beyond the roster, too
    clock: Clock
    new_id: Callable[[], UUID]
    telemetry: Telemetry
    content_window: timedelta
    shows_end: Callable[[str, str | None], bool]  # by channel and thread: whether the author is told when it is shed
    accepted: Callable[[datetime, str, float], None]  # when a message came, by which channel, after how many ms
    _committer: GroupCommitter[Offer, Placed] = field(init=False)

    def __post_init__(self) -> None:
        self._committer = GroupCommitter(self._commit, max_batch=500)

    async def accept(self, envelope: IngestEnvelope, *, submitted_by: Caller) -> IngestReply:
        """Store one message, or find the request it repeats. Raises `Forbidden` when the caller may not speak for the
        source, `SenderRefused` when its sender may not write in, and `OverloadRejected` when there is no room.
        """
        started, source, control = self.clock.monotonic(), envelope.source, envelope.control
        if not await self.gate.admit(envelope, submitted_by):
            # A command to the door itself: it is done, and nothing is left to be worked on.
            return IngestReply(request_id=self.new_id(), duplicate=False)
        if control.pinned_target is not None:
            await self._check_target(control.pinned_target)
        with self.telemetry.span(INGEST, parent=control.trace_context, source_channel=source.channel):
            offer = Offer(
                envelope=envelope,
                submitted_by=submitted_by,
                received_at=self.clock.now(),
                started=started,
                trace_context=control.trace_context or self.telemetry.inject(),
            )
            placed = await self._committer.submit(offer)
        if placed.request_id is None:
            raise self.admission.refusal()
        return IngestReply(request_id=placed.request_id, duplicate=placed.outcome is None)

    def count_refusal(self, error: ClassifiedError) -> None:
        self.telemetry.count(MESSAGE_REJECTED, error_class=error.error_class.value)

    async def close(self) -> None:
        await self._committer.close()

    async def _check_target(self, target: str) -> None:
        """No butler of that name will ever take it, so the caller is refused now."""
        if target in self.roster:
            return
        known = {*self.roster, *(butler.name for butler in await self.registry.butlers())}
        if target not in known:
            there = ", ".join(sorted(known - NOT_ROUTABLE))
            raise invalid("control.pinned_target", f"is no butler here; there are {there}")

    async def _commit(self, offers: Sequence[Offer]) -> Sequence[Placed]:
        """One transaction for the whole batch; returns what became of each."""
        identities = [dedupe_identity(offer.envelope, submitted_by=offer.submitted_by) for offer in offers]
        firsts: dict[str, tuple[Offer, DedupeIdentity]] = {}
        for offer, identity in zip(offers, identities, strict=True):
            firsts.setdefault(identity.key, (offer, identity))
        full, policy, occupancy = self.hot_path.full(), self.admission.policy, self.admission.occupancy
        outcomes: dict[str, Outcome] = {}
        entered: dict[str, str] = {}  # key -> channel
        for key, (first, _) in firsts.items():
            channel, tier = first.envelope.source.channel, first.envelope.control.policy_tier
            outcomes[key] = decide(policy, channel=channel, tier=tier, waiting=occupancy.waiting, queues_full=full)
            if outcomes[key] in WAITS:
                occupancy.enter(channel)
                entered[key] = channel
        request_ids: dict[str, UUID] = {}
        fresh: set[str] = set()
        try:
            fresh, request_ids = await self._store(firsts, outcomes)
        finally:
            for key, channel in entered.items():
                occupancy.settle(channel, stored=key in fresh)
        placed = []
        for offer, (key, _) in zip(offers, identities, strict=True):
            became = None
            if key not in request_ids:
                became = Outcome.REJECTED
            elif key in fresh and offer is firsts[key][0]:
                became = outcomes[key]
            placed.append(Placed(request_ids.get(key), became))
        self._tell(offers, identities, placed)
        return placed

    async def _store(
        self, firsts: Mapping[str, tuple[Offer, DedupeIdentity]], outcomes: Mapping[str, Outcome]
    ) -> tuple[set[str], dict[str, UUID]]:
        """The keys that were new and are stored now, and the requests of these and of the keys that were known."""
        new_ids = {key: self.new_id() for key in firsts}
        rows = []
        for key, (offer, identity) in firsts.items():
            if outcomes[key] is not Outcome.REJECTED:
                shed, envelope = outcomes[key] is Outcome.SHED, offer.envelope
                signals = shed and self.shows_end(envelope.source.channel, envelope.event.external_thread_id)
                rows.append(offer.row(identity, new_ids[key], shed=shed, signal_pending=signals))
        async with self.database.transaction() as connection:
            fresh: set[str] = set()
            if rows:
                columns = [list(column) for column in zip(*rows, strict=True)]  # faster to take apart than a document
                stored = await connection.fetch(self.queries.admit_events, *columns, self.content_window)
                fresh = {row["dedupe_key"] for row in stored}
            request_ids = {key: new_ids[key] for key in fresh}
            if repeated := firsts.keys() - fresh:
                oldest = min(firsts[key][0].received_at for key in repeated) - self.content_window
                known = await connection.fetch(self.queries.known_requests, list(repeated), oldest)
                request_ids |= {row["dedupe_key"]: row["request_id"] for row in known}
        return fresh, request_ids

    def _tell(self, offers: Sequence[Offer], identities: Sequence[DedupeIdentity], placed: Sequence[Placed]) -> None:
        """Count and log what became of a batch, and hand the buffer what waits."""
        counts: Counter[tuple[str, str, Outcome | None, str]] = Counter()
        now = self.clock.monotonic()
        for offer, identity, (request_id, outcome) in zip(offers, identities, placed, strict=True):
            channel, tier = offer.envelope.source.channel, offer.envelope.control.policy_tier
            elapsed_ms = (now - offer.started) * 1000
            counts[channel, tier, outcome, identity.strategy] += 1
            self.telemetry.observe(INGRESS_ACCEPT_LATENCY, elapsed_ms, source_channel=channel)
            _log(identity.key, outcome, {"request_id": request_id, "source_channel": channel})
            if request_id is not None:
                self.accepted(offer.received_at, channel, elapsed_ms)
            if request_id is not None and outcome in WAITS:
                self.hot_path.offer(
                    MessageRef(
                        request_id=request_id,
                        received_at=offer.received_at,
                        policy_tier=tier,
                        source_channel=channel,
                    )
                )
        for (channel, policy_tier, outcome, strategy), number in counts.items():
            self.telemetry.count(MESSAGE_RECEIVED, number, source_channel=channel, policy_tier=policy_tier)
            if outcome is None:
                self.telemetry.count(MESSAGE_DEDUPLICATED, number, source_channel=channel, strategy=strategy)
            else:
                self.telemetry.count(
                    ADMISSION, number, source_channel=channel, policy_tier=policy_tier, outcome=outcome.value
                )
            if outcome is Outcome.SHED:
                self.telemetry.count(REQUEST_FINISHED, number, source_channel=channel, lifecycle_state="errored")


def _log(key: str, outcome: Outcome | None, ids: Mapping[str, Any]) -> None:
    match outcome:
        case None:
            log.info("ingest deduplicated", dedupe_key=key, dedupe_action="deduped", **ids)
        case Outcome.ACCEPTED:
            log.info("ingest accepted", dedupe_key=key, dedupe_action="accepted", **ids)
        case Outcome.REJECTED:
            log.info("ingest rejected", dedupe_key=key, outcome=outcome, **ids)
        case Outcome.DEFERRED | Outcome.SHED:
            log.info("ingest overflow", dedupe_key=key, dedupe_action="accepted", outcome=outcome, **ids)
