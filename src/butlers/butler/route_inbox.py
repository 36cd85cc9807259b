"""Routed work that survives its worker.

    accepted ──claim──> processing ──finish──> processed
                 ^          │   └────finish──> errored
                 └─ lease ──┘                     │ retryable: may be claimed again
                   expired   <────────────────────┘

A claim carries a fencing token and a lease. The worker renews the lease while it works; when it dies, the lease runs
out and the rescuer (or a repeat of the same subrequest) takes over. Only the holder of the token may write the outcome.
Work may therefore run again, but its side effects are keyed, so nothing is said twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from butlers.butler.route_execute import RouteHandler
from butlers.clock import Clock
from butlers.contracts.route import RouteEnvelope, WireError
from butlers.errors import ClassifiedError, InternalError, LeaseLost, TimeoutExceeded, from_wire
from butlers.reliability.lease import LeasePolicy
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import ROUTE_INBOX_RECOVERED

log = get_logger("butlers.route_inbox")

Key = tuple[UUID, str]  # request_id, segment_id


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPolicy:
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    max_attempts: int = 5  # crashes of the worker before the work counts as poisonous
    grace_s: float = 10.0  # accepted work younger than this is being started by its own call
    poll_s: float = 0.2  # how often to look when another process holds the work
    batch: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    token: UUID
    attempts: int
    envelope: RouteEnvelope


class RouteInboxStore:
    """The rows."""

    def __init__(self, *, database: Database, schema: str, clock: Clock, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._queries = Queries.load("butlers.butler", schema=schema)
        self._clock = clock
        self._new_id = new_id

    async def accept(self, envelope: RouteEnvelope) -> None:
        await self._database.execute(
            self._queries.accept_route,
            self._new_id(),
            envelope.request_context.request_id,
            envelope.subrequest.subrequest_id,
            envelope.subrequest.segment_id,
            envelope.to_wire(),
            self._clock.now(),
        )

    async def claim(self, key: Key, *, owner: str, ttl_s: float) -> Claim | None:
        token, now = self._new_id(), self._clock.now()
        row = await self._database.fetchrow(
            self._queries.claim_route, *key, token, owner, now, now + timedelta(seconds=ttl_s)
        )
        if row is None:
            return None
        return Claim(token=token, attempts=row["attempts"], envelope=RouteEnvelope.parse(row["envelope"]))

    async def renew(self, key: Key, token: UUID, *, ttl_s: float) -> bool:
        now = self._clock.now()
        expires = now + timedelta(seconds=ttl_s)
        return bool(await self._database.fetchval(self._queries.renew_route, *key, now, expires, token))

    async def finish(self, key: Key, token: UUID, outcome: dict[str, Any] | ClassifiedError) -> None:
        failed = isinstance(outcome, ClassifiedError)
        response = {"error": outcome.describe()} if isinstance(outcome, ClassifiedError) else {"result": outcome}
        written = await self._database.fetchval(
            self._queries.finish_route,
            *key,
            token,
            "errored" if failed else "processed",
            response,
            str(outcome) if failed else None,
            self._clock.now(),
        )
        if not written:
            raise LeaseLost(f"segment {key[1]} of request {key[0]} was taken over")

    async def outcome(self, key: Key) -> dict[str, Any] | None:
        """The stored response of finished work; None while it is open."""
        row = await self._database.fetchrow(self._queries.read_route, *key)
        if row is None or row["lifecycle_state"] not in ("processed", "errored"):
            return None
        response: dict[str, Any] = row["response"]
        return response

    async def abandoned(self, accepted_before: datetime, limit: int) -> list[Key]:
        rows = await self._database.fetch(self._queries.abandoned_routes, accepted_before, self._clock.now(), limit)
        return [(row["request_id"], row["segment_id"]) for row in rows]


class RouteInbox:
    """Runs routed work once per segment, whoever asks and however often."""

    def __init__(
        self,
        *,
        store: RouteInboxStore,
        work: RouteHandler,
        owner: str,
        clock: Clock,
        telemetry: Telemetry,
        policy: InboxPolicy = InboxPolicy(),
        wait_s: float = 60.0,
    ) -> None:
        self._store = store
        self._work = work
        self._owner = owner
        self._clock = clock
        self._telemetry = telemetry
        self._policy = policy
        self._wait_s = wait_s
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._draining = False

    async def handle(self, envelope: RouteEnvelope) -> dict[str, Any]:
        """Accept, run (or join the run that is under way) and answer with the stored outcome."""
        key = (envelope.request_context.request_id, envelope.subrequest.segment_id)
        await self._store.accept(envelope)
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._settled(key)
        except TimeoutError:
            raise TimeoutExceeded(f"the work was not finished within {self._wait_s:g} s; it goes on") from None

    async def _settled(self, key: Key) -> dict[str, Any]:
        while True:
            await self._run_if_free(key)
            if (response := await self._store.outcome(key)) is not None:
                return _unwrap(response)
            await self._clock.sleep(self._policy.poll_s)

    async def _run_if_free(self, key: Key) -> None:
        """Join our own run of it, or claim it; return when that run ends. Another process's run is left alone."""
        task = self._running.get(key)
        if task is None:
            claim = await self._store.claim(key, owner=self._owner, ttl_s=self._policy.lease.ttl)
            if claim is None:
                return
            task = self._start(key, claim)
        # The work outlives an impatient caller: its outcome is stored and answers the next call.
        await asyncio.wait([task])

    def _start(self, key: Key, claim: Claim) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(key, claim), name=f"route {key[0]} {key[1]}")
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return task

    async def _run(self, key: Key, claim: Claim) -> None:
        renewal = asyncio.create_task(self._keep_renewed(key, claim.token, asyncio.current_task()))
        try:
            outcome = await self._outcome_of(claim)
            await self._store.finish(key, claim.token, outcome)
        except LeaseLost:
            log.warning("claim was taken over", request_id=key[0], segment_id=key[1])
        finally:
            renewal.cancel()

    async def _outcome_of(self, claim: Claim) -> dict[str, Any] | ClassifiedError:
        if claim.attempts > self._policy.max_attempts:
            return InternalError(f"gave up after {self._policy.max_attempts} attempts that never finished")
        try:
            return await self._work(claim.envelope)
        except ClassifiedError as error:
            return error
        except Exception as error:
            log.error("routed work failed", error=error, request_id=claim.envelope.request_context.request_id)
            return InternalError(f"the work failed unexpectedly ({type(error).__name__})")

    async def _keep_renewed(self, key: Key, token: UUID, worker: asyncio.Task[Any] | None) -> None:
        lease = self._policy.lease
        while True:
            await self._clock.sleep(lease.renew_every)
            if not await self._store.renew(key, token, ttl_s=lease.ttl) and worker is not None:
                worker.cancel()

    async def rescue(self, *, grace_s: float | None = None) -> int:
        """Run what nobody holds. Called at start (without grace) and regularly."""
        if self._draining:
            return 0
        grace = self._policy.grace_s if grace_s is None else grace_s
        before = self._clock.now() - timedelta(seconds=grace)
        rescued = 0
        for key in await self._store.abandoned(before, self._policy.batch):
            if key in self._running:
                continue
            claim = await self._store.claim(key, owner=self._owner, ttl_s=self._policy.lease.ttl)
            if claim is not None:
                self._start(key, claim)
                rescued += 1
        if rescued:
            self._telemetry.count(ROUTE_INBOX_RECOVERED, rescued)
            log.info("took over abandoned work", count=rescued)
        return rescued

    async def drain(self, timeout_s: float) -> None:
        """Take over nothing more and let running work finish; what does not is taken over later by lease."""
        self._draining = True
        if tasks := list(self._running.values()):
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()


def _unwrap(response: dict[str, Any]) -> dict[str, Any]:
    if "error" in response:
        error = WireError.model_validate(response["error"])
        raise from_wire(
            error.error_class, error.message, retryable=error.retryable, retry_after=error.retry_after_seconds
        )
    result: dict[str, Any] = response["result"]
    return result
