"""A long error budget that is spent makes Messenger stricter: counted on Spark, read by the judge, seen at the door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from butlers.messenger.error_budget import FRESH_FOR, LongWindow, Standing, Strain, Windows, decide_mode, strain
from butlers.pipeline.job import Window
from butlers.pipeline.jobs.service_levels import JOB
from butlers.reliability.error_budget import BudgetMode, BudgetPolicy, Reason
from butlers.reliability.error_budget import Window as Events
from butlers.storage.embedded import EmbeddedPostgres
from butlers.storage.migrations import MigrationSet, migrate
from tests.pipeline.delivery_records import context_of, for_few_rows, insert
from tests.scenarios.messenger_door import deliver, wish
from tests.scenarios.messenger_time import advance, as_time_passes, standing_still, tool, turned_away
from tests.system import RunningSystem

CHANNEL = "telegram.bot"
PIPELINE = MigrationSet(schema="pipeline", package="butlers.pipeline")
QUIET = (r"^tell_owner = true", "tell_owner = false")
HOLD_S, JUDGED_EVERY_S = 120, 15
HOUR, DAY = 3600, 86400


# --- through the door ------------------------------------------------------------------------------------------------


async def tried(running: RunningSystem, started: Sequence[datetime], *, bad_every: int = 0) -> None:
    """Attempts of one delivery; every so many of them the provider was not there."""
    delivery = str(uuid4())
    request = {
        "id": delivery,
        "idempotency_key": delivery,
        "origin_butler": "general",
        "channel": "telegram",
        "identity_scope": "bot",
        "intent": "send",
        "target_identity": "7",
        "ordering_key": delivery,
        "message": "hello",
        "envelope": {},
        "status": "delivered",
        "next_attempt_at": started[0],
        "created_at": started[0],
        "updated_at": started[-1],
        "terminal_at": started[-1],
    }
    await insert(running.database, "messenger.delivery_requests", [_filled(request)])
    attempts = [_attempt(delivery, n, at, bad=bool(bad_every) and n % bad_every == 0) for n, at in enumerate(started)]
    await insert(running.database, "messenger.delivery_attempts", attempts)


def _filled(request: dict[str, Any]) -> dict[str, Any]:
    return (
        request
        | {"priority": "normal", "attempts": 1, "rank": 0, "admitted": True, "decisions": []}
        | {
            "duplicate_detection": True,
            "tell_owner": False,
        }
    )


def _attempt(delivery: str, number: int, started: datetime, *, bad: bool) -> dict[str, Any]:
    return {
        "id": str(uuid4()),
        "delivery_id": delivery,
        "attempt_number": number,
        "worker": "test",
        "started_at": started,
        "completed_at": started,
        "outcome": "failed" if bad else "sent",
        "certainty": "not_sent" if bad else "sent",
        "error_class": "target_unavailable" if bad else None,
        "retryable": True if bad else None,
    }


async def state(running: RunningSystem) -> dict[str, Any]:
    row = await running.database.fetchrow("select * from messenger.channel_states where name = $1", CHANNEL)
    return dict(row) if row is not None else {}


async def checked(running: RunningSystem, mode: str) -> dict[str, Any]:
    async def look() -> dict[str, Any]:
        now = await state(running)
        return now if now.get("stance") == mode else {}

    return await as_time_passes(running, look)


def counted(quick: SparkSession, running: RunningSystem, lake: Path) -> dict[str, Any]:
    """What the job found. Messenger waits meanwhile: this thread is the one that the session belongs to."""
    now = running.clock.now()
    window = Window(start=now - timedelta(hours=1), end=now)
    dsn = running.settings.database_url
    assert dsn is not None
    return dict(JOB.run(context_of(quick, dsn, window, lake)).details)


async def budget(running: RunningSystem) -> dict[str, Any]:
    budgets = (await tool(running, "service_levels"))["error_budget"]
    found: dict[str, Any] = next(line for line in budgets if line["channel"] == "telegram")
    return found


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    with for_few_rows(spark):
        yield spark


@pytest.mark.heavy
async def test_a_spent_long_budget_makes_strict_says_why_and_lets_go_after_good_days(
    quick: SparkSession, tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with standing_still(tmp_path, postgres_server, QUIET, shipped_limits=True) as running:
        await migrate(running.database, [PIPELINE])
        now = running.clock.now()
        # One failure in twenty for a day, ten attempts an hour: too few for the judge's own windows.
        await tried(running, [now - timedelta(minutes=6 * step) for step in range(239, -1, -1)], bad_every=20)
        advance(running, 2 * JUDGED_EVERY_S)
        assert (await budget(running))["long_windows"] == []
        assert (await tool(running, "rate_limit_status"))["channels"][CHANNEL]["stance_reason"] is None

        found = counted(quick, running, tmp_path)
        assert {line["window_s"]: line["burn_rate"] for line in found["burn"]}[DAY] == pytest.approx(5.0)
        tight = await checked(running, "tight")
        assert (tight["stance_reason"], tight["burn_rate"]) == ("long_budget_spent", None)
        shown = await budget(running)
        assert (shown["stance"], shown["stance_reason"]) == ("tight", "long_budget_spent")
        windows = {line["window_s"]: line for line in shown["long_windows"]}
        assert windows.keys() == {6 * HOUR, DAY, 3 * DAY, 30 * DAY}
        assert (windows[DAY]["good"], windows[DAY]["bad"], windows[DAY]["burn_rate"]) == (228, 12, pytest.approx(5.0))
        assert windows[DAY]["fresh"] is True
        limits = (await tool(running, "rate_limit_status"))["channels"][CHANNEL]
        assert (limits["stance"], limits["total"], limits["configured"]) == ("tight", 15.0, 30.0)
        assert limits["stance_reason"] == "long_budget_spent"

        # Half the budget, and whoever is refused reads why.
        for number in range(15):
            answer = await deliver(running, wish("hello", recipient=f"32{number}"))
            assert answer["delivery"]["status"] == "delivered", number
        error = await turned_away(running, wish("hello", recipient="399"))
        assert error["class"] == "overload_rejected"
        assert "error budget burns" in error["message"]

        # Good hours: what was spent is a small part of it all again, and the next count says so.
        advance(running, HOLD_S)
        now = running.clock.now()
        await tried(running, [now - timedelta(seconds=10 * step) for step in range(2000, 400, -1)])
        counted(quick, running, tmp_path)
        relaxed = await checked(running, "normal")
        assert relaxed["stance_reason"] in ("recovered", "too_few_events")
        assert relaxed["stance_since"] - tight["stance_since"] >= timedelta(seconds=HOLD_S)
        limits = (await tool(running, "rate_limit_status"))["channels"][CHANNEL]
        assert (limits["stance"], limits["total"]) == ("normal", 30.0)


# --- what is decided -------------------------------------------------------------------------------------------------

NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)
POLICY = BudgetPolicy()
LEAK = Strain(window_s=DAY, burn_rate=5.0)
CLEAN = Windows(short=Events(good=30), long=Events(good=30))
BURNING = Windows(short=Events(bad=30), long=Events(bad=30))


def long_windows(*burns: tuple[int, float], as_of: datetime = NOW) -> list[LongWindow]:
    """Of a thousand events each, which burn at these rates."""
    return [
        LongWindow(window_s=window, events=Events(good=1000 - round(10 * burn), bad=round(10 * burn)), as_of=as_of)
        for window, burn in burns
    ]


@pytest.mark.parametrize(
    ("burns", "spent"),
    [
        ([], None),
        ([(6 * HOUR, 1), (DAY, 3)], DAY),
        ([(6 * HOUR, 1), (DAY, 2.9)], None),
        ([(6 * HOUR, 0.9), (DAY, 3)], None),  # it is over
        ([(DAY, 50)], None),  # nobody knows whether it is over
        ([(6 * HOUR, 1), (DAY, 2), (3 * DAY, 2)], 3 * DAY),
        ([(6 * HOUR, 0), (DAY, 1), (3 * DAY, 1), (30 * DAY, 1)], 30 * DAY),
        ([(6 * HOUR, 0), (DAY, 0.9), (3 * DAY, 1), (30 * DAY, 1)], None),
    ],
)
def test_a_long_budget_is_spent_when_it_still_burns(burns: list[tuple[int, float]], spent: int | None) -> None:
    found = strain(long_windows(*burns), POLICY, NOW)
    assert (found.window_s if found else None) == spent


@pytest.mark.parametrize(
    ("as_of", "counts"),
    [
        (NOW - FRESH_FOR, True),
        (NOW - FRESH_FOR - timedelta(seconds=1), False),
        (NOW + timedelta(minutes=5), True),
        (NOW + timedelta(minutes=6), False),
    ],
)
def test_what_is_old_or_of_the_future_says_nothing(as_of: datetime, counts: bool) -> None:
    windows = long_windows((6 * HOUR, 5), (DAY, 5), as_of=as_of)
    assert (strain(windows, POLICY, NOW) is not None) is counts


def test_few_events_say_nothing() -> None:
    few = Events(good=0, bad=POLICY.min_events - 1)
    windows = [LongWindow(window_s=window, events=few, as_of=NOW) for window in (6 * HOUR, DAY)]
    assert strain(windows, POLICY, NOW) is None


def standing(mode: BudgetMode, *, ago_s: float, reason: str | None = None) -> Standing:
    return Standing(mode=mode, burn_rate=0.0, since=NOW - timedelta(seconds=ago_s), reason=reason)


@pytest.mark.parametrize(
    ("before", "windows", "spent", "mode", "reason"),
    [
        (Standing(), Windows(), LEAK, "tight", "long_budget_spent"),
        (Standing(), Windows(), None, "normal", None),
        # Held as every stance is.
        (standing(BudgetMode.NORMAL, ago_s=HOLD_S - 1, reason="recovered"), CLEAN, LEAK, "normal", "recovered"),
        (standing(BudgetMode.NORMAL, ago_s=HOLD_S, reason="recovered"), CLEAN, LEAK, "tight", "long_budget_spent"),
        # The judge alone would relax.
        (standing(BudgetMode.TIGHT, ago_s=HOLD_S, reason="budget_burning"), CLEAN, LEAK, "tight", "long_budget_spent"),
        (standing(BudgetMode.TIGHT, ago_s=HOLD_S, reason="long_budget_spent"), CLEAN, None, "normal", "recovered"),
        # What burns at this moment comes first.
        (standing(BudgetMode.TIGHT, ago_s=HOLD_S, reason="long_budget_spent"), BURNING, LEAK, "tight", "still_burning"),
        (standing(BudgetMode.NORMAL, ago_s=HOLD_S), BURNING, LEAK, "tight", "budget_burning"),
    ],
)
def test_the_long_budget_tightens_and_keeps_and_never_loosens(
    before: Standing, windows: Windows, spent: Strain | None, mode: str, reason: str | None
) -> None:
    judgement = decide_mode(CHANNEL, windows, before, POLICY, NOW, strain=spent)
    assert (judgement.assessment.mode, judgement.mode_reason) == (mode, reason)
    assert judgement.changes_mode is (mode != before.mode)
    assert judgement.is_news or (mode, reason) == (before.mode, before.reason)


def test_a_judgement_by_the_long_budget_is_written_once() -> None:
    first = decide_mode(CHANNEL, Windows(), Standing(), POLICY, NOW, strain=LEAK)
    after = Standing(mode=BudgetMode.TIGHT, burn_rate=None, since=first.since, reason=first.mode_reason)
    again = decide_mode(CHANNEL, Windows(), after, POLICY, NOW + timedelta(hours=1), strain=LEAK)
    assert (first.is_news, again.is_news, again.since) == (True, False, NOW)
    assert again.assessment.reason is Reason.TOO_FEW_EVENTS
