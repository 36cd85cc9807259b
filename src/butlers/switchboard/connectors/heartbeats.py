"""Heartbeats of connectors: answered at once, written a little later, many in one transaction.

A heartbeat that is lost costs nothing but a gap of one interval: the counters go on, and the next one carries them. So
nobody waits for the disk, the queue has a limit, and what cannot be written is logged and gone.

A connector speaks only for itself. The first heartbeat for a (type, endpoint) registers it in the name of the caller,
and from then on the others are refused; an operator who removes it lets the next one in.

Each row of the log carries what its heartbeat added (`deltas`). To know that, the intake compares the heartbeat with
the lives of its process, and two that come to two processes of Switchboard at once must not be compared with the same
one. So the first statement of the transaction writes the connector's row in the registry, whose lock is held until
the log is written; connectors are locked in one order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.clock import Clock
from butlers.contracts.heartbeat import HeartbeatEnvelope, HeartbeatReply
from butlers.errors import Forbidden, NotFound, OverloadRejected
from butlers.operations.operation import Role
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
from butlers.switchboard.ingress.authority import may_report_for
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


class Heartbeats:
    """Takes heartbeats."""

    def __init__(
        self,
        *,
        database: Database,
        queries: Queries,
        speakers: Speakers,
        clock: Clock,
        new_id: Callable[[], UUID],
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._database = database
        self._queries = queries
        self._speakers = speakers
        self._clock = clock
        self._new_id = new_id
        self._max_waiting = max_waiting
        self._writing: set[asyncio.Task[None]] = set()
        self._committer = GroupCommitter(self._store, max_waiting=max_waiting)

    async def accept(self, envelope: HeartbeatEnvelope, caller: Caller | None) -> HeartbeatReply:
        """Take one; it is written soon."""
        who = envelope.connector
        principal = await self._speakers.registering(caller, who.connector_type, who.endpoint_identity)
        if len(self._writing) >= self._max_waiting:
            raise OverloadRejected(f"{self._max_waiting} heartbeats are waiting already", retry_after=RETRY_AFTER_S)
        now = self._clock.now()
        self._write(Beat(id=self._new_id(), principal=principal, envelope=envelope, received_at=now))
        return HeartbeatReply(server_time=now)

    async def close(self) -> None:
        """Write what was taken."""
        await asyncio.gather(*self._writing)  # before the committer closes: some may not have come to it yet
        await self._committer.close()

    def _write(self, beat: Beat) -> None:
        task = asyncio.get_running_loop().create_task(self._written(beat))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _written(self, beat: Beat) -> None:
        try:
            await self._committer.submit(beat)
        except Exception as error:
            kind = beat.envelope.connector.connector_type
            log.warning("heartbeat not recorded", error=error, connector_type=kind)

    async def _store(self, beats: Sequence[Beat]) -> Sequence[None]:
        rows = [beat.row() for beat in beats]
        async with self._database.transaction() as connection:
            await connection.execute(self._queries.register_connectors, rows)
            known = await connection.fetch(self._queries.processes_of_heartbeats, rows)
            await connection.execute(self._queries.log_heartbeats, *_with_deltas(beats, known))
        return [None] * len(beats)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLogMonths:
    """The months of the log, made ahead; the pipeline removes old ones (`connector-stats-pruning`)."""

    database: Database
    schema: str
    clock: Clock

    async def make_months(self) -> None:
        this_month = self.clock.now().date().replace(day=1)
        async with self.database.connection() as connection:
            await ensure_month_partitions(connection, self.schema, HEARTBEAT_LOG, this_month, MONTHS_AHEAD)


def _with_deltas(beats: Sequence[Beat], known: Sequence[Record]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the log for heartbeats of callers who may speak for their connector, and their processes afterwards."""
    principals, lives = _known(known)
    rows: list[dict[str, Any]] = []
    heard_at: dict[Process, datetime] = {}
    for beat in beats:
        process = beat.process
        if beat.principal == principals.get(process):
            lives[process], added = add(lives[process], beat.reading())
            heard_at[process] = beat.received_at
            rows.append(beat.row() | dict(zip(ADDED, added, strict=True)))
    return rows, [_process_row(process, at, lives[process]) for process, at in sorted(heard_at.items())]


def _known(rows: Sequence[Record]) -> tuple[dict[Process, str], dict[Process, Lives]]:
    processes = [(row["connector_type"], row["endpoint_identity"], row["instance_id"]) for row in rows]
    principals = {process: row["principal"] for process, row in zip(processes, rows, strict=True)}
    return principals, {process: from_json(row["lives"]) for process, row in zip(processes, rows, strict=True)}


def _process_row(process: Process, heard_at: datetime, lives: Lives) -> dict[str, Any]:
    names = ("connector_type", "endpoint_identity", "instance_id")
    return dict(zip(names, process, strict=True)) | {"last_heartbeat_at": heard_at, "lives": to_json(lives)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speakers:
    database: Database
    queries: Queries

    async def registering(self, caller: Caller | None, connector_type: str, endpoint_identity: str) -> str:
        """The caller's name; one that nobody spoke for yet becomes the caller's."""
        _check_grant(caller, connector_type, endpoint_identity)
        return _speaker(caller, await self._owner(connector_type, endpoint_identity))

    async def registered(self, caller: Caller | None, connector_type: str, endpoint_identity: str) -> str:
        """The caller's name, when it has reported for this connector."""
        _check_grant(caller, connector_type, endpoint_identity)
        owner = await self._owner(connector_type, endpoint_identity)
        name = _speaker(caller, owner)
        if owner is None:
            raise NotFound.of("endpoint_identity", "no such connector")
        return name

    async def _owner(self, connector_type: str, endpoint_identity: str) -> str | None:
        owner: str | None = await self.database.fetchval(self.queries.principal_of, connector_type, endpoint_identity)
        return owner


def _check_grant(caller: Caller | None, connector_type: str, endpoint: str) -> None:
    if caller is not None and caller.role is Role.CONNECTOR and not may_report_for(caller, connector_type, endpoint):
        how = f"butlers token issue {caller.name} --role connector --channel CHANNEL --endpoint {endpoint}"
        raise Forbidden.of("authorization", f"{caller.name!r} has no grant for {connector_type} at {endpoint} ({how})")


def _speaker(caller: Caller | None, owner: str | None) -> str:
    if caller is None or caller.role is not Role.CONNECTOR:
        raise Forbidden.of("authorization", "only a connector may speak for a connector")
    if owner not in (None, caller.name):
        raise Forbidden.of("authorization", f"{caller.name!r} may not speak for a connector of {owner!r}")
    return caller.name
