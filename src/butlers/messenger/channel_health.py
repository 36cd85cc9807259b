"""How channels are, for people: what a circuit says, and whether a provider that is asked knows us."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from butlers.butler.health import Finding, LastKnown
from butlers.channels.adapter import Adapter, Probes
from butlers.clock import Clock
from butlers.errors import ClassifiedError
from butlers.reliability.circuit_breaker import BreakerState
from butlers.storage.database import Record
from butlers.telemetry import get_logger

log = get_logger("butlers.messenger.channel_health")

PROBE_S = 10.0  # in which a provider must answer
AGAIN_S = 60.0  # until a provider that refused us is asked again
Probe = Callable[[], Awaitable[None]]  # raises what is wrong


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
