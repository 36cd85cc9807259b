"""The delivery runtime in memory, on a clock that tests move; only the way out is played."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid5

from butlers.clock import ManualClock
from butlers.contacts.people import PersonRecord, ResolvedPeople
from butlers.errors import NotFound
from butlers.outbound.delivery import DeliveryReport, Ports
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.explain import Explainer
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.planning import Direction, is_permitted
from butlers.outbound.records import MemoryRecords, Work
from butlers.outbound.service import Inputs, MessageDeliveryService, SendResult
from butlers.outbound.values import dedupe_key
from butlers.outbound.worker import AHEAD, Feeder, Worker

NOON = datetime(2026, 6, 10, 12, 0, tzinfo=UTC)  # a Wednesday
EVERYTHING = frozenset({"messages:*:*"})
CHANNELS = ("telegram", "email")
_SPACE = UUID("0197588a-5c00-7000-8000-000000000000")


def person_id(name: str) -> str:
    return str(uuid5(_SPACE, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A message as it left."""

    at: datetime
    name: str
    channel: str
    work: Work
    preferences: dict[str, Any]  # of that moment


@dataclass(slots=True)
class Runtime:
    """People by name; what they are permitted and want; and what left for whom."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))
    people: dict[str, PersonRecord] = field(default_factory=dict)  # by id
    permissions: dict[str, frozenset[str]] = field(default_factory=dict)
    preferences: dict[str, dict[str, Any]] = field(default_factory=dict)
    organizations: dict[str, dict[str, Any]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=lambda: {"channels": list(CHANNELS)})
    left: list[Left] = field(default_factory=list)
    asked: list[UUID] = field(default_factory=list)
    answer: Callable[[Left], DeliveryReport] = lambda _left: DeliveryReport(status="delivered")
    standing: DeliveryReport = field(default_factory=lambda: DeliveryReport(status="delivered"))
    reads: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    records: Any = field(default_factory=MemoryRecords)
    queue: Any = None
    service: MessageDeliveryService = field(init=False)
    worker: Worker = field(init=False)
    feeder: Feeder = field(init=False)
    explainer: Explainer = field(init=False)

    def __post_init__(self) -> None:
        self.queue = self.queue or MemoryQueue()
        inputs = Inputs(gate=self, preferences=self)
        self.feeder = Feeder(records=self.records, queue=self.queue, clock=self.clock)
        self.service = MessageDeliveryService(
            people=self, inputs=inputs, records=self.records, queue=self.queue, clock=self.clock
        )
        ports = Ports(
            records=self.records,
            people=self,
            inputs=inputs,
            messenger=self,
            clock=self.clock,
            feed=self.feeder.feed,
        )
        self.worker = Worker(queue=self.queue, ports=ports, name="worker")
        self.explainer = Explainer(service=self.service, records=self.records)

    def add(
        self, name: str, *, channels: Sequence[str] = CHANNELS, preferred: str | None = None, **document: Any
    ) -> str:
        id = person_id(name)
        self.people[id] = PersonRecord(
            id=UUID(id),
            name=name,
            timezone=None,
            locale=None,
            preferred_channel=preferred,
            channels=frozenset(channels),
        )
        if document:
            self.preferences[id] = document
        return id

    async def send(self, *names: str, **fields: Any) -> SendResult:
        return await self.service.send_message(self.message(*names, **fields))

    def message(self, *names: str, **fields: Any) -> MessageDocument:
        fields = {
            "id": str(uuid5(_SPACE, repr((next(self.numbers), names)))),
            "sender_id": "billing",
            "body": "Hello",
            "recipient_ids": [person_id(name) for name in names],
        } | fields
        return parse_document(MessageDocument, json.dumps(fields), kind="message")

    async def until_idle(self) -> None:
        """Work on what is due now."""
        for _ in range(10_000):
            if not await self.worker.run_once():
                return
        raise AssertionError("the worker does not come to an end")

    async def run_until(self, end: datetime) -> None:
        """Move the clock from one due moment to the next."""
        while True:
            await self.feeder.run_once()
            await self.until_idle()
            following = (await self.queue.stats(now=self.clock.now())).next_available_at
            fed = [work.scheduled_at - AHEAD for work in await self.records.planned(before=end + AHEAD, limit=1)]
            following = min((at for at in (following, *fed) if at is not None), default=None)
            if following is None or following > end:
                self.clock.advance((end - self.clock.now()).total_seconds())
                return
            self.clock.advance(max((following - self.clock.now()).total_seconds(), 1e-6))

    async def run_for(self, **length: float) -> None:
        await self.run_until(self.clock.now() + timedelta(**length))

    async def work(self, result: SendResult, name: str) -> Work:
        key = dedupe_key(result.message_id, person_id(name))
        found: dict[str, Work] = await self.records.load([key])
        return found[key]

    def deliveries(self) -> list[tuple[str, str, datetime]]:
        return [(each.name, each.channel, each.at) for each in self.left]

    # --- the ports ---------------------------------------------------------------------------------------------------

    async def granted(
        self, subjects: Sequence[str], direction: Direction, channels: Iterable[str], *, organization_id: str | None
    ) -> Mapping[str, frozenset[str]]:
        self.reads.append(f"{direction} {len(subjects)}")
        held = {one: self.permissions.get(one, EVERYTHING) for one in subjects}
        return {one: frozenset(c for c in channels if is_permitted(held[one], direction, c)) for one in subjects}

    async def documents(self, subjects: Sequence[str]) -> Mapping[str, str | None]:
        self.reads.append(f"documents {len(subjects)}")
        return {one: json.dumps(self.preferences[one]) if one in self.preferences else None for one in subjects}

    async def organization(self, organization_id: str) -> str | None:
        return json.dumps(self.organizations[organization_id]) if organization_id in self.organizations else None

    async def system(self) -> str | None:
        return json.dumps(self.defaults)

    async def resolve_people(self, references: Sequence[str], *, field: str) -> Mapping[str, PersonRecord]:
        self.reads.append(f"people {len(references)}")
        found = await self.find_people(references)
        if found.problems:
            raise NotFound.of(field, "names no contact")
        return found.people

    async def find_people(self, references: Sequence[str]) -> ResolvedPeople:
        known = {one: self.people[one] for one in references if one in self.people}
        unknown = {one: NotFound.of("person", "names no contact") for one in references if one not in self.people}
        return ResolvedPeople(people=known, problems=unknown)

    async def hand_over(self, work: Work, person: PersonRecord) -> DeliveryReport:
        preferences = deepcopy(self.preferences.get(work.recipient_id, {}))
        left = Left(at=self.clock.now(), name=person.name, channel=work.channel, work=work, preferences=preferences)
        report = self.answer(left)
        self.left.append(left)
        return report

    async def status(self, delivery_id: UUID) -> DeliveryReport:
        self.asked.append(delivery_id)
        return self.standing
