"""The message rows: claimed (`butlers.storage.claims`), so that nothing is lost and nothing is finished twice.

Messages of one thread are claimed in the order in which they came: while an earlier one is to be done or held by a
worker, a later one cannot be claimed. One that is put off is not to be done now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID

from pydantic import Field
from pydantic_core import to_json

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, Tool
from butlers.channels.registry import channel_of
from butlers.clock import Clock
from butlers.contracts.envelope import RequestContext, RequestId, Value
from butlers.contracts.notify import NotifyContext
from butlers.errors import LeaseLost, NotFound
from butlers.operations.operation import BUTLERS, READS, Result, Row
from butlers.storage.claims import Claim, Claims, ClaimTable
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.storage.retention import add_months, drop_month_partitions_before, ensure_month_partitions
from butlers.switchboard.dispatch.plan import SegmentOutcome
from butlers.switchboard.routing.decision import Decision
from butlers.telemetry import get_logger

log = get_logger("butlers.retention")

INBOX = "message_inbox"
MONTHS_AHEAD = 2
MOST_RECENT = 1_000  # requests whose lineage stays in memory
_AS_STORED = (  # columns that a claimed message takes over as they are
    *("attachments", "pinned_target", "routing_output", "attempts", "last_failure", "raw_payload", "thread_key"),
    *("override", "progress_at", "calls"),
)
MESSAGE_CLAIMS = ClaimTable(
    name=INBOX,
    key={"request_id": "uuid", "received_at": "timestamptz"},
    state="lifecycle_state",
    held="progress",
    waiting="work.lifecycle_state = 'accepted' AND (work.not_before IS NULL OR work.not_before <= $1)",
    order="""NOT EXISTS (
        SELECT 1 FROM {schema}.message_inbox AS earlier
        WHERE earlier.thread_key = work.thread_key AND earlier.lifecycle_state IN ('accepted', 'progress')
          AND (earlier.received_at, earlier.request_id) < (work.received_at, work.request_id)
          AND (earlier.lifecycle_state = 'progress' OR earlier.not_before IS NULL OR earlier.not_before <= $1))""",
    on_claim={"progress_at": "coalesce(work.progress_at, $1)"},
    returned=("request_context", "normalized_text", "dispatch_outcomes", "updated_at", *_AS_STORED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRef:
    """A stored message, as the buffer's queues carry it."""

    request_id: UUID
    received_at: datetime
    policy_tier: str
    source_channel: str = ""  # whose turn it is, within a tier
    attempts: int = 0  # that were begun and have not ended, when it was found


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedMessage:
    """A message that this worker, and no other, may process now."""

    ref: MessageRef
    claim: Claim
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
    progress_at: datetime | None = None  # when a worker first claimed it
    first: bool = True  # no worker claimed it before
    calls: int = 0  # of butlers and models that were made for it before
    last_failure: str | None = None  # why the last attempt did not end, when its worker could still say so

    @property
    def waiting_since(self) -> datetime:
        """Since when it has been waiting: since it came, or since an operator put it back."""
        again = (self.override or {}).get("at")
        return datetime.fromisoformat(again) if isinstance(again, str) else self.ref.received_at


class MessageInbox:
    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.switchboard", schema=schema)
        self._clock = clock
        self._new_id = new_id
        self._claims = Claims(MESSAGE_CLAIMS, database=database, schema=schema, clock=clock, new_id=new_id)
        self._record_decision = self._claims.fill(self._queries.record_decision)
        self._finish_request = self._claims.fill(self._queries.finish_request)

    async def claim(
        self, ref: MessageRef, *, worker: str, lease_s: float, suspect: bool = False
    ) -> ClaimedMessage | None:
        """None: another worker has it, it is not its turn, or it is a suspect and `suspect` is false."""
        key = (ref.request_id, ref.received_at)
        held = await self._claims.claim(key, worker=worker, lease_s=lease_s, suspects=suspect)
        if held is None:
            return None
        claim, row = held
        return ClaimedMessage(
            ref=ref,
            claim=claim,
            context=RequestContext.model_validate(row["request_context"], strict=False),
            text=row["normalized_text"],
            dispatch_outcomes=row["dispatch_outcomes"] or (),
            first=row["progress_at"] == row["updated_at"],
            **{name: row[name] for name in _AS_STORED},
        )

    async def renew(self, messages: Sequence[ClaimedMessage], *, lease_s: float) -> set[UUID]:
        """The requests whose claims still stand."""
        standing = await self._claims.renew([message.claim for message in messages], lease_s=lease_s)
        return {request_id for request_id, _ in standing}

    async def release(self, workers: Sequence[str]) -> int:
        """Free what these workers held; they are known to be dead."""
        return await self._claims.end_leases_of(workers)

    async def give_back(self, message: ClaimedMessage) -> None:
        """The attempt ended early, and it was not the fault of the request: it does not count."""
        await self._claims.give_back([message.claim])

    async def record_failure(self, message: ClaimedMessage, failure: str) -> None:
        """The attempt ended early, and it counts: the message is claimed again when its lease has run out."""
        await self._claims.record(message.claim, {"last_failure": failure})

    async def record_decision(
        self, message: ClaimedMessage, routing_output: Mapping[str, Any], butlers: Sequence[str]
    ) -> datetime | None:
        """The decision is durable before anything is dispatched, so that a repeat dispatches the same. Returns until
        when an earlier message of the same thread waits for one of these butlers. Raises `LeaseLost`.
        """
        versions = (routing_output.get("prompt_version"), routing_output.get("model_version"))
        values = (*message.claim.key, message.claim.token, routing_output, *versions, self._clock.now(), list(butlers))
        row = await self._database.fetchrow(self._record_decision, *values)
        if row is None:
            raise LeaseLost(f"another worker has taken over {message.ref.request_id}")
        until: datetime | None = row["held_up_until"]
        return until

    async def record_outcomes(self, message: ClaimedMessage, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """How far the parts of a request have come, so that a repeat asks no butler again that has answered."""
        values = {"dispatch_outcomes": list(outcomes), "updated_at": self._clock.now()}
        await self._claims.record(message.claim, values)

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
        """Back into the queue for later; what is settled stays so, and the count of dead workers starts anew. It is
        decided anew, unless a butler has had a part of it, an operator decided, or the caller keeps the decision.
        """
        anew = not (keep_decision or settled or message.override is not None)
        values = {
            "lifecycle_state": "accepted",
            "not_before": not_before,
            "waiting_for": None if waiting_for is None else list(waiting_for),
            "dispatch_outcomes": list(settled),
            "attempts": 0,
            "last_failure": None,
            "calls": calls,
            "updated_at": self._clock.now(),
            **({"routing_output": None} if anew else {}),
        }
        await self._claims.settle(message.claim, values)

    async def finish(
        self,
        message: ClaimedMessage,
        state: str,  # parsed | errored
        *,
        outcomes: Sequence[Mapping[str, Any]],
        reply: Mapping[str, Any] | None,
        error: Mapping[str, Any] | None,
        signal: bool,  # its author is to be shown
        routed: Sequence[Mapping[str, Any]],  # lines of the routing log (`log_lines`)
        connection: Executor | None = None,
    ) -> None:
        """End the request and log what was dispatched for it. Raises `LeaseLost`."""
        values = (list(outcomes), reply, error, self._clock.now(), signal, list(routed))
        ended = await (connection or self._database).fetchrow(
            self._finish_request, *message.claim.key, message.claim.token, state, *values
        )
        if ended is None:
            raise LeaseLost(f"another worker has taken over {message.ref.request_id}")

    async def log_routing(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """What was dispatched for a request that goes on."""
        await self._database.execute(self._queries.log_routing, list(lines))

    def log_lines(
        self, message: ClaimedMessage, decision: Decision, outcomes: Iterable[SegmentOutcome]
    ) -> list[dict[str, Any]]:
        """Lines of the routing log, one for each segment that was dispatched."""
        now = self._clock.now().isoformat()
        return [
            {
                "id": str(self._new_id()),
                "created_at": now,
                "request_id": str(message.context.request_id),
                "segment_id": outcome.segment.segment_id,
                "source_channel": message.context.source_channel,
                "target_butler": outcome.segment.butler,
                "success": outcome.error is None,
                "duration_ms": outcome.duration_ms,
                "error_class": outcome.error.error_class.value if outcome.error else None,
                "error": outcome.error.message if outcome.error else None,
                "router": decision.router,
                "confidence": outcome.segment.confidence,
                "prompt_version": decision.prompt_version,
                "model_version": decision.model_version,
            }
            for outcome in outcomes
        ]

    async def waiting(self, *, grace_s: float, limit: int) -> list[MessageRef]:
        now = self._clock.now()
        waiting = self._claims.fill(self._queries.waiting_messages)
        rows = await self._database.fetch(waiting, now, now - timedelta(seconds=grace_s), limit)
        return [MessageRef(**dict(row)) for row in rows]

    async def next_in_thread(self, message: ClaimedMessage) -> MessageRef | None:
        if message.thread_key is None:
            return None
        row = await self._database.fetchrow(self._queries.next_in_thread, message.thread_key, self._clock.now())
        return MessageRef(**dict(row)) if row else None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxKeeper:
    database: Database
    schema: str
    queries: Queries
    clock: Clock
    keep_months: int  # whole months kept beside the present one
    keep_dedupe_days: int

    async def keep(self) -> None:
        """Make the coming months, drop the old ones."""
        this_month = self.clock.now().date().replace(day=1)
        async with self.database.connection() as connection:
            await ensure_month_partitions(connection, self.schema, INBOX, this_month, MONTHS_AHEAD)
            oldest = add_months(this_month, -self.keep_months)
            dropped = await drop_month_partitions_before(connection, self.schema, INBOX, oldest)
        for partition in dropped:
            log.info("inbox month dropped", partition=partition.name, count=partition.rows)
        await self.database.execute(self.queries.forget_notifications, datetime.combine(oldest, time(), UTC))
        cutoff = self.clock.now() - timedelta(days=self.keep_dedupe_days)
        await self.database.execute(self.queries.forget_dedupe_keys, cutoff)


class LineageArguments(Value):
    request_id: RequestId = Field(description="the id that the request got at the door: a UUID of version 7")


class LineageResult(Result):
    request_context: Row = Field(description="where the request came from, as notify.v1 wants it")
    source_event: Row | None = Field(description="what the channel needs for an answer, such as the message's id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """A request on record."""

    context: RequestContext
    source_event: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageReader:
    """Where requests came from. It never changes, so what this process works on need not be read again."""

    database: Database
    queries: Queries
    _recent: OrderedDict[UUID, Lineage] = field(default_factory=OrderedDict, init=False)

    async def of(self, request_id: UUID) -> Lineage | None:
        if (known := self._recent.get(request_id)) is not None:
            return known
        row = await self.database.fetchrow(self.queries.lineage, request_id)
        if row is None:
            return None
        return self.remember(RequestContext.model_validate_json(to_json(row["request_context"])), row["raw_payload"])

    def remember(self, context: RequestContext, raw_payload: Any) -> Lineage:
        inbound = channel_of(context.source_channel).inbound
        event = inbound.source_event(raw_payload) if inbound is not None else None
        lineage = self._recent[context.request_id] = Lineage(context=context, source_event=event)
        if len(self._recent) > MOST_RECENT:
            self._recent.popitem(last=False)
        return lineage

    def tools(self) -> list[AnyTool]:
        return [
            Tool(
                name="request.lineage",
                description="Where a request came from and what it was, for whoever answers it.",
                arguments=LineageArguments,
                returns=LineageResult,
                hints=READS,
                handler=self._answer,
                roles=BUTLERS,
                owner="messenger",
            )
        ]

    async def _answer(self, _caller: Caller, arguments: LineageArguments) -> dict[str, Any]:
        known = await self.of(arguments.request_id)
        if known is None:
            raise NotFound.of("request_id", "no such request")
        context = NotifyContext.answering(known.context)
        return wire({"request_context": context.to_wire(), "source_event": known.source_event})
