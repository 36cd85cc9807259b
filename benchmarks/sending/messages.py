"""How long `send_message` takes: for one recipient, and for a thousand.

    memory      records, queue, preferences and entitlements in this process, through the real service and its caches
    postgres    the records, the queue and the stores of a system, on an embedded server with fsync on

Each call is a new message. Half of the people have preferences of their own, a quarter has quiet hours; every person
is decided about as a system does it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from butlers.clock import SystemClock
from butlers.contacts import MIGRATIONS as CONTACTS
from butlers.contacts.people import People, PersonRecord
from butlers.ids import Uuid7Factory
from butlers.outbound import MIGRATIONS
from butlers.outbound.change_log import ChangeLog
from butlers.outbound.changes import ChangeListener
from butlers.outbound.documents import MessageDocument, parse_document
from butlers.outbound.entitlements import PermissionGate, StoredEntitlements
from butlers.outbound.memory_queue import MemoryQueue
from butlers.outbound.postgres_queue import PostgresQueue
from butlers.outbound.postgres_records import PostgresRecords
from butlers.outbound.preferences import PreferenceCache
from butlers.outbound.records import MemoryRecords
from butlers.outbound.service import Inputs, MessageDeliveryService
from butlers.storage.database import Connection, Database, open_connection
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import migrate

PEOPLE = 1_000
CLOCK = SystemClock()
_IDS = tuple(str(UUID(int=number + 1)) for number in range(PEOPLE))


def _document(number: int) -> dict[str, Any] | None:
    if number % 2:
        return None
    stored: dict[str, Any] = {"notifications": {"matrix": {"news": {"email": True, "telegram": number % 3 == 0}}}}
    if number % 4 == 0:
        zone = ("Europe/Berlin", "America/New_York", "Asia/Kolkata")[number % 3]
        stored["quietHours"] = {"start_time": "22:00", "end_time": f"0{number % 9}:30", "timezone": zone}
    return stored


class _InMemory:
    """People, permissions and preferences without a database."""

    def __init__(self) -> None:
        channels = frozenset({"telegram", "email"})
        self._people = {
            id: PersonRecord(
                id=UUID(id), name=id, timezone=None, locale=None, preferred_channel=None, channels=channels
            )
            for id in _IDS
        }
        self._documents = {id: json.dumps(_document(n)) if _document(n) else None for n, id in enumerate(_IDS)}
        self._everything = frozenset({"messages:send:*", "messages:receive:*"})

    async def resolve_people(self, references: Sequence[str], *, field: str) -> Mapping[str, PersonRecord]:
        return {one: self._people[one] for one in references}

    async def permissions_of(
        self, subjects: Sequence[str], *, organization_id: str | None
    ) -> Mapping[str, frozenset[str]]:
        return dict.fromkeys(subjects, self._everything)

    async def documents(self, subjects: Sequence[str]) -> Mapping[str, str | None]:
        return {one: self._documents[one] for one in subjects}

    async def organization(self, organization_id: str) -> str | None:
        return None

    async def system(self) -> str | None:
        return None


def in_memory() -> MessageDeliveryService:
    stored = _InMemory()
    gate = PermissionGate(entitlements=stored, clock=CLOCK, listener=ChangeListener(connect=_nowhere, clock=CLOCK))
    inputs = Inputs(gate=gate, preferences=stored)
    return MessageDeliveryService(
        people=stored, inputs=inputs, records=MemoryRecords(), queue=MemoryQueue(), clock=CLOCK
    )


async def _nowhere() -> Connection:
    raise ConnectionError("nothing to listen to")


@asynccontextmanager
async def on_postgres(folder: Path) -> AsyncIterator[MessageDeliveryService]:
    """As a system has it: its caches hear of changes, and its tables hold the people."""
    server, new_id = EmbeddedPostgres(folder), Uuid7Factory(CLOCK)
    await asyncio.to_thread(server.start)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, server.stop)
        database = await stack.enter_async_context(await Database.connect(server.uri(), max_size=4))
        await migrate(database, [CONTACTS, MIGRATIONS])
        await _store_people(database)
        listener = ChangeListener(connect=lambda: open_connection(server.uri()), clock=CLOCK)
        listening = asyncio.create_task(listener.run())
        stack.callback(listening.cancel)
        while not listener.is_live():
            await CLOCK.sleep(0.01)
        log = ChangeLog(database=database, new_id=uuid4)
        entitlements = StoredEntitlements(database=database, clock=CLOCK, log=log, listener=listener)
        yield MessageDeliveryService(
            people=People(database=database),
            inputs=Inputs(
                gate=PermissionGate(entitlements=entitlements, clock=CLOCK, listener=listener),
                preferences=PreferenceCache(database=database, clock=CLOCK, listener=listener),
            ),
            records=PostgresRecords(database),
            queue=PostgresQueue(database, CLOCK, new_id),
            clock=CLOCK,
        )


async def _store_people(database: Database) -> None:
    now = CLOCK.now()
    contacts = [(UUID(id), id, now, now) for id in _IDS]
    infos = [
        (uuid4(), UUID(id), kind, f"{n}{'@x.example' if kind == 'email' else ''}", now)
        for n, id in enumerate(_IDS)
        for kind in ("telegram", "email")
    ]
    documents = [(id, _document(n), now) for n, id in enumerate(_IDS) if _document(n)]
    await database.executemany(
        "INSERT INTO shared.contacts (id, name, created_at, updated_at) VALUES ($1, $2, $3, $4)", contacts
    )
    await database.executemany(
        "INSERT INTO shared.contact_info (id, contact_id, type, value, created_at) VALUES ($1, $2, $3, $4, $5)", infos
    )
    await database.executemany(
        "INSERT INTO outbound.preferences (subject_id, document, updated_at) VALUES ($1, $2, $3)", documents
    )


async def measure(service: MessageDeliveryService, *, calls: int, bulk_calls: int) -> dict[str, float]:
    """Milliseconds for one recipient, and recipients a second for a thousand; the first call of each kind is not
    counted.
    """
    await _send(service, _IDS[:1])
    one = [await _send(service, (_IDS[number % PEOPLE],)) for number in range(calls)]
    await _send(service, _IDS)
    bulk = [await _send(service, _IDS) for _ in range(bulk_calls)]
    return {
        "p50_ms": round(statistics.median(one) * 1_000, 3),
        "p99_ms": round(statistics.quantiles(one, n=100)[98] * 1_000, 3),
        "recipients_per_s": round(PEOPLE / statistics.median(bulk)),
    }


async def _send(service: MessageDeliveryService, recipients: Sequence[str]) -> float:
    fields = {
        "id": str(uuid4()),
        "sender_id": "bench",
        "body": "Your order has been sent.",
        "event_type": "news",
        "recipient_ids": list(recipients),
    }
    document = parse_document(MessageDocument, json.dumps(fields), kind="message")
    began = CLOCK.monotonic()
    result = await service.send_message(document)
    seconds = CLOCK.monotonic() - began
    if len(result.queued) != len(recipients):
        raise AssertionError(f"{len(result.blocked)} of {len(recipients)} were blocked: {result.blocked[:1]}")
    return seconds
