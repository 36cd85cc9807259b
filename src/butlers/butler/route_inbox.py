"""Routed work that survives its worker.

    accepted ──claim──> processing ──finish──> processed
                 ^          │   └────finish──> errored
                 └─ lease ──┘                     │ retryable: may be claimed again
                   expired   <────────────────────┘

The claims are those of `butlers.storage.claims`. When a worker dies, its lease runs out, and `rescue` (or a repeat of
the same subrequest) takes the work over. Work may therefore run again, but its side effects have keys, so nothing is
sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from butlers.butler.identity import Caller
from butlers.clock import Clock
from butlers.contracts.envelope import invalid
from butlers.contracts.route import ResponseContext, RouteEnvelope, RouteResponse, Timing, WireError
from butlers.errors import ClassifiedError, InternalError, LeaseLost, Quarantined, TimeoutExceeded, from_wire
from butlers.storage.claims import MOST_DEATHS, Claim, Claims, ClaimTable, LeasePolicy, SuspectGate
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import ROUTE_EXECUTED, ROUTE_INBOX_RECOVERED, ROUTE_LATENCY
from butlers.telemetry.spans import ROUTE_EXECUTE
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.route_inbox")

GIVE_BACK_S = 5.0  # for work that is stopped, to be given back
RouteHandler = Callable[[RouteEnvelope], Awaitable[dict[str, Any]]]
Key = tuple[UUID, str]  # request_id, segment_id

# Failed work that may be tried again waits like new work; an attempt that ended, even badly, saw no worker die.
ROUTE_CLAIMS = ClaimTable(
    name="route_inbox",
    key={"request_id": "uuid", "segment_id": "text"},
    state="lifecycle_state",
    held="processing",
    waiting="work.lifecycle_state = 'accepted' OR (work.lifecycle_state = 'errored' AND "
    "(work.response #>> '{error,retryable}')::boolean)",
    deaths="CASE work.lifecycle_state WHEN 'errored' THEN 0 ELSE work.attempts END",
    on_claim={"claimed_at": "$1", "response": "NULL", "error": "NULL"},
    returned=("attempts", "envelope"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteExecutor:
    """Guards one butler's `route.execute` and turns every outcome into a response."""

    butler: str
    trusted_callers: frozenset[str]
    handle: RouteHandler
    clock: Clock
    telemetry: Telemetry

    async def execute(self, caller: Caller | None, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A `route_response.v1` on the wire, also of a request that is refused."""
        started = self.clock.monotonic()
        request_id: UUID | None = None
        result: dict[str, Any] | None = None
        error: ClassifiedError | None = None
        try:
            envelope = RouteEnvelope.parse(raw)
            request_id = envelope.request_context.request_id
            self._check(caller, envelope)
            with self.telemetry.span(
                ROUTE_EXECUTE,
                request_id=request_id,
                parent=envelope.trace_context,
                segment_id=envelope.subrequest.segment_id,
            ):
                result = await self.handle(envelope)
        except ClassifiedError as failure:
            error, result = failure, failure.partial
        except Exception as failure:
            log.error("route failed", error=failure, request_id=request_id, butler=self.butler)
            error = InternalError(f"{self.butler} failed unexpectedly ({type(failure).__name__})")
        elapsed_ms = (self.clock.monotonic() - started) * 1000
        outcome = error.error_class.value if error else "ok"
        self.telemetry.count(ROUTE_EXECUTED, outcome=outcome)
        self.telemetry.observe(ROUTE_LATENCY, elapsed_ms, outcome=outcome)
        return RouteResponse(
            request_context=ResponseContext(request_id=request_id) if request_id else None,
            status="error" if error else "ok",
            result=result,
            error=WireError.of(error) if error else None,
            timing=Timing(duration_ms=int(elapsed_ms)),
        ).to_wire()

    def _check(self, caller: Caller | None, envelope: RouteEnvelope) -> None:
        if caller is None:
            raise invalid(
                "authorization", "caller is missing: route.execute needs the bearer token of a trusted caller"
            )
        if caller.name not in self.trusted_callers:
            raise invalid("authorization", f"caller {caller.name!r} is not in trusted_route_callers of {self.butler}")
        if envelope.target.butler != self.butler:
            raise invalid("target.butler", f"is {envelope.target.butler!r}, but this is {self.butler!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPolicy:
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    max_attempts: int = MOST_DEATHS  # of the worker before the work is quarantined
    grace_s: float = 10.0  # accepted work younger than this is being started by its own call
    poll_s: float = 0.2  # how often to look when another process holds the work
    batch: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRoute:
    """Routed work that this process may do now."""

    claim: Claim
    attempts: int
    envelope: RouteEnvelope


class RouteInbox:
    """Runs routed work once per segment, whichever caller asks and however often."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        new_id: Callable[[], UUID],
        work: RouteHandler,
        owner: str,
        clock: Clock,
        telemetry: Telemetry,
        suspects: SuspectGate,
        policy: InboxPolicy = InboxPolicy(),
        wait_s: float = 60.0,
    ) -> None:
        self._database = database
        self._queries = Queries.load("butlers.butler", schema=schema)
        self._claims = Claims(ROUTE_CLAIMS, database=database, schema=schema, clock=clock, new_id=new_id)
        self._new_id = new_id
        self._work = work
        self._owner = owner
        self._clock = clock
        self._telemetry = telemetry
        self._suspects = suspects
        self._policy = policy
        self._wait_s = wait_s
        self._owed: dict[UUID, Claim] = {}  # by token; to be given back when the database is there
        self._running: dict[Key, asyncio.Task[dict[str, Any] | None]] = {}
        self._draining = False

    async def handle(self, envelope: RouteEnvelope) -> dict[str, Any]:
        """Accept, run (or join the run that is under way) and answer with the stored outcome."""
        key = (envelope.request_context.request_id, envelope.subrequest.segment_id)
        await self._database.execute(
            self._queries.accept_route,
            self._new_id(),
            key[0],
            envelope.subrequest.subrequest_id,
            key[1],
            envelope.to_wire(),
            self._clock.now(),
        )
        try:
            async with asyncio.timeout(self._wait_s):
                while (response := await self._response(key)) is None:
                    await self._clock.sleep(self._policy.poll_s)
        except TimeoutError:
            raise TimeoutExceeded(f"the work was not finished within {self._wait_s:g} s; it goes on") from None
        if "error" in response:
            error = WireError.model_validate(response["error"])
            raise from_wire(
                error.error_class, error.message, retryable=error.retryable, retry_after=error.retry_after_seconds
            )
        result: dict[str, Any] = response["result"]
        return result

    async def claim(self, key: Key, *, suspect: bool = False) -> ClaimedRoute | None:
        """None: another worker holds the work, it is finished, or it is a suspect and `suspect` is false."""
        held = await self._claims.claim(key, worker=self._owner, lease_s=self._policy.lease.ttl, suspects=suspect)
        if held is None:
            return None
        claim, row = held
        return ClaimedRoute(claim=claim, attempts=row["attempts"], envelope=RouteEnvelope.parse(row["envelope"]))

    async def outcome(self, key: Key) -> dict[str, Any] | None:
        """The stored response of finished work; None while it is open."""
        row = await self._database.fetchrow(self._queries.read_route, *key)
        if row is None or row["lifecycle_state"] not in ("processed", "errored"):
            return None
        response: dict[str, Any] = row["response"]
        return response

    async def rescue(self, *, grace_s: float | None = None) -> int:
        """Run what no worker holds. Called at start (without grace) and regularly."""
        if self._draining:
            return 0
        grace = self._policy.grace_s if grace_s is None else grace_s
        now, rescued = self._clock.now(), 0
        await self._give_back()
        abandoned = self._claims.fill(self._queries.abandoned_routes)
        for row in await self._database.fetch(abandoned, now, now - timedelta(seconds=grace), self._policy.batch):
            key = (row["request_id"], row["segment_id"])
            if key not in self._running and await self._start(key) is not None:
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
            if late:
                await asyncio.wait(late, timeout=GIVE_BACK_S)

    async def _response(self, key: Key) -> dict[str, Any] | None:
        """The response of our own run, which is joined or started, or else what is stored; None while it is open."""
        task = self._running.get(key) or await self._start(key)
        if task is not None:
            # The work outlives an impatient caller: its outcome is stored and answers the next call.
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None and (response := task.result()) is not None:
                return response
        return await self.outcome(key)

    async def _start(self, key: Key) -> asyncio.Task[dict[str, Any] | None] | None:
        """The run of work that was free; a suspect runs alone (`SuspectGate`). A stop starts nothing."""
        if self._draining:
            return None
        is_alone = False
        route = await self.claim(key)
        if route is None and (is_alone := self._suspects.enter(key[0])):
            try:
                route = await self.claim(key, suspect=True)
            except BaseException:
                self._suspects.leave()
                raise
        if route is not None and self._draining:  # the stop came meanwhile, and knows nothing of this claim
            await self._give_back(route.claim)
            route = None
        if route is None:
            if is_alone:
                self._suspects.leave()
            return None
        task = asyncio.create_task(self._run(route), name=f"route {key[0]} {key[1]}")
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        if is_alone:
            task.add_done_callback(lambda _: self._suspects.leave())
        return task

    async def _run(self, route: ClaimedRoute) -> dict[str, Any] | None:
        """The response that was stored; None when the claim was lost or given back."""
        claim = route.claim
        renewal = asyncio.create_task(self._keep_renewed(claim, asyncio.current_task()))
        try:
            outcome = await self._outcome_of(route)
            failed = isinstance(outcome, ClassifiedError)
            response = {"error": outcome.describe()} if isinstance(outcome, ClassifiedError) else {"result": outcome}
            values = {
                "lifecycle_state": "errored" if failed else "processed",
                "response": response,
                "error": str(outcome) if failed else None,
                "updated_at": self._clock.now(),
            }
            await self._claims.settle(claim, values)
        except LeaseLost:
            log.warning("claim was taken over", request_id=claim.key[0], segment_id=claim.key[1])
        except asyncio.CancelledError:
            if self._draining:  # otherwise the claim was lost over a long silence, which counts
                await self._give_back(claim)
            raise
        except ClassifiedError:
            await self._give_back(claim)  # the database was away: that is not the work's fault
        else:
            return response
        finally:
            renewal.cancel()
        return None

    async def _outcome_of(self, route: ClaimedRoute) -> dict[str, Any] | ClassifiedError:
        if route.attempts > self._policy.max_attempts:
            return Quarantined.after(self._policy.max_attempts, None)
        try:
            return await self._work(route.envelope)
        except ClassifiedError as error:
            return error
        except Exception as error:
            log.error("routed work failed", error=error, request_id=route.envelope.request_context.request_id)
            return InternalError(f"the work failed unexpectedly ({type(error).__name__})")

    async def _keep_renewed(self, claim: Claim, worker: asyncio.Task[Any] | None) -> None:
        lease = self._policy.lease
        while True:
            await self._clock.sleep(lease.renew_every)
            if not await self._claims.renew([claim], lease_s=lease.ttl) and worker is not None:
                worker.cancel()

    async def _give_back(self, *more: Claim) -> None:
        """What the database cannot hear now it hears with the next rescue."""
        self._owed.update((claim.token, claim) for claim in more)
        try:
            for token, claim in list(self._owed.items()):
                await self._claims.give_back([claim])
                self._owed.pop(token, None)
        except ClassifiedError:
            log.warning("an attempt is given back later", reason="database_away")
