"""The online way: a message to some people, decided, stored and queued.

    people ── sender's permission ── recipients' permissions and preferences ── plan ── records ── queue

A message is complete when the queue has taken it. Where the queue fails, its recipients are reported as `queue-error`;
the record is there, and the feeder (`worker.py`) queues it later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

from butlers.clock import Clock
from butlers.contacts.people import PersonRecord
from butlers.contracts.envelope import invalid
from butlers.errors import TargetUnavailable
from butlers.outbound.documents import MessageDocument, read_defaults, read_preferences
from butlers.outbound.planning import Circumstances, Direction, permission_name, plan
from butlers.outbound.queue import QueueAdapter, QueueMessage
from butlers.outbound.records import Records, Work
from butlers.outbound.values import Blocked, BlockedReason, Outcome, Queued, Recipient, dedupe_keys
from butlers.telemetry import get_logger

log = get_logger("butlers.outbound")

HORIZON = timedelta(days=31)  # how far ahead a message may be scheduled; longer than a mute lasts
MOST_RECIPIENTS = 1_000  # of one call; an audience goes through the pipeline


class Gate(Protocol):
    """Who may send or receive by which channel (`entitlements.PermissionGate`)."""

    async def granted(
        self, subjects: Sequence[str], direction: Direction, channels: Iterable[str], *, organization_id: str | None
    ) -> Mapping[str, frozenset[str]]:
        """For every subject the channels that it is permitted."""


class PreferenceSource(Protocol):
    """Documents as they are stored; None: there is none."""

    async def documents(self, subjects: Sequence[str]) -> Mapping[str, str | None]: ...

    async def organization(self, organization_id: str) -> str | None: ...

    async def system(self) -> str | None: ...


class People(Protocol):
    async def resolve_people(self, references: Sequence[str], *, field: str) -> Mapping[str, PersonRecord]:
        """By reference; raises for one that names nobody or several."""


class TemplateCheck(Protocol):
    async def check(self, template_id: str, variables: Mapping[str, Any], *, version: int | None = None) -> int:
        """The version to render; raises for a template that is not there and for wrong variables."""

    async def render_text(self, body: str, variables: Mapping[str, Any]) -> str:
        """The text; raises where the variables do not fit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Reads what decisions depend on, in batches."""

    gate: Gate
    preferences: PreferenceSource

    async def circumstances(self, document: MessageDocument, *, now: datetime, horizon: datetime) -> Circumstances:
        organization_id, sender = document.organization_id, document.sender_id
        organization = await self.preferences.organization(organization_id) if organization_id else None
        system = read_defaults(await self.preferences.system())
        granted = await self.gate.granted([sender], Direction.SEND, system.channels, organization_id=organization_id)
        return Circumstances(
            message=document.message(),
            now=now,
            horizon=horizon,
            sender_permissions=_names(Direction.SEND, granted[sender]),
            organization=read_preferences(organization),
            system=system,
        )

    async def recipients(
        self,
        people: Sequence[PersonRecord],
        given: Circumstances,
        *,
        failed: Mapping[str, frozenset[str]] | None = None,  # by person
    ) -> list[Recipient]:
        ids = [str(person.id) for person in people]
        granted = await self.gate.granted(
            ids, Direction.RECEIVE, given.system.channels, organization_id=given.message.organization_id
        )
        documents = await self.preferences.documents(ids)
        return [
            Recipient(
                id=id,
                preferences=documents.get(id),
                permissions=_names(Direction.RECEIVE, granted[id]),
                reachable=person.channels,
                preferred=person.preferred_channel,
                failed=(failed or {}).get(id, frozenset()),
            )
            for id, person in zip(ids, people, strict=True)
        ]


@lru_cache(maxsize=1_024)
def _names(direction: Direction, channels: frozenset[str]) -> frozenset[str]:
    return frozenset(permission_name(direction, channel) for channel in channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    message_id: UUID
    queued: tuple[Queued, ...]
    blocked: tuple[Blocked, ...]

    def to_wire(self) -> dict[str, Any]:
        return {
            "message_id": str(self.message_id),
            "queued": [
                {"recipient_id": q.recipient_id, "channel": q.channel, "scheduled_at": q.scheduled_at.isoformat()}
                for q in self.queued
            ],
            "blocked": [
                {"recipient_id": b.recipient_id, "reason": b.reason.value, "detail": b.detail} for b in self.blocked
            ],
        }


class MessageDeliveryService:
    """Takes a message, decides for each recipient, and queues what may go."""

    def __init__(
        self,
        *,
        people: People,
        inputs: Inputs,
        records: Records,
        queue: QueueAdapter,
        clock: Clock,
        templates: TemplateCheck | None = None,
        wake: Callable[[], None] = lambda: None,  # a worker of this process
        horizon: timedelta = HORIZON,
        most_recipients: int = MOST_RECIPIENTS,
    ) -> None:
        self._people = people
        self._inputs = inputs
        self._records = records
        self._queue = queue
        self._clock = clock
        self._templates = templates
        self._wake = wake
        self._horizon = horizon
        self._most = most_recipients

    async def send_message(self, document: MessageDocument, *, may_be_known: bool = True) -> SendResult:
        """Decide, store and queue; a message that is known gets its first answer for whom it was decided before.

        `may_be_known`: the id is the caller's, so the message may have come before.
        """
        known = await self._records.stored_message(document.id) if may_be_known else None
        document, recipients, given = await self.prepare(document, known)
        ids = [recipient.id for recipient in recipients]
        by_id = {recipient.id: recipient for recipient in recipients}

        decided: list[Outcome] = []

        def decide(undecided: Sequence[str], booked: Mapping[datetime, int]) -> Sequence[Outcome]:
            decided[:] = plan([by_id[one] for one in undecided], given, booked=booked)
            return decided

        outcomes = await self._records.accept(document, ids, decide, now=given.now)
        not_queued = await self._enqueue(document, [each for each in decided if isinstance(each, Queued)], given.now)
        shown = [not_queued.get(one, outcomes[one]) for one in ids]
        return SendResult(
            message_id=document.id,
            queued=tuple(each for each in shown if isinstance(each, Queued)),
            blocked=tuple(each for each in shown if isinstance(each, Blocked)),
        )

    async def prepare(
        self, document: MessageDocument, known: MessageDocument | None = None
    ) -> tuple[MessageDocument, list[Recipient], Circumstances]:
        """The message with its recipients resolved and its template pinned, and what its decisions depend on. What is
        known of it was checked when it came first.
        """
        if not document.recipient_ids:
            raise invalid("recipient_ids", "must name at least one recipient")
        if len(document.recipient_ids) > self._most:
            raise invalid(
                "recipient_ids",
                f"must name at most {self._most:,} recipients; for more run: butlers pipeline run audience-plan",
            )
        now = self._clock.now()
        if known is not None and document.template_version is None:
            document = document.model_copy(update={"template_version": known.template_version})
        elif known is None:
            document = await self._pin_template(document)
        if known is None and document.not_after is not None and document.not_after <= now:
            raise invalid("not_after", "lies in the past")
        people = await self._people.resolve_people(document.recipient_ids, field="recipient_ids")
        given = await self._inputs.circumstances(document, now=now, horizon=now + self._horizon)
        persons = list({people[one].id: people[one] for one in document.recipient_ids}.values())
        if given.sender_may_send:
            recipients = await self._inputs.recipients(persons, given)
        else:  # nobody gets anything, so nothing needs to be read of them
            recipients = [Recipient(id=str(one.id), preferences=None, permissions=frozenset()) for one in persons]
        ids = tuple(recipient.id for recipient in recipients)
        return document.model_copy(update={"recipient_ids": ids}), recipients, given

    async def _pin_template(self, document: MessageDocument) -> MessageDocument:
        """With the version of its template; raises where its variables do not fit."""
        if document.template_id is None and not document.variables:
            return document
        if self._templates is None:
            raise invalid("template_id", "there are no templates here")
        if document.template_id is None:
            await self._templates.render_text(document.body or "", document.variables)
            return document
        version = await self._templates.check(
            document.template_id, document.variables, version=document.template_version
        )
        return document.model_copy(update={"template_version": version})

    async def _enqueue(
        self, document: MessageDocument, planned: Sequence[Queued], now: datetime
    ) -> Mapping[str, Blocked]:
        """Queue what was planned; who could not be queued, with the reason."""
        if not planned:
            return {}
        entries = queue_messages(document, planned)
        try:
            await self._queue.enqueue(entries)
        except TargetUnavailable as error:
            log.error("queue refused a message", error=error, dedupe_key=str(document.id))
            detail = f"stored, and queued when the queue is back: {error.message}"
            return {
                each.recipient_id: Blocked(
                    recipient_id=each.recipient_id, reason=BlockedReason.QUEUE_ERROR, detail=detail
                )
                for each in planned
            }
        # What a crash leaves between the two is queued again by the feeder, and the queue knows its key.
        await self._records.mark_queued([entry.key for entry in entries], now=now)
        self._wake()
        return {}


def queue_messages(document: MessageDocument, planned: Sequence[Queued]) -> list[QueueMessage]:
    """The entries of the queue; each carries the retry policy, which schedules its retries."""
    policy = document.delivery_policy
    shared = {
        "message_id": str(document.id),
        "retry_policy": policy.retry.model_dump(mode="json") | policy.metadata.model_dump(mode="json"),
    }
    keys = dedupe_keys(document.id, (each.recipient_id for each in planned))
    return [
        QueueMessage(
            key=keys[each.recipient_id],
            payload=shared | {"recipient_id": each.recipient_id, "channel": each.channel},
            scheduled_at=each.scheduled_at,
            priority=document.priority,
        )
        for each in planned
    ]


def queue_message(work: Work) -> QueueMessage:
    """The entry of work that is stored."""
    planned = Queued(recipient_id=work.recipient_id, channel=work.channel, scheduled_at=work.scheduled_at)
    return queue_messages(work.document, [planned])[0]
