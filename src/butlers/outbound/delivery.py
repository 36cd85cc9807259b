"""One step of one message that is due: decide again, then digest, wait, or hand it over.

    due ── decide again ── digest? ── throttle ── render ── notify.v1 ──> Switchboard ──> Messenger
              │               │           │                     │
           blocked         digested     later      delivered | later: Messenger goes on trying
           expired                                 failed ── retry on this channel ── next channel ── dead letter

A message in `sending` whose delivery is known is asked for at Messenger. One whose delivery is not known, because a
worker died or an answer was lost, is handed over again under the same idempotency key and on the same channel, so it
leaves once. That, too, waits for the end of quiet hours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from butlers.clock import Clock
from butlers.contacts.people import PersonRecord, ResolvedPeople
from butlers.contracts.message_state import MessageState
from butlers.errors import ClassifiedError, ValidationError
from butlers.outbound.digests import digest_document
from butlers.outbound.documents import PolicyMetadata, RetryDocument, retry_policy
from butlers.outbound.planning import Circumstances, Decider, Decision, Refused, Sendable, first_moment, schedule_retry
from butlers.outbound.records import AttemptEnd, Records, Work
from butlers.outbound.service import HORIZON, Inputs
from butlers.outbound.throttle import LONGEST
from butlers.outbound.values import BlockedReason, dedupe_key
from butlers.reliability.retry import RetryPolicy

_ASK_AGAIN_S = 15.0  # after a hand-over without an answer
_FIRST_LOOK_S, _LONGEST_LOOK_S = 2.0, 300.0  # between looks at a delivery that Messenger goes on with
_UNDELIVERED = frozenset({"failed", "dead_lettered"})
_UNANSWERED = frozenset({"timeout", "target_unavailable", "internal_error"})
_DIGEST_WINDOWS = 3  # how many are tried while their digests leave


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    """What Messenger says of a delivery."""

    status: str  # `contracts/delivery_state.py`, or "refused": there is no delivery
    delivery_id: UUID | None = None
    error_class: str | None = None
    error: str | None = None
    is_retryable: bool = False
    retry_after: float | None = None  # seconds


class Messenger(Protocol):
    """The way out, as the worker needs it."""

    async def hand_over(self, work: Work, person: PersonRecord) -> DeliveryReport:
        """Render the message and hand it to Switchboard under the key of its attempt; a repeat is the same delivery."""

    async def status(self, delivery_id: UUID) -> DeliveryReport: ...


class PeopleFinder(Protocol):
    async def find_people(self, references: Sequence[str]) -> ResolvedPeople: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the steps of a message need."""

    records: Records
    people: PeopleFinder
    inputs: Inputs
    messenger: Messenger
    clock: Clock
    moved: Callable[[Work], None] = lambda _work: None  # hears of every change
    feed: Callable[[Sequence[str]], Awaitable[object]] | None = None  # puts what is planned under keys into the queue

    async def move(self, work: Work, to: MessageState, **changes: Any) -> Work | None:
        """The work in its new state; None: another worker was faster."""
        moved = await self.records.move(work, to, now=self.clock.now(), **changes)
        if moved is not None:
            self.moved(moved)
        return moved


@dataclass(frozen=True, slots=True)
class Done:
    """The entry leaves the queue."""


@dataclass(frozen=True, slots=True)
class Later:
    """The entry waits until then. An attempt that failed counts, a message that was not due yet does not."""

    at: datetime
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class Dead:
    reason: str


Step = Done | Later | Dead


async def dead_letter(ports: Ports, work: Work, reason: str, detail: str) -> Step:
    await ports.move(work, MessageState.DEAD_LETTERED, reason=reason, detail=detail)
    return Dead(f"{reason}: {detail}")


class MessageDelivery:
    """One message to one person that is due."""

    def __init__(self, ports: Ports, work: Work, payload: Mapping[str, Any]) -> None:
        self._ports = ports
        self._records = ports.records
        self._clock = ports.clock
        self._work = work
        self._retry = read_retry_policy(payload["retry_policy"])

    async def take_step(self) -> Step:
        work, now = self._work, self._clock.now()
        if work.state is MessageState.SENDING and work.delivery_id is not None:
            return await self._follow(work.delivery_id)
        if work.repeats and work.acknowledged_at is not None:
            return await self._end(MessageState.DELIVERED, None, "acknowledged")
        if now >= self._until():
            return await self._end(MessageState.EXPIRED, "expired", "its time has passed")
        found = await self._ports.people.find_people([work.recipient_id])
        person = found.people.get(work.recipient_id)
        if person is None or str(person.id) != work.recipient_id:  # an audience may hold names and addresses
            return await self._end(MessageState.BLOCKED, BlockedReason.NO_CHANNEL, "is not the id of a contact")
        given = await self._ports.inputs.circumstances(work.document, now=now, horizon=work.created_at + HORIZON)
        [recipient] = await self._ports.inputs.recipients(
            [person], given, failed={work.recipient_id: frozenset(work.failed_channels)}
        )
        decision = Decider(given).decide(recipient)
        if work.state is MessageState.SENDING:
            return await self._hand_over_again(person, decision)
        return await self._go(person, given, decision)

    async def _go(self, person: PersonRecord, given: Circumstances, decision: Decision) -> Step:
        """What was decided, now that it is due."""
        if isinstance(decision.result, Refused):
            return await self._refused(decision.result)
        sendable, now = decision.result, given.now
        if sendable.group.earliest > now:
            return await self._later(sendable, sendable.group.earliest, "quiet", "quiet hours or a mute")
        if (step := await self._join_digest(given, decision)) is not None:
            return step
        if self._work.is_digest and not await self._records.members(self._work.message_id):
            return await self._end(MessageState.CANCELLED, "cancelled", "every message that it carried was cancelled")
        throttling = given.message.policy.throttling
        begun = await self._records.begin_attempt(self._work, sendable.channel, throttling, now=now)
        if begun is None:
            return Done()
        if isinstance(begun, Work):
            self._ports.moved(begun)
            self._work = begun
            return await self._hand_over(person, decision)
        # Behind those that wait already, each at its own place: nothing is looked at again and again.
        sent = await self._records.sent_times(self._work.recipient_id, sendable.channel, since=now - LONGEST)
        sent = sorted([*sent, *await self._records.throttled_times(self._work, sendable.channel)])
        free = first_moment(begun, quiet=decision.quiet, throttling=throttling, sent=sent, until=given.until)
        if free is None:
            return await self._end(MessageState.EXPIRED, BlockedReason.THROTTLED, "the throttle leaves no time for it")
        return await self._later(sendable, free, "throttle", "throttled")

    async def _refused(self, refused: Refused) -> Step:
        if refused.reason is BlockedReason.THROTTLED:
            return await self._end(MessageState.EXPIRED, "expired", refused.detail)
        if self._work.failed_channels:
            return await self._bury("undeliverable", f"every channel failed or is not allowed: {refused.detail}")
        return await self._end(MessageState.BLOCKED, refused.reason, refused.detail)

    async def _later(self, sendable: Sendable, at: datetime, waits_for: str, why: str) -> Step:
        changes = {"channel": sendable.channel, "scheduled_at": at, "waits_for": waits_for}
        detail = f"{sendable.detail}; waits: {why}"
        moved = await self._ports.move(self._work, MessageState.QUEUED, **changes, detail=detail)
        return Later(at) if moved is not None else Done()

    async def _join_digest(self, given: Circumstances, decision: Decision) -> Step | None:
        """Into the digest of this window, or of the next one when that has left. None: it goes alone, also where a
        digest would be too late.
        """
        seconds, now = given.digest_seconds(decision.preferences), given.now
        if seconds is None or self._work.is_digest or self._work.sends:
            return None
        for windows in range(1, _DIGEST_WINDOWS + 1):
            document, due = digest_document(self._work, seconds, now, windows=windows)
            if due >= given.until:
                return None
            if await self._records.join_digest(self._work, document, due=due, now=now):
                if self._ports.feed is not None:
                    await self._ports.feed([dedupe_key(document.id, self._work.recipient_id)])
                return Done()
        return Later(now + timedelta(seconds=_ASK_AGAIN_S))

    async def _hand_over_again(self, person: PersonRecord, decision: Decision) -> Step:
        """Its answer was lost. On another channel it could arrive twice."""
        allowed = {candidate.channel for candidate in decision.candidates if candidate.is_allowed}
        if self._work.channel not in allowed:
            detail = f"no longer allowed by {self._work.channel}"
            return await self._end(MessageState.BLOCKED, BlockedReason.NO_CHANNEL, detail)
        if isinstance(decision.result, Refused):
            return await self._end(MessageState.EXPIRED, "expired", decision.result.detail)
        if decision.result.group.earliest > self._clock.now():
            return Later(decision.result.group.earliest)
        return await self._hand_over(person, decision)

    async def _hand_over(self, person: PersonRecord, decision: Decision) -> Step:
        try:
            report = await self._ports.messenger.hand_over(self._work, person)
        except ValidationError as error:  # it cannot be rendered, now or later
            ended = AttemptEnd(outcome="failed", error_class=error.error_class.value, error=error.message)
            await self._records.end_attempt(self._work, ended, now=self._clock.now())
            return await self._bury("cannot be rendered", error.message)
        except ClassifiedError as error:  # something that it needs is away: it stays in `sending`, and is tried again
            return self._ask_again(error.retry_after)
        return await self._answered(report, decision)

    async def _follow(self, delivery_id: UUID) -> Step:
        return await self._answered(await self._ports.messenger.status(delivery_id), None)

    async def _answered(self, report: DeliveryReport, decision: Decision | None) -> Step:
        match report.status:
            case "delivered":
                return await self._delivered(report)
            case "expired":
                await self._end_attempt(report, "failed")
                return await self._end(MessageState.EXPIRED, "expired", "it was too late at Messenger")
            case "refused" if report.error_class in _UNANSWERED:
                return self._ask_again(report.retry_after)
            case "refused" if report.error_class == "overload_rejected":
                return await self._overloaded(report)
            case status if status in _UNDELIVERED or status == "refused":
                return await self._failed(report, decision)
        if self._work.delivery_id is None:
            moved = await self._ports.move(self._work, MessageState.SENDING, delivery_id=report.delivery_id)
            self._work = moved or self._work
        return self._look_again()

    def _look_again(self, least_s: float = _FIRST_LOOK_S) -> Later:
        """Ever more rarely, as the message gets older."""
        now = self._clock.now()
        age = (now - self._work.scheduled_at).total_seconds()
        return Later(now + timedelta(seconds=max(least_s, min(age / 2, _LONGEST_LOOK_S))))

    def _ask_again(self, retry_after: float | None) -> Later:
        return self._look_again(max(_ASK_AGAIN_S, retry_after or 0.0))

    def _until(self) -> datetime:
        """From when on it is too late."""
        horizon = self._work.created_at + HORIZON
        return min(self._work.document.not_after or horizon, horizon)

    async def _delivered(self, report: DeliveryReport) -> Step:
        await self._end_attempt(report, "delivered")
        work, repeat = self._work, self._work.document.delivery_policy.repeat
        detail = f"delivered by {work.channel}"
        at = self._clock.now() + timedelta(seconds=repeat.every_seconds) if repeat is not None else None
        if repeat is None or at is None or work.repeats >= repeat.max_times or at >= self._until():
            await self._ports.move(work, MessageState.DELIVERED, delivery_id=report.delivery_id, detail=detail)
            return Done()
        # One step, so that a crash cannot leave it delivered and not repeated.
        again = {"repeats": work.repeats + 1, "scheduled_at": at, "attempts": 0, "delivery_id": None}
        await self._ports.move(work, MessageState.QUEUED, **again, detail=f"{detail}; repeated until acknowledged")
        return Later(at)

    async def _overloaded(self, report: DeliveryReport) -> Step:
        """Messenger took nothing: it is decided about again, and the failure is not the message's."""
        await self._end_attempt(report, "failed")
        at = self._clock.now() + timedelta(seconds=max(1.0, report.retry_after or _ASK_AGAIN_S))
        moved = await self._ports.move(
            self._work, MessageState.QUEUED, scheduled_at=at, detail=f"Messenger is overloaded: {report.error}"
        )
        return Later(at) if moved is not None else Done()

    async def _failed(self, report: DeliveryReport, decision: Decision | None) -> Step:
        """Again on this channel if that can help, otherwise on the next one that is allowed."""
        await self._end_attempt(report, "failed")
        now, work = self._clock.now(), self._work
        at = None
        if report.is_retryable:
            at = schedule_retry(
                self._retry,
                attempt=work.attempts + 1,
                failed_at=now,
                quiet=decision.quiet if decision is not None else work.document.delivery_policy.policy().quiet_hours,
                until=self._until(),
                retry_after=report.retry_after,
            )
        reset: dict[str, Any] = {"delivery_id": None, "detail": f"{work.channel} failed: {report.error}"}
        if at is not None:
            await self._ports.move(work, MessageState.QUEUED, attempts=work.attempts + 1, scheduled_at=at, **reset)
            return Later(at, is_failure=True)
        failed = (*work.failed_channels, work.channel)
        await self._ports.move(work, MessageState.QUEUED, attempts=0, failed_channels=failed, scheduled_at=now, **reset)
        return Later(now, is_failure=True)

    async def _end_attempt(self, report: DeliveryReport, outcome: str) -> None:
        ended = AttemptEnd(
            outcome=outcome, error_class=report.error_class, error=report.error, delivery_id=report.delivery_id
        )
        await self._records.end_attempt(self._work, ended, now=self._clock.now())

    async def _end(self, state: MessageState, reason: str | None, detail: str) -> Step:
        """End it without a further attempt. What was delivered before and only repeated stays delivered."""
        work = self._work
        if work.state is MessageState.SENDING and work.delivery_id is None:
            detail = f"{detail}; whether it left before is not known"
            ended = AttemptEnd(outcome="failed", error_class="timeout", error="no answer came")
            await self._records.end_attempt(work, ended, now=self._clock.now())
        if work.repeats:
            state, reason, detail = MessageState.DELIVERED, None, f"delivered, and not repeated any more: {detail}"
        await self._ports.move(work, state, reason=str(reason) if reason else None, detail=detail)
        return Done()

    async def _bury(self, reason: str, detail: str) -> Step:
        return await dead_letter(self._ports, self._work, reason, detail)


def read_retry_policy(payload: Mapping[str, Any]) -> RetryPolicy:
    """The retry policy that an entry of the queue carries."""
    fields = dict(payload)
    metadata = {name: fields.pop(name) for name in PolicyMetadata.model_fields if name in fields}
    return retry_policy(RetryDocument.model_validate(fields, strict=False), PolicyMetadata.model_validate(metadata))
