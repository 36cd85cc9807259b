"""How well Messenger delivers, and how strictly it uses each provider because of that (seed 001, section 15).

`ServiceLevels` reads the SLIs of a time range from the delivery tables, `describe_*` make rates of rows (unknown is
None), `error_budget.py` decides how strictly a channel is used.

What counts for the error budget of a channel such as `telegram.bot`, at the time an attempt began:

    good     an attempt that the provider accepted
    bad      an attempt that failed retryably, with `target_unavailable`, `timeout` or `internal_error`, or that left a
             doubt; and a delivery that ended `failed` or `dead_lettered` with one of these classes without any attempt
             that says so (each failure counts once, where it first showed)
    neither  a `validation_error`, a recipient who is suppressed by now and was refused for good, an attempt that began
             after `not_after`, a crash of ours before a byte left: no provider was used badly by any of these

Attempts and not deliveries, because abuse shows there first: three refused attempts of one delivery are three knocks at
a provider's door, and they are known minutes before the delivery has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from pydantic import Field

from butlers.butler.core_tools import wire
from butlers.butler.identity import Caller
from butlers.butler.toolbox import Tool
from butlers.clock import Clock
from butlers.contracts.delivery_state import FINISHED, NEEDS_PERSON, OPEN
from butlers.messenger.error_budget import LongWindow, ModeDecision, Standing, Windows, decide_mode, strain
from butlers.operations.operation import BUTLERS, READS, Result, Row, TimeRangeArguments
from butlers.reliability.error_budget import BudgetMode, BudgetPolicy, burn_rate
from butlers.storage.database import Database, Executor
from butlers.storage.queries import Queries
from butlers.telemetry import get_logger
from butlers.telemetry.catalogue import BUDGET_MODE, CIRCUIT_STATE, ERROR_BUDGET_BURN, MESSENGER_QUEUE_DEPTH
from butlers.telemetry.telemetry import Telemetry

log = get_logger("butlers.messenger")

DECIDE_EVERY_S: Final = 15.0
UNKNOWN_BURN: Final = -1.0  # a gauge cannot say nothing, and the last value would be a lie

# Rules that refuse for want of room; a recipient who may not be written to is the caller's matter, not a limit.
RATE_RULES: Final = ("throttle", "in_flight", "global", "channel", "recipient", "fair_share", "breaker")

ReportRow = Mapping[str, Any]
_CIRCUIT = {"closed": 0, "half-open": 1, "open": 2}
_MODE_NUMBERS = {BudgetMode.NORMAL: 0, BudgetMode.TIGHT: 1}
_ENDINGS = (*FINISHED, "uncertain", "excused")


def rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def split_name(channel: str) -> tuple[str, str]:
    """`telegram.bot` is the channel telegram, used in the scope bot."""
    name, _, scope = channel.rpartition(".")
    return name, scope


def describe_success(rows: Iterable[ReportRow], channels: Sequence[str]) -> list[dict[str, Any]]:
    """Every channel in use, also one that ended nothing."""
    counted = {f"{row['channel']}.{row['identity_scope']}": row for row in rows}
    described = []
    for name in sorted({*channels, *counted}):
        channel, scope = split_name(name)
        counts = {ending: int(counted.get(name, {}).get(ending, 0)) for ending in _ENDINGS}
        success_rate = rate(counts["delivered"], sum(counts.values()) - counts["excused"])
        described.append({"channel": channel, "identity_scope": scope, **counts, "success_rate": success_rate})
    return described


def describe_duplicates(row: ReportRow) -> dict[str, Any]:
    twice = row["sent_again"] + row["delivered_again"]
    return {**row, "duplicates": twice, "duplicate_rate": rate(twice, row["delivered"])}


def describe_admission(rows: Sequence[ReportRow], rejections: Iterable[ReportRow]) -> dict[str, Any]:
    by_rule: dict[str, dict[str, int]] = {}
    for found in rejections:
        by_rule.setdefault(found["channel"], {})[found["rule"]] = found["requests"]
    admitted, rejected = sum(row["admitted"] for row in rows), sum(row["rejected"] for row in rows)
    return {
        "admitted": admitted,
        "rejected": rejected,
        "rejection_rate": rate(rejected, admitted + rejected),
        "by_channel": [
            {
                **row,
                "rejection_rate": rate(row["rejected"], row["admitted"] + row["rejected"]),
                "by_rule": by_rule.get(row["channel"], {}),
            }
            for row in rows
        ],
    }


def describe_queue(rows: Iterable[ReportRow], max_in_flight: int) -> dict[str, Any]:
    rows = list(rows)
    # Released from parking but not yet let in by admission: it takes no room.
    in_flight = sum(row["admitted"] for row in rows if row["status"] in OPEN)
    return {
        "in_flight": in_flight,
        "max_in_flight": max_in_flight,
        "saturation": in_flight / max_in_flight,
        "by_status": by_status(rows),
    }


def by_status(rows: Iterable[ReportRow]) -> dict[str, int]:
    return dict.fromkeys(map(str, OPEN + NEEDS_PERSON), 0) | {row["status"]: row["deliveries"] for row in rows}


def describe_dead_letters(rows: Sequence[ReportRow], replays: ReportRow) -> dict[str, Any]:
    return {
        "dead_letters": sum(row["dead_letters"] for row in rows),
        "by_channel": list(rows),
        "replays_ended": replays["ended"],
        "replays_delivered": replays["delivered"],
        "replay_success_rate": rate(replays["delivered"], replays["ended"]),
    }


def describe_doubts(rows: Sequence[ReportRow]) -> dict[str, Any]:
    uncertain, unsettled = sum(row["uncertain"] for row in rows), sum(row["unsettled"] for row in rows)
    return {
        "uncertain": uncertain,
        "unsettled": unsettled,
        "settle_rate": rate(uncertain - unsettled, uncertain),
        "by_channel": [
            {**row, "settle_rate": rate(row["uncertain"] - row["unsettled"], row["uncertain"])} for row in rows
        ],
    }


def describe_budgets(
    standings: Mapping[str, Standing],
    channels: Iterable[str],
    *,
    long: Mapping[str, Sequence[LongWindow]],
    policy: BudgetPolicy,
    now: datetime,
) -> list[dict[str, Any]]:
    described = []
    for name in sorted({*channels, *standings}):
        (channel, scope), standing = split_name(name), standings.get(name, Standing())
        windows = [
            {
                "window_s": window.window_s,
                "good": window.events.good,
                "bad": window.events.bad,
                "burn_rate": burn_rate(window.events, policy),
                "as_of": window.as_of,
                "fresh": window.is_fresh(now),  # what is old has no say
            }
            for window in long.get(name, ())
        ]
        described.append(
            {
                "channel": channel,
                "identity_scope": scope,
                "stance": standing.mode.value,
                "stance_since": standing.since,
                "stance_reason": standing.reason,
                "burn_rate": standing.burn_rate,
                "long_windows": windows,
            }
        )
    return described


class DeliveryLevels(Result):
    window: Row = Field(description="since and until")
    objective: float = Field(description="the share of deliveries that should succeed")
    success: list[Row] = Field(description="how many succeeded, by channel")
    error_budget: Row | list[Row] = Field(description="what is left of the error budget, by channel")


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

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name="messenger_service_levels",
                description="How well deliveries go: success, p95, duplicates, rejections, dead letters, error budget.",
                arguments=TimeRangeArguments,
                returns=DeliveryLevels,
                hints=READS,
                handler=self._service_levels,
                roles=BUTLERS,
            )
        ]

    async def _service_levels(self, _caller: Caller, arguments: TimeRangeArguments) -> dict[str, Any]:
        return wire(await self.slis(*arguments.between(self._clock.now())))

    async def run(self) -> None:
        """Decide and show until cancelled."""
        while True:
            try:
                await self.decide_modes()
                await self.show()
            except Exception as error:
                log.error("service levels were not judged", error=error)
            await self._clock.sleep(DECIDE_EVERY_S)

    async def decide_modes(self) -> list[ModeDecision]:
        """Take the mode that each channel's error budget asks for; returns the changes that this call made."""
        now = self._clock.now()
        windows, standings, long = await self._windows(now), await self._standings(), await self._long_windows()
        decisions = [
            decide_mode(
                name,
                windows.get(name, Windows()),
                standings.get(name, Standing()),
                self._policy,
                now,
                strain=strain(long.get(name, ()), self._policy, now),
            )
            for name in self._channels
        ]
        written = [decision for decision in decisions if decision.is_news and await self._take(decision, now)]
        changes = [decision for decision in written if decision.changes_mode]
        for change in changes:  # being stricter, or no longer, is never silent
            mode = change.assessment.mode
            log.warning("stance changed", channel=change.channel, decision=mode, reason=change.reason)
        return changes

    async def show(self) -> None:
        """Set the gauges to what the tables say now."""
        standings = await self._standings()
        for name in self._channels:
            (channel, scope), standing = split_name(name), standings.get(name, Standing())
            burn = UNKNOWN_BURN if standing.burn_rate is None else standing.burn_rate
            self._telemetry.gauge(ERROR_BUDGET_BURN, burn, channel=channel, identity_scope=scope)
            self._telemetry.gauge(BUDGET_MODE, _MODE_NUMBERS[standing.mode], channel=channel, identity_scope=scope)
            self._telemetry.gauge(CIRCUIT_STATE, _CIRCUIT[standing.state], channel=channel, identity_scope=scope)
        unfinished = await _rows(self._database, self._queries.unfinished_by_status)
        for status, deliveries in by_status(unfinished).items():
            self._telemetry.gauge(MESSENGER_QUEUE_DEPTH, deliveries, status=status)

    async def slis(self, since: datetime, until: datetime) -> dict[str, Any]:
        """Every SLI of [since, until), from one snapshot; queue and error budget are as of now."""
        queries, rules = self._queries, list(RATE_RULES)
        async with self._database.transaction(isolation="repeatable_read") as snapshot:
            read = partial(_rows, snapshot)
            admissions = await read(queries.admissions, since, until, rules)
            rejections = await read(queries.rejections, since, until, rules)
            letters = await read(queries.dead_letters, since, until)
            return {
                "window": {"since": since, "until": until},
                "objective": self._policy.objective,
                "success": describe_success(await read(queries.endings, since, until), self._channels),
                "latency": await read(queries.latencies, since, until),
                "duplicates": describe_duplicates((await read(queries.duplicates, since, until))[0]),
                "admission": describe_admission(admissions, rejections),
                "queue": describe_queue(await read(queries.unfinished_by_status), self._max_in_flight),
                "dead_letters": describe_dead_letters(letters, (await read(queries.replays, since, until))[0]),
                "uncertain": describe_doubts(await read(queries.doubts, since, until)),
                "error_budget": describe_budgets(
                    await self._standings(snapshot),
                    self._channels,
                    long=await self._long_windows(snapshot),
                    policy=self._policy,
                    now=self._clock.now(),
                ),
            }

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

    async def _take(self, decision: ModeDecision, now: datetime) -> bool:
        """Whether the decision was written: not when another process changed the mode while this one decided."""
        before, after = decision.before, decision.assessment
        written = await self._database.fetchval(
            self._queries.take_stance,
            decision.channel,
            after.mode.value,
            after.burn_rate,
            decision.since,
            now,
            before.mode.value,
            before.since,
            decision.mode_reason,
        )
        return written is not None


async def _rows(source: Database | Executor, query: str, *values: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in await source.fetch(query, *values)]
