"""Heartbeats of connectors: answered at once, written a little later, many in one transaction.

A heartbeat that is lost costs nothing but a gap of one interval: the counters go on, and the next one carries them. So
no caller waits for the disk, the queue has a limit, and what cannot be written is logged and gone.

A connector speaks only for itself. The first heartbeat for a (type, endpoint) registers it in the name of the caller,
and from then on the others are refused; an operator who removes it lets the next one in.

Each row of the log carries what its heartbeat added (`deltas`). To know that, the intake compares the heartbeat with
the lives of its process, and two that come to two processes of Switchboard at once must not be compared with the same
one. So the first statement of the transaction writes the connector's row in the registry, whose lock is held until
the log is written; connectors are locked in one order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from butlers.butler.core_tools import wire
from butlers.butler.health import Finding
from butlers.butler.identity import Caller
from butlers.butler.toolbox import AnyTool, EnvelopeTool, Tool
from butlers.clock import Clock
from butlers.contracts.heartbeat import HeartbeatEnvelope, HeartbeatReply
from butlers.errors import Conflict, Forbidden, NotFound, OverloadRejected
from butlers.operations import connectors as operations
from butlers.operations.connectors import ConnectorArguments
from butlers.operations.operation import NoArguments, Role
from butlers.storage.database import Database, Record
from butlers.storage.group_commit import GroupCommitter
from butlers.storage.queries import Queries
from butlers.storage.retention import ensure_month_partitions
from butlers.switchboard.connectors.deltas import (
    ADDED,
    COUNTERS,
    SECOND,
    Lives,
    Reading,
    add,
    from_json,
    moment,
    to_json,
)
from butlers.switchboard.connectors.rollups import midnight, rest_of_today
from butlers.switchboard.ingress.gate import may_report_for
from butlers.telemetry import get_logger

log = get_logger("butlers.connectors")

MAX_WAITING = 1_000
RETRY_AFTER_S = 30.0  # the usual pause between two heartbeats
HEARTBEAT_LOG = "connector_heartbeat_log"
MONTHS_AHEAD = 2
Process = tuple[str, str, UUID]  # type and endpoint of the connector, and the process of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat, as it came."""

    id: UUID
    principal: str
    envelope: HeartbeatEnvelope
    received_at: datetime

    def row(self) -> dict[str, Any]:
        envelope, checkpoint = self.envelope, self.envelope.checkpoint
        return {
            "id": self.id,
            "principal": self.principal,
            "received_at": self.received_at,
            "sent_at": envelope.sent_at,
            **envelope.connector.model_dump(),
            **envelope.status.model_dump(),
            **envelope.counters.model_dump(),
            "checkpoint_cursor": checkpoint.cursor if checkpoint else None,
            "checkpoint_updated_at": checkpoint.updated_at if checkpoint else None,
            "capabilities": envelope.capabilities.model_dump() if envelope.capabilities else None,
        }

    @property
    def process(self) -> Process:
        who = self.envelope.connector
        return who.connector_type, who.endpoint_identity, who.instance_id

    def reading(self) -> Reading:
        envelope = self.envelope
        return Reading(
            uptime=round(envelope.status.uptime_s * SECOND),
            sent=moment(envelope.sent_at),
            received=moment(self.received_at),
            counts=tuple(getattr(envelope.counters, name) for name in COUNTERS),
        )


@dataclass(slots=True, kw_only=True)
class Heartbeats:
    """Takes heartbeats."""

    database: Database
    queries: Queries
    speakers: Speakers
    clock: Clock
    new_id: Callable[[], UUID]
    max_waiting: int = MAX_WAITING
    _writing: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _committer: GroupCommitter[Beat, None] = field(init=False)

    def __post_init__(self) -> None:
        self._committer = GroupCommitter(self._store, max_waiting=self.max_waiting)

    async def accept(self, envelope: HeartbeatEnvelope, caller: Caller | None) -> HeartbeatReply:
        """Take one; it is written soon."""
        who = envelope.connector
        principal = await self.speakers.check(caller, who.connector_type, who.endpoint_identity, must_be_known=False)
        if len(self._writing) >= self.max_waiting:
            raise OverloadRejected(f"{self.max_waiting} heartbeats are waiting already", retry_after=RETRY_AFTER_S)
        now = self.clock.now()
        beat = Beat(id=self.new_id(), principal=principal, envelope=envelope, received_at=now)
        task = asyncio.create_task(self._write(beat))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return HeartbeatReply(server_time=now)

    async def close(self) -> None:
        """Write what was taken."""
        await asyncio.gather(*self._writing)  # before the committer closes: some may not have come to it yet
        await self._committer.close()

    async def _write(self, beat: Beat) -> None:
        try:
            await self._committer.submit(beat)
        except Exception as error:
            kind = beat.envelope.connector.connector_type
            log.warning("heartbeat not recorded", error=error, connector_type=kind)

    async def _store(self, beats: Sequence[Beat]) -> Sequence[None]:
        rows = [beat.row() for beat in beats]
        async with self.database.transaction() as connection:
            await connection.execute(self.queries.register_connectors, rows)
            known = await connection.fetch(self.queries.processes_of_heartbeats, rows)
            await connection.execute(self.queries.log_heartbeats, *_with_deltas(beats, known))
        return [None] * len(beats)


async def make_log_months(database: Database, schema: str, clock: Clock) -> None:
    """The months of the log, made ahead; the pipeline removes old ones (`connector-stats-pruning`)."""
    this_month = clock.now().date().replace(day=1)
    async with database.connection() as connection:
        await ensure_month_partitions(connection, schema, HEARTBEAT_LOG, this_month, MONTHS_AHEAD)


def _with_deltas(beats: Sequence[Beat], known: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the log for heartbeats of callers who may speak for their connector, and their processes afterwards."""
    principals: dict[Process, str] = {}
    lives: dict[Process, Lives] = {}
    for stored in known:
        process = (stored["connector_type"], stored["endpoint_identity"], stored["instance_id"])
        principals[process], lives[process] = stored["principal"], from_json(stored["lives"])
    rows: list[dict[str, Any]] = []
    received_at: dict[Process, datetime] = {}
    for beat in beats:
        process = beat.process
        if beat.principal == principals.get(process):
            lives[process], added = add(lives[process], beat.reading())
            received_at[process] = beat.received_at
            rows.append(beat.row() | dict(zip(ADDED, added, strict=True)))
    processes = [
        {
            "connector_type": process[0],
            "endpoint_identity": process[1],
            "instance_id": process[2],
            "last_heartbeat_at": at,
            "lives": to_json(lives[process]),
        }
        for process, at in sorted(received_at.items())
    ]
    return rows, processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Speakers:
    database: Database
    queries: Queries

    async def check(
        self, caller: Caller | None, connector_type: str, endpoint_identity: str, *, must_be_known: bool = True
    ) -> str:
        """The name of a caller that may speak for this connector; where it need not be known yet, it may become its
        speaker. Raises `Forbidden` and `NotFound`.
        """
        endpoint = endpoint_identity
        is_connector = caller is not None and caller.role is Role.CONNECTOR
        if caller is not None and is_connector and not may_report_for(caller, connector_type, endpoint):
            how = f"butlers token issue {caller.name} --role connector --channel CHANNEL --endpoint {endpoint}"
            problem = f"{caller.name!r} has no grant for {connector_type} at {endpoint} ({how})"
            raise Forbidden.of("authorization", problem)
        owner: str | None = await self.database.fetchval(self.queries.principal_of, connector_type, endpoint)
        if caller is None or not is_connector:
            raise Forbidden.of("authorization", "only a connector may speak for a connector")
        if owner not in (None, caller.name):
            raise Forbidden.of("authorization", f"{caller.name!r} may not speak for a connector of {owner!r}")
        if owner is None and must_be_known:
            raise NotFound.of("endpoint_identity", "no such connector")
        return caller.name


FIGURES = (
    *("messages_ingested", "messages_failed", "source_api_calls", "dedupe_accepted"),
    *("heartbeat_count", "healthy_count", "degraded_count", "error_count"),
)
Figures = defaultdict[tuple[str, str], dict[str, int]]  # by type and endpoint

ONLINE_WITHIN = timedelta(minutes=2)
STALE_WITHIN = timedelta(minutes=4)


class Liveness(StrEnum):
    ONLINE = "online"
    STALE = "stale"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connectors:
    database: Database
    queries: Queries
    clock: Clock
    own: Collection[UUID] = ()  # instances of this process, which report their health themselves

    def tools(self, heartbeats: Heartbeats) -> list[AnyTool]:
        async def heartbeat(caller: Caller | None, raw: dict[str, Any]) -> dict[str, Any]:
            return (await heartbeats.accept(HeartbeatEnvelope.parse(raw), caller)).to_wire()

        async def list_connectors(_caller: Caller, _arguments: NoArguments) -> dict[str, Any]:
            return wire(await self.list())

        return [
            EnvelopeTool.of(operations.HEARTBEAT, heartbeat),
            Tool.of(operations.LIST, list_connectors),
            Tool.of(operations.DEREGISTER, self._deregister),
        ]

    async def list(self) -> dict[str, Any]:
        """Each connector that ever reported, with what it did today."""
        now = self.clock.now()
        today = await self._today(now)
        rows = await self.database.fetch(self.queries.list_connectors)
        return {
            "connectors": [
                {
                    **row,
                    "liveness": liveness(row["last_heartbeat_at"], now).value,
                    "today": today[row["connector_type"], row["endpoint_identity"]],
                }
                for row in rows
            ]
        }

    async def findings(self) -> dict[str, Finding]:
        """How each one is by its last heartbeat; one of this process reports its state itself, but not its silence."""
        now = self.clock.now()
        rows = [
            row
            for row in await self.database.fetch(self.queries.list_connectors)
            if row["instance_id"] not in self.own or liveness(row["last_heartbeat_at"], now) is not Liveness.ONLINE
        ]
        return {f"{row['connector_type']}:{row['endpoint_identity']}": finding(dict(row), now) for row in rows}

    async def _deregister(self, _caller: Caller, given: ConnectorArguments) -> dict[str, Any]:
        """Forget one; its next heartbeat registers it anew."""
        named = {"connector_type": given.connector_type, "endpoint_identity": given.endpoint_identity}
        if await self.database.fetchrow(self.queries.deregister_connector, *named.values()) is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        return wire({**named, "deregistered": True})

    async def must_be_online(self, connector_type: str, endpoint_identity: str) -> None:
        """For work that only a connector which is there, and which can do it, will take."""
        row = await self.database.fetchrow(self.queries.get_connector, connector_type, endpoint_identity)
        if row is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        found = liveness(row["last_heartbeat_at"], self.clock.now())
        if found is not Liveness.ONLINE:
            raise Conflict.of(
                "endpoint_identity", f"this connector is {found.value}, and only one that is online may work"
            )
        if row["capabilities"] is not None and not row["capabilities"].get("backfill"):
            raise Conflict.of("connector_type", "this connector says that it cannot fetch the past")

    async def _today(self, now: datetime) -> Figures:
        """The hours that were rolled up, and what the heartbeats since then added."""
        last = await self.database.fetchval(self.queries.last_hour)
        rolled_up = await self.database.fetch(self.queries.rolled_up_since, midnight(now.date()))
        rest = rest_of_today(now, last=last)
        since = await self.database.fetch(self.queries.added_between, rest.start, rest.end)
        today: Figures = defaultdict(lambda: dict.fromkeys(FIGURES, 0))
        for row in (*rolled_up, *since):
            figures = today[row["connector_type"], row["endpoint_identity"]]
            figures.update({name: figures[name] + row[name] for name in FIGURES})
        return today


def liveness(last_heartbeat_at: datetime, now: datetime) -> Liveness:
    """Whether a connector is there, by its last heartbeat. Silence never removes one."""
    silence = now - last_heartbeat_at
    if silence < ONLINE_WITHIN:
        return Liveness.ONLINE
    return Liveness.STALE if silence <= STALE_WITHIN else Liveness.OFFLINE


def finding(row: Mapping[str, Any], now: datetime) -> Finding:
    """What a connector's last heartbeat means for people who wait for its messages."""
    there = liveness(row["last_heartbeat_at"], now)
    if there is not Liveness.ONLINE:
        silent = (now - row["last_heartbeat_at"]).total_seconds()
        return Finding.degraded(
            f"It has said nothing for {silent:.0f} s.",
            remedy="Start it again, or forget it with `butlers connectors deregister`.",
            liveness=there.value,
        )
    if row["state"] != "healthy":
        return Finding.degraded(f"It reports: {row['error_message'] or row['state']}.", liveness=there.value)
    return Finding(figures={"liveness": there.value})
