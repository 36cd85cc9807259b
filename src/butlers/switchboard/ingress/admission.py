"""What the door does when more comes in than goes out (seed 003, "Backpressure and Admission Control").

shares.py       whether a channel still has a place: a guaranteed share for each, the rest for whoever comes
decision.py     accepted | deferred | shed | rejected, by [admission] of butler.toml
occupancy.py    how much waits, by channel: looked up now and then, counted on in between
admission.py    the three together, as the ingress asks them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self, TypeVar

from butlers.channels.registry import inbound_names
from butlers.clock import Clock
from butlers.errors import OverloadRejected
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.config import AdmissionSection, Overflow
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import ADMISSION, SWITCHBOARD_QUEUE_DEPTH


class Occupancy:
    """The open messages by channel, as far as is known."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._unsettled: Counter[str] = Counter()  # let in, and no row yet: a look may miss them
        self._during_look: Counter[str] | None = None

    @property
    def waiting(self) -> Mapping[str, int]:
        return self._waiting

    def enter(self, channel: str) -> None:
        """A place is taken; `settle` follows when it is known whether there is a row."""
        self._waiting[channel] += 1
        self._unsettled[channel] += 1
        if self._during_look is not None:
            self._during_look[channel] += 1

    def settle(self, channel: str, *, stored: bool) -> None:
        self._unsettled[channel] -= 1
        if not stored:
            self._take_away(channel)

    def leave(self, channel: str) -> None:
        """A message has come to its end."""
        self._take_away(channel)

    def begin_look(self) -> None:
        self._during_look = +self._unsettled

    def end_look(self, counted: Mapping[str, int]) -> None:
        """The rows were counted since `begin_look`."""
        self._waiting = Counter(counted)
        self._waiting.update(self._during_look or {})
        self._during_look = None

    def _take_away(self, channel: str) -> None:
        # Never below nothing: a message may end that entered by another process, after the last look.
        self._waiting[channel] = max(0, self._waiting[channel] - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    places: int
    channels: int  # that there are, busy or not

    @property
    def guaranteed(self) -> int:
        """Places that are one channel's own."""
        return self.places // (2 * self.channels)

    def within_share(self, channel: str, waiting: Mapping[str, int]) -> bool:
        return waiting.get(channel, 0) < self.guaranteed

    def has_place(self, channel: str, waiting: Mapping[str, int]) -> bool:
        """Whether one more of this channel fits."""
        guaranteed = self.guaranteed
        if waiting.get(channel, 0) < guaranteed:
            return True
        in_pool = sum(count - guaranteed for count in waiting.values() if count > guaranteed)
        return in_pool < self.places - guaranteed * self.channels


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    DEFERRED = "deferred"
    SHED = "shed"
    REJECTED = "rejected"


_OVERFLOW: Mapping[Overflow, Outcome] = {
    "defer": Outcome.DEFERRED,
    "shed": Outcome.SHED,
    "reject": Outcome.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    waiting: Shares  # before overflow begins
    stored: Shares  # before everything is refused
    overflow: Mapping[str, Overflow]  # by tier; has "default"
    retry_after_s: float  # told to whoever is rejected

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
    if policy.waiting.within_share(channel, waiting):
        return Outcome.ACCEPTED
    if not queues_full and policy.waiting.has_place(channel, waiting):
        return Outcome.ACCEPTED
    return _OVERFLOW[policy.overflow.get(tier, policy.overflow["default"])]


log = get_logger("butlers.admission")

LOOK_EVERY_S = 1.0
_SHARE_OF_TIME = 50  # a look that takes long comes less often: at most a fiftieth of the time
_WAITS = frozenset({Outcome.ACCEPTED, Outcome.DEFERRED})


class Finished(Protocol):
    """A message that a worker had in hand, as far as admission is concerned."""

    @property
    def source_channel(self) -> str: ...


Message = TypeVar("Message", bound=Finished)


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
        self._occupancy = Occupancy()

    def ask(self, *, channel: str, tier: str, queues_full: bool) -> Outcome:
        """What to do with one more; its place is taken until `settle` says otherwise."""
        outcome = decide(
            self._policy, channel=channel, tier=tier, waiting=self._occupancy.waiting, queues_full=queues_full
        )
        if outcome in _WAITS:
            self._occupancy.enter(channel)
        return outcome

    def settle(self, outcome: Outcome, *, channel: str, stored: bool) -> None:
        """Whether it came to a row; a message that was known already takes no place."""
        if outcome in _WAITS:
            self._occupancy.settle(channel, stored=stored)

    def record(self, outcome: Outcome, number: int, *, channel: str, tier: str) -> None:
        self._telemetry.count(ADMISSION, number, source_channel=channel, policy_tier=tier, outcome=outcome.value)

    def refusal(self) -> OverloadRejected:
        return OverloadRejected(
            "more messages wait than may wait; nothing was stored", retry_after=self._policy.retry_after_s
        )

    def counting_down(self, process: Callable[[Message], Awaitable[bool]]) -> Callable[[Message], Awaitable[bool]]:
        """The same work, and the place is free afterwards. One that is put off is found again by the next look."""

        async def counted(message: Message) -> bool:
            done = await process(message)
            if done:
                self._occupancy.leave(message.source_channel)
            return done

        return counted

    async def look(self) -> float:
        """Count the rows that wait; returns the seconds it took."""
        started = self._clock.monotonic()
        self._occupancy.begin_look()
        rows = await self._database.fetch(self._queries.count_waiting)
        self._occupancy.end_look({row["source_channel"]: row["waiting"] for row in rows})
        for channel in inbound_names():
            self._telemetry.gauge(
                SWITCHBOARD_QUEUE_DEPTH, self._occupancy.waiting.get(channel, 0), source_channel=channel
            )
        return self._clock.monotonic() - started

    async def run(self) -> None:
        """Look until cancelled; a look that fails leaves the count as it is."""
        took = 0.0
        while True:
            await self._clock.sleep(max(LOOK_EVERY_S, took * _SHARE_OF_TIME))
            try:
                took = await self.look()
            except Exception as error:
                log.warning("the waiting messages could not be counted", error=error)

    def waiting(self) -> dict[str, int]:
        return {channel: count for channel, count in self._occupancy.waiting.items() if count}
