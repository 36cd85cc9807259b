"""The circuits of the channels, shared by all Messenger processes through their rows.

What counts against a provider: that it failed, timed out or refused our credentials. What does not: a message it
would not take, a recipient who is gone, and a request to wait, which has a window of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from butlers.butler.health import Finding
from butlers.channels.adapter import AttemptResult, Sent
from butlers.errors import ErrorClass
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy, BreakerState
from butlers.storage.database import Executor, Record
from butlers.storage.queries import Queries

_FAULTS = frozenset({ErrorClass.TARGET_UNAVAILABLE, ErrorClass.TIMEOUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an attempt says about the circuit it belongs to."""

    channel: str  # with its scope
    generation: int
    result: AttemptResult
    lost: bool = False  # our own crash, which says nothing about the provider

    @property
    def blames(self) -> bool:
        return not self.lost and is_fault(self.result)


def from_row(row: Record) -> Breaker:
    return Breaker(
        state=BreakerState(row["state"]),
        generation=row["generation"],
        consecutive_failures=row["consecutive_failures"],
        probes_out=row["probes_out"],
        probe_successes=row["probe_successes"],
        trip_reason=row["trip_reason"],
        tripped_at=row["tripped_at"],
        probe_at=row["probe_at"],
    )


def is_fault(result: AttemptResult) -> bool:
    """Whether the provider, and not the message or the recipient, is to blame."""
    if isinstance(result, Sent) or result.throttle is not None or result.recipient_gone or not result.asked:
        return False
    return result.error.error_class in _FAULTS


def after(breaker: Breaker, policy: BreakerPolicy, report: Report, now: datetime) -> Breaker:
    """The circuit after one report."""
    generation, result = report.generation, report.result
    if isinstance(result, Sent):
        return circuit_breaker.record_success(breaker, policy, generation=generation)
    if not report.blames:
        return circuit_breaker.record_ignored(breaker, generation=generation)
    return circuit_breaker.record_failure(breaker, policy, generation=generation, reason=result.error.message, now=now)


async def learn(
    connection: Executor,
    queries: Queries,
    policy: BreakerPolicy,
    reports: Sequence[Report],
    now: datetime,
) -> dict[str, Breaker]:
    """Let circuits learn from a batch of results; returns those that changed."""
    query = queries.lock_channels if any(report.blames for report in reports) else queries.troubled_channels
    rows = await connection.fetch(query, sorted({report.channel for report in reports}))
    before = {row["name"]: from_row(row) for row in rows}
    circuits = dict(before)
    for report in reports:
        if (breaker := circuits.get(report.channel)) is not None:
            circuits[report.channel] = after(breaker, policy, report, now)
    changed = {name: breaker for name, breaker in circuits.items() if breaker != before[name]}
    await write(connection, queries, changed, now)
    return changed


async def draw_probes(
    connection: Executor, queries: Queries, policy: BreakerPolicy, name: str, now: datetime, *, at_most: int
) -> int:
    """Take probe slots of a circuit that is not closed; how many calls may go out."""
    rows = await connection.fetch(queries.lock_channels, [name])
    if not rows:
        return at_most
    breaker, drawn = from_row(rows[0]), 0
    if breaker.state is BreakerState.CLOSED:
        return at_most
    while drawn < at_most:
        admission, breaker = circuit_breaker.admit(breaker, policy, now)
        if not isinstance(admission, circuit_breaker.Admitted):
            break
        drawn += 1
    await write(connection, queries, {name: breaker}, now)
    return drawn


async def give_back(connection: Executor, queries: Queries, name: str, slots: int, now: datetime) -> None:
    """Probe slots that found nothing to send."""
    breaker = from_row((await connection.fetch(queries.lock_channels, [name]))[0])
    for _ in range(slots):
        breaker = circuit_breaker.record_ignored(breaker, generation=breaker.generation)
    await write(connection, queries, {name: breaker}, now)


async def write(connection: Executor, queries: Queries, circuits: Mapping[str, Breaker], now: datetime) -> None:
    for name, breaker in circuits.items():
        await connection.execute(
            queries.write_circuit,
            name,
            breaker.state.value,
            breaker.generation,
            breaker.consecutive_failures,
            breaker.probes_out,
            breaker.probe_successes,
            breaker.trip_reason,
            breaker.tripped_at,
            breaker.probe_at,
            now,
        )


def finding(row: Record) -> Finding:
    """How a channel is, by its circuit, for people."""
    if BreakerState(row["state"]) is BreakerState.CLOSED:
        return Finding()
    return Finding.degraded(
        f"The last deliveries failed: {row['trip_reason'] or 'no reason is on record'}.",
        remedy="Deliveries wait and one is tried now and then; `butlers deliveries list` shows them.",
        circuit=row["state"],
    )
