"""Whether a channel may be used: circuits that all processes share through their rows, and probes of providers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from butlers.butler.health import Finding, LastKnown
from butlers.channels.adapter import Adapter, AttemptResult, Probes, Sent
from butlers.clock import Clock
from butlers.errors import ClassifiedError, ErrorClass
from butlers.reliability import circuit_breaker
from butlers.reliability.circuit_breaker import Breaker, BreakerPolicy, BreakerState
from butlers.storage.database import Executor, Record
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.channel_health")

PROBE_S = 10.0  # in which a provider must answer
AGAIN_S = 60.0  # until a provider that refused us is asked again
Probe = Callable[[], Awaitable[None]]  # raises what is wrong
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
        """Whether the provider, and not the message, the recipient or our own process, is to blame."""
        result = self.result
        if self.lost or isinstance(result, Sent) or result.throttle is not None:
            return False
        return result.asked and not result.recipient_gone and result.error.error_class in _FAULTS


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


def after(breaker: Breaker, policy: BreakerPolicy, report: Report, now: datetime) -> Breaker:
    """The circuit after one report."""
    generation, result = report.generation, report.result
    if isinstance(result, Sent):
        return circuit_breaker.record_success(breaker, policy, generation=generation)
    if not report.blames:
        return circuit_breaker.record_ignored(breaker, generation=generation)
    return circuit_breaker.record_failure(breaker, policy, generation=generation, reason=result.error.message, now=now)


def learned(
    circuits: Sequence[Record], reports: Sequence[Report], policy: BreakerPolicy, now: datetime
) -> dict[str, Breaker]:
    """The circuits that a batch of results changes, as they are afterwards."""
    before = {row["name"]: from_row(row) for row in circuits}
    known = dict(before)
    for report in reports:
        if (breaker := known.get(report.channel)) is not None:
            known[report.channel] = after(breaker, policy, report, now)
    return {name: breaker for name, breaker in known.items() if breaker != before[name]}


async def draw_probes(
    connection: Executor, queries: Queries, policy: BreakerPolicy, name: str, now: datetime, *, at_most: int
) -> int:
    """Take probe slots of a circuit that is not closed; how many calls may go out."""
    rows = await connection.fetch(queries.lock_channels, [name])
    if not rows or (breaker := from_row(rows[0])).state is BreakerState.CLOSED:
        return at_most
    drawn = 0
    while drawn < at_most:
        admission, breaker = circuit_breaker.admit(breaker, policy, now)
        if not isinstance(admission, circuit_breaker.Admitted):
            break
        drawn += 1
    await write(connection, queries, name, breaker, now)
    return drawn


async def give_back(connection: Executor, queries: Queries, name: str, slots: int, now: datetime) -> None:
    """Probe slots that found nothing to send."""
    breaker = from_row((await connection.fetch(queries.lock_channels, [name]))[0])
    for _ in range(slots):
        breaker = circuit_breaker.record_ignored(breaker, generation=breaker.generation)
    await write(connection, queries, name, breaker, now)


async def write(connection: Executor, queries: Queries, name: str, breaker: Breaker, now: datetime) -> None:
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


def probes_of(
    channels: Mapping[str, Adapter], mailboxes: Mapping[str, Probes], *, timeout_s: float = PROBE_S
) -> dict[str, Probe]:
    """A question to each provider that can be asked, by the name of its channel."""

    def asking(provider: Probes) -> Probe:
        return lambda: provider.probe(timeout_s=timeout_s)

    found = {name: asking(channel) for name, channel in channels.items() if isinstance(channel, Probes)}
    return found | {f"{name}.mailbox": asking(mailbox) for name, mailbox in mailboxes.items()}


async def ask_all(probes: Mapping[str, Probe]) -> dict[str, ClassifiedError | None]:
    """Ask everybody at once; None: the provider knows us."""

    async def ask(probe: Probe) -> ClassifiedError | None:
        try:
            await probe()
        except ClassifiedError as error:
            return error
        return None

    answers = await asyncio.gather(*(ask(probe) for probe in probes.values()))
    return dict(zip(probes, answers, strict=True))


class ChannelWatch:
    def __init__(self, *, probes: Mapping[str, Probe], clock: Clock, every_s: float) -> None:
        self._probes = probes
        self._clock = clock
        self._every_s = every_s
        self._refused: set[str] = set()
        self.known = LastKnown()

    async def run(self) -> None:
        while True:
            await self.run_once()
            await self._clock.sleep(min(self._every_s, AGAIN_S) if self._refused else self._every_s)

    async def run_once(self) -> None:
        for name, error in (await ask_all(self._probes)).items():
            self._note(name, error)

    def _note(self, name: str, error: ClassifiedError | None) -> None:
        if error is None:
            if name in self._refused:
                log.info("the provider knows us again", provider=name)
            self._refused.discard(name)
            self.known.note(name, Finding())
            return
        self._refused.add(name)
        log.warning("the provider does not serve us", provider=name, error=error, error_class=error.error_class)
        self.known.note(name, Finding.degraded(f"{_capital(error.message)}.", remedy=f"{_capital(error.remedy)}."))


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
