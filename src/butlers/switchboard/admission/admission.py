"""Admission as the ingress asks for it: decide, take the place, and keep the count honest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from butlers.channels.registry import inbound_names
from butlers.clock import Clock
from butlers.errors import OverloadRejected
from butlers.storage.database import Database
from butlers.storage.queries import Queries
from butlers.switchboard.admission.decision import AdmissionPolicy, Outcome, decide
from butlers.switchboard.admission.occupancy import Occupancy
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import ADMISSION, SWITCHBOARD_QUEUE_DEPTH

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
        self._queries = Queries.load("butlers.switchboard.admission", schema=schema)
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
