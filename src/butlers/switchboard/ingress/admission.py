"""What the door does when more comes in than goes out (seed 003, "Backpressure and Admission Control").

Shares       whether a channel still has a place: a guaranteed share for each, the rest for all
decide       accepted | deferred | shed | rejected, by [admission] of butler.toml
Occupancy    how many messages wait, by channel: counted in the table now and then, in memory in between
Admission    the three together, as the ingress asks them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from butlers.channels.registry import inbound_names
from butlers.clock import Clock
from butlers.errors import OverloadRejected
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.config import AdmissionSection, Overflow
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import SWITCHBOARD_QUEUE_DEPTH

log = get_logger("butlers.admission")

COUNT_EVERY_S = 1.0
_SHARE_OF_TIME = 50  # a count that takes long comes less often: at most a fiftieth of the time


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    DEFERRED = "deferred"
    SHED = "shed"
    REJECTED = "rejected"


WAITS = frozenset({Outcome.ACCEPTED, Outcome.DEFERRED})
_OVERFLOW: Mapping[Overflow, Outcome] = {
    "defer": Outcome.DEFERRED,
    "shed": Outcome.SHED,
    "reject": Outcome.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    places: int
    channels: int  # that there are, busy or not

    @property
    def guaranteed(self) -> int:
        """Places that are one channel's own."""
        return self.places // (2 * self.channels)

    def has_place(self, channel: str, waiting: Mapping[str, int]) -> bool:
        """Whether one more of this channel fits."""
        guaranteed = self.guaranteed
        if waiting.get(channel, 0) < guaranteed:
            return True
        in_pool = sum(count - guaranteed for count in waiting.values() if count > guaranteed)
        return in_pool < self.places - guaranteed * self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    waiting: Shares  # before overflow begins
    stored: Shares  # before everything is refused
    overflow: Mapping[str, Overflow]  # by tier; has "default"
    retry_after_s: float  # told to a caller that is rejected

    @classmethod
    def of(cls, section: AdmissionSection) -> Self:
        return cls(
            waiting=Shares(places=section.max_waiting, channels=len(inbound_names())),
            stored=Shares(places=section.max_stored, channels=len(inbound_names())),
            overflow=section.overflow.model_dump(),
            retry_after_s=section.retry_after_s,
        )


def decide(
    policy: AdmissionPolicy, *, channel: str, tier: str, waiting: Mapping[str, int], queues_full: bool
) -> Outcome:
    if not policy.stored.has_place(channel, waiting):
        return Outcome.REJECTED
    if waiting.get(channel, 0) < policy.waiting.guaranteed:
        return Outcome.ACCEPTED
    if not queues_full and policy.waiting.has_place(channel, waiting):
        return Outcome.ACCEPTED
    return _OVERFLOW[policy.overflow.get(tier, policy.overflow["default"])]


class Occupancy:
    """The open messages by channel, as far as this process knows."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self._unsettled: Counter[str] = Counter()  # let in, and no row yet: a count of the rows may miss them
        self._during_count: Counter[str] | None = None

    def enter(self, channel: str) -> None:
        """A place is taken; `settle` follows when it is known whether there is a row."""
        self.waiting[channel] += 1
        self._unsettled[channel] += 1
        if self._during_count is not None:
            self._during_count[channel] += 1

    def settle(self, channel: str, *, stored: bool) -> None:
        """Whether it came to a row; a message that was known already takes no place."""
        self._unsettled[channel] -= 1
        if not stored:
            self.leave(channel)

    def leave(self, channel: str) -> None:
        """A message has come to its end."""
        # Never below zero: a message may end that entered by another process, after the last count.
        self.waiting[channel] = max(0, self.waiting[channel] - 1)

    def begin_count(self) -> None:
        self._during_count = +self._unsettled

    def end_count(self, counted: Mapping[str, int]) -> None:
        """The rows were counted since `begin_count`."""
        self.waiting = Counter(counted)
        self.waiting.update(self._during_count or {})
        self._during_count = None


class Admission:
    """Decides about messages and knows how many wait."""

    def __init__(
        self, *, policy: AdmissionPolicy, database: Database, schema: str, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._policy = policy
        self._database = database
        self._queries = Queries.load("butlers.switchboard.ingress.admission", schema=schema)
        self._clock = clock
        self._telemetry = telemetry
        self.occupancy = Occupancy()

    def decide(self, *, channel: str, tier: str, queues_full: bool) -> Outcome:
        """What to do with one more; one that waits takes a place until `occupancy.settle` says otherwise."""
        waiting = self.occupancy.waiting
        outcome = decide(self._policy, channel=channel, tier=tier, waiting=waiting, queues_full=queues_full)
        if outcome in WAITS:
            self.occupancy.enter(channel)
        return outcome

    def refusal(self) -> OverloadRejected:
        return OverloadRejected(
            "more messages wait than may wait; nothing was stored", retry_after=self._policy.retry_after_s
        )

    async def count(self) -> float:
        """Count the rows that wait; returns the seconds it took."""
        started = self._clock.monotonic()
        self.occupancy.begin_count()
        rows = await self._database.fetch(self._queries.count_waiting)
        self.occupancy.end_count({row["source_channel"]: row["waiting"] for row in rows})
        for channel in inbound_names():
            self._telemetry.gauge(
                SWITCHBOARD_QUEUE_DEPTH, self.occupancy.waiting.get(channel, 0), source_channel=channel
            )
        return self._clock.monotonic() - started

    async def run(self) -> None:
        """Count until cancelled; a count that fails leaves the numbers as they are."""
        took = 0.0
        while True:
            await self._clock.sleep(max(COUNT_EVERY_S, took * _SHARE_OF_TIME))
            try:
                took = await self.count()
            except Exception as error:
                log.warning("the waiting messages could not be counted", error=error)
