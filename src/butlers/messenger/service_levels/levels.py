"""The SLIs of a stretch of time, and the stance of each channel.

    every few seconds:  count both windows -> assess, with the long budget in view -> take the stance, unless another
                        process just did -> gauges
    when asked:         read everything in one snapshot -> rates

The stance lives in the table and not in a process, so that all Messenger processes are equally strict.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from butlers.clock import Clock
from butlers.messenger.service_levels import report
from butlers.messenger.service_levels.budget import Judgement, Standing, Windows, judge_channel
from butlers.messenger.service_levels.long_budget import LongWindow, strain
from butlers.reliability.error_budget import BudgetPolicy, Stance
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import Telemetry, get_logger
from butlers.telemetry.catalogue import CIRCUIT_STATE, ERROR_BUDGET_BURN, MESSENGER_QUEUE_DEPTH, STANCE

log = get_logger("butlers.messenger")

JUDGE_EVERY_S: Final = 15.0
UNKNOWN_BURN: Final = -1.0  # a gauge cannot say nothing, and the last value would be a lie

# Rules that refuse for want of room; a recipient who may not be written to is the caller's matter, not a limit.
RATE_RULES: Final = ("throttle", "in_flight", "global", "channel", "recipient", "fair_share", "breaker")

_CIRCUIT = {"closed": 0, "half-open": 1, "open": 2}
_STANCE = {Stance.NORMAL: 0, Stance.TIGHT: 1}


class ServiceLevels:
    """Measures one schema."""

    def __init__(
        self,
        *,
        database: Database,
        schema: str,
        clock: Clock,
        telemetry: Telemetry,
        policy: BudgetPolicy,
        channels: Sequence[str],  # telegram.bot, email.bot: those in use
        max_in_flight: int,
    ) -> None:
        self._database = database
        self._queries = Queries.load("butlers.messenger.service_levels", schema=schema)
        self._clock = clock
        self._telemetry = telemetry
        self._policy = policy
        self._channels = tuple(channels)
        self._max_in_flight = max_in_flight

    async def run(self) -> None:
        """Judge and show until cancelled."""
        while True:
            try:
                await self.judge()
                await self.show()
            except Exception as error:
                log.error("service levels were not judged", error=error)
            await self._clock.sleep(JUDGE_EVERY_S)

    async def judge(self) -> list[Judgement]:
        """Take the stance that each channel's error budget asks for; returns the changes that this call made."""
        now = self._clock.now()
        windows, standings, long = await self._windows(now), await self._standings(), await self._long_windows()
        judgements = [
            judge_channel(
                name,
                windows.get(name, Windows()),
                standings.get(name, Standing()),
                self._policy,
                now,
                strain=strain(long.get(name, ()), self._policy, now),
            )
            for name in self._channels
        ]
        written = [judgement for judgement in judgements if judgement.is_news and await self._take(judgement, now)]
        return [_announced(judgement) for judgement in written if judgement.changes_stance]

    async def show(self) -> None:
        """Set the gauges to what the tables say now."""
        standings = await self._standings()
        for name in self._channels:
            self._show_channel(name, standings.get(name, Standing()))
        unfinished = await _rows(self._database, self._queries.unfinished_by_status)
        for status, deliveries in report.by_status(unfinished).items():
            self._telemetry.gauge(MESSENGER_QUEUE_DEPTH, deliveries, status=status)

    async def slis(self, since: datetime, until: datetime) -> dict[str, Any]:
        """Every SLI of [since, until), from one snapshot; queue and error budget are as of now."""
        async with self._database.transaction(isolation="repeatable_read") as snapshot:
            return {
                "window": {"since": since, "until": until},
                "objective": self._policy.objective,
                **await self._of_deliveries(snapshot, since, until),
                **await self._of_the_door(snapshot, since, until),
                **await self._of_exceptions(snapshot, since, until),
                "error_budget": report.budgets(
                    await self._standings(snapshot),
                    self._channels,
                    long=await self._long_windows(snapshot),
                    policy=self._policy,
                    now=self._clock.now(),
                ),
            }

    async def _of_deliveries(self, snapshot: Executor, since: datetime, until: datetime) -> dict[str, Any]:
        endings = await _rows(snapshot, self._queries.endings, since, until)
        latencies = await _rows(snapshot, self._queries.latencies, since, until)
        twice = await _rows(snapshot, self._queries.duplicates, since, until)
        return {
            "success": report.success(endings, self._channels),
            "latency": latencies,
            "duplicates": report.duplicates(twice[0]),
        }

    async def _of_the_door(self, snapshot: Executor, since: datetime, until: datetime) -> dict[str, Any]:
        admissions = await _rows(snapshot, self._queries.admissions, since, until, list(RATE_RULES))
        rejections = await _rows(snapshot, self._queries.rejections, since, until, list(RATE_RULES))
        unfinished = await _rows(snapshot, self._queries.unfinished_by_status)
        return {
            "admission": report.admission(admissions, rejections),
            "queue": report.queue(unfinished, self._max_in_flight),
        }

    async def _of_exceptions(self, snapshot: Executor, since: datetime, until: datetime) -> dict[str, Any]:
        letters = await _rows(snapshot, self._queries.dead_letters, since, until)
        replays = await _rows(snapshot, self._queries.replays, since, until)
        doubts = await _rows(snapshot, self._queries.doubts, since, until)
        return {"dead_letters": report.dead_letters(letters, replays[0]), "uncertain": report.doubts(doubts)}

    async def _windows(self, now: datetime) -> dict[str, Windows]:
        short, long = (timedelta(seconds=s) for s in (self._policy.short_window_s, self._policy.long_window_s))
        rows = await _rows(self._database, self._queries.budget_windows, now, now - short, now - long)
        return {f"{row['channel']}.{row['identity_scope']}": Windows.of(row) for row in rows}

    async def _standings(self, snapshot: Executor | None = None) -> dict[str, Standing]:
        rows = await _rows(snapshot or self._database, self._queries.channel_states)
        return {row["name"]: Standing.of(row) for row in rows}

    async def _long_windows(self, snapshot: Executor | None = None) -> dict[str, list[LongWindow]]:
        found: dict[str, list[LongWindow]] = {}
        for row in await _rows(snapshot or self._database, self._queries.long_budget):
            found.setdefault(row["name"], []).append(LongWindow.of(row))
        return found

    async def _take(self, judgement: Judgement, now: datetime) -> bool:
        """Whether the judgement was written: not when another process changed the stance while we judged."""
        before, after = judgement.before, judgement.assessment
        written = await self._database.fetchval(
            self._queries.take_stance,
            judgement.channel,
            after.stance.value,
            after.burn_rate,
            judgement.since,
            now,
            before.stance.value,
            before.since,
            judgement.stance_reason,
        )
        return written is not None

    def _show_channel(self, name: str, standing: Standing) -> None:
        channel, scope = report.split_name(name)
        burn = UNKNOWN_BURN if standing.burn_rate is None else standing.burn_rate
        self._telemetry.gauge(ERROR_BUDGET_BURN, burn, channel=channel, identity_scope=scope)
        self._telemetry.gauge(STANCE, _STANCE[standing.stance], channel=channel, identity_scope=scope)
        self._telemetry.gauge(CIRCUIT_STATE, _CIRCUIT[standing.state], channel=channel, identity_scope=scope)


async def _rows(source: Database | Executor, query: str, *values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in await source.fetch(query, *values)]


def _announced(judgement: Judgement) -> Judgement:
    """Being stricter, or no longer, is never silent."""
    log.warning(
        "stance changed",
        channel=judgement.channel,
        decision=judgement.assessment.stance,
        reason=judgement.reason,
    )
    return judgement
