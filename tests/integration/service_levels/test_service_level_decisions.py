"""What burns the error budget, and that the stance that follows is taken once, kept in the table and given up again."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from butlers.clock import ManualClock
from butlers.messenger.error_budget import Windows
from butlers.messenger.service_levels import ServiceLevels
from butlers.reliability.error_budget import BudgetMode, BudgetPolicy, Reason, Window
from butlers.storage.queries import Queries

from .ledger import NOW, SCHEMA, Ledger, ago

ANY_EVENT_COUNTS = BudgetPolicy(min_events=1)


QUERIES = Queries.load("butlers.messenger.service_levels", schema=SCHEMA)


async def windows(ledger: Ledger) -> Windows:
    rows = await ledger.database.fetch(QUERIES.budget_windows, NOW, ago(300), ago(3600))
    return Windows.of(dict(rows[0])) if rows else Windows()


# --- what counts -----------------------------------------------------------------------------------------------------

UNAVAILABLE: dict[str, Any] = {"error_class": "target_unavailable"}
GOOD, BAD, NEITHER = Window(good=1), Window(bad=1), Window()


@pytest.mark.parametrize(
    ("outcome", "columns", "counts"),
    [
        ("sent", {}, GOOD),
        ("failed", {**UNAVAILABLE, "retryable": True}, BAD),
        ("rejected", {**UNAVAILABLE, "retryable": True}, BAD),  # 429: too often already
        ("rejected", {**UNAVAILABLE, "retryable": False}, BAD),  # the token is refused
        ("failed", {"error_class": "timeout", "retryable": True}, BAD),
        ("failed", {"error_class": "internal_error", "retryable": False}, BAD),
        ("failed", {"error_class": "timeout", "retryable": False, "certainty": "uncertain"}, BAD),
        ("lost", {"error_class": "timeout", "retryable": True, "certainty": "uncertain"}, BAD),
        ("lost", {"error_class": "timeout", "retryable": True}, NEITHER),
        ("rejected", {"error_class": "validation_error", "retryable": False}, NEITHER),
        (None, {}, NEITHER),  # still under way
    ],
)
async def test_an_attempt_counts(ledger: Ledger, outcome: str | None, columns: dict[str, Any], counts: Window) -> None:
    await ledger.attempt(None, outcome, **columns)
    assert await windows(ledger) == Windows(short=counts, long=counts)


@pytest.mark.parametrize("rule_for", ["telegram", "telegram.bot"])
async def test_a_recipient_who_blocked_us_counts_neither_way_but_a_throttle_about_one_does(
    ledger: Ledger, rule_for: str
) -> None:
    delivery = await ledger.delivery("failed", target_identity="8", terminal_error_class="target_unavailable")
    await ledger.suppress("8", channel=rule_for)
    await ledger.attempt(delivery, "rejected", **UNAVAILABLE, retryable=False)
    assert await windows(ledger) == Windows()
    await ledger.attempt(delivery, "rejected", **UNAVAILABLE, retryable=True)
    assert (await windows(ledger)).short == BAD


async def test_an_attempt_that_came_too_late_to_be_made_counts_neither_way(ledger: Ledger) -> None:
    late = await ledger.delivery("expired", not_after=ago(61))
    await ledger.attempt(late, "failed", error_class="timeout", retryable=False)
    assert await windows(ledger) == Windows()
    in_time = await ledger.delivery("expired", not_after=ago(59))
    await ledger.attempt(in_time, "failed", error_class="timeout", retryable=True)
    assert (await windows(ledger)).short == BAD


@pytest.mark.parametrize(
    ("status", "error_class", "counts"),
    [
        ("failed", "target_unavailable", BAD),
        ("dead_lettered", "internal_error", BAD),
        ("failed", "validation_error", NEITHER),
        ("failed", "overload_rejected", NEITHER),
        ("expired", "timeout", NEITHER),
    ],
)
async def test_a_delivery_that_ended_without_an_attempt_counts(
    ledger: Ledger, status: str, error_class: str, counts: Window
) -> None:
    await ledger.delivery(status, terminal_error_class=error_class)
    assert await windows(ledger) == Windows(short=counts, long=counts)


async def test_a_failure_counts_once_where_it_first_showed(ledger: Ledger) -> None:
    dead = await ledger.delivery("dead_lettered", terminal_error_class="target_unavailable", ended=ago(10))
    for started in (ago(4000), ago(2000), ago(20)):
        await ledger.attempt(dead, "failed", started=started, **UNAVAILABLE, retryable=True)
    assert await windows(ledger) == Windows(short=Window(bad=1), long=Window(bad=2))


# --- what follows ----------------------------------------------------------------------------------------------------


async def test_a_burning_budget_makes_strict_and_a_clean_short_window_relaxes_again(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    levels = ledger.levels()
    await ledger.attempts(good=45, bad=5)  # 10 % where 1 % is allowed
    (change,) = await levels.decide_modes()
    assert (change.channel, change.assessment.mode) == ("telegram.bot", BudgetMode.TIGHT)
    assert change.assessment.reason is Reason.BUDGET_BURNING
    state = await ledger.state("telegram.bot")
    assert (state["stance"], state["stance_since"]) == ("tight", NOW)
    assert state["burn_rate"] == pytest.approx(10.0)
    assert await levels.decide_modes() == []

    # The fault is over: the long window still holds it, the short one is clean.
    ledger.clock.advance(400)
    await ledger.attempts(good=30, bad=0, started=ledger.clock.now())
    (back,) = await levels.decide_modes()
    assert (back.assessment.mode, back.assessment.reason) == (BudgetMode.NORMAL, Reason.RECOVERED)
    state = await ledger.state("telegram.bot")
    assert (state["stance"], state["stance_since"], state["burn_rate"]) == ("normal", ledger.clock.now(), 0.0)

    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    said = [record.__dict__["butlers_fields"] for record in warnings]
    assert [(fields["channel"], fields["decision"], fields["reason"]) for fields in said] == [
        ("telegram.bot", "tight", "budget_burning"),
        ("telegram.bot", "normal", "recovered"),
    ]


async def test_silence_keeps_strict_for_the_hold_and_no_longer(ledger: Ledger) -> None:
    levels = ledger.levels(policy=BudgetPolicy(short_window_s=60, hold_s=120))
    await ledger.attempts(good=0, bad=30, started=ago(1))
    assert len(await levels.decide_modes()) == 1
    ledger.clock.advance(119)
    assert await levels.decide_modes() == []
    assert (await ledger.state("telegram.bot"))["burn_rate"] is None
    ledger.clock.advance(1)
    (change,) = await levels.decide_modes()
    assert (change.assessment.mode, change.assessment.reason) == (BudgetMode.NORMAL, Reason.TOO_FEW_EVENTS)


async def test_one_channel_does_not_pay_for_another(ledger: Ledger) -> None:
    mail = await ledger.delivery("awaiting_retry", channel="email")
    for _ in range(30):
        await ledger.attempt(mail, "failed", **UNAVAILABLE, retryable=True)
    await ledger.attempts(good=30, bad=0)
    assert [change.channel for change in await ledger.levels().decide_modes()] == ["email.bot"]
    assert (await ledger.state("telegram.bot"))["stance"] == "normal"


async def test_the_circuit_of_a_channel_is_left_alone(ledger: Ledger) -> None:
    await ledger.database.execute(
        f"insert into {SCHEMA}.channel_states (name, state, generation, trip_reason, tripped_at, updated_at)"
        " values ('telegram.bot', 'open', 3, 'away', $1, $1)",
        NOW,
    )
    await ledger.attempts(good=0, bad=30)
    assert len(await ledger.levels().decide_modes()) == 1
    state = await ledger.state("telegram.bot")
    assert (state["state"], state["generation"], state["trip_reason"]) == ("open", 3, "away")
    assert state["stance"] == "tight"


async def test_many_processes_judge_at_once_and_one_of_them_changes_the_stance(ledger: Ledger) -> None:
    await ledger.attempts(good=0, bad=30)
    judged = await asyncio.gather(*(ledger.levels().decide_modes() for _ in range(8)))
    assert sum(map(len, judged)) == 1


async def test_a_stance_that_changed_while_we_judged_is_not_overwritten(ledger: Ledger) -> None:
    """We saw a channel that had never been tight; then another process made it tight and normal again."""
    await ledger.database.execute(
        f"insert into {SCHEMA}.channel_states (name, stance, stance_since, updated_at)"
        " values ('telegram.bot', 'normal', $1, $1)",
        NOW,
    )
    judged = ("telegram.bot", BudgetMode.TIGHT.value, 100.0, NOW, NOW)
    assert await ledger.database.fetchval(QUERIES.take_stance, *judged, "normal", None, None) is None
    assert (await ledger.state("telegram.bot"))["stance"] == "normal"
    assert await ledger.database.fetchval(QUERIES.take_stance, *judged, "normal", NOW, None) == "telegram.bot"


async def test_a_burn_that_did_not_move_is_not_written_again(ledger: Ledger) -> None:
    levels = ledger.levels()
    await ledger.attempts(good=30, bad=0)
    await levels.decide_modes()
    before = await ledger.state("telegram.bot")
    ledger.clock.advance(15)
    await levels.decide_modes()
    assert await ledger.state("telegram.bot") == before
    await ledger.attempts(good=0, bad=1, started=ledger.clock.now())
    await levels.decide_modes()
    assert (await ledger.state("telegram.bot"))["burn_rate"] == pytest.approx(100 / 31, abs=1e-6)


# --- gauges and the loop ---------------------------------------------------------------------------------------------


def gauges(ledger: Ledger) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("butlers_messenger_"), sample.labels.get("channel") or sample.labels["status"]): (
            sample.value
        )
        for family in text_string_to_metric_families(ledger.telemetry.prometheus_text().decode())
        for sample in family.samples
        if sample.name.startswith("butlers_messenger_")
    }


async def test_gauges_show_stance_burn_circuit_and_depth(ledger: Ledger) -> None:
    levels = ledger.levels()
    await levels.show()
    shown = gauges(ledger)
    assert (shown["error_budget_burn", "telegram"], shown["stance", "telegram"]) == (-1, 0)
    assert (shown["circuit_state", "email"], shown["queue_depth", "pending_approval"]) == (0, 0)

    await ledger.attempts(good=0, bad=30)
    await levels.decide_modes()
    await ledger.database.execute(f"update {SCHEMA}.channel_states set state = 'open' where name = 'telegram.bot'")
    await levels.show()
    shown = gauges(ledger)
    assert (shown["error_budget_burn", "telegram"], shown["stance", "telegram"]) == (100, 1)
    assert (shown["circuit_state", "telegram"], shown["circuit_state", "email"]) == (2, 0)
    assert shown["queue_depth", "awaiting_retry"] == 1


class ThreeRounds(ManualClock):
    """Ends the loop in its third pause, which proves that the rounds before did not end it."""

    pauses = 0

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        self.advance(seconds)
        if self.pauses == 3:
            raise asyncio.CancelledError


def looping(ledger: Ledger, schema: str) -> tuple[ServiceLevels, ThreeRounds]:
    clock = ThreeRounds(NOW)
    levels = ServiceLevels(
        database=ledger.database,
        schema=schema,
        clock=clock,
        telemetry=ledger.telemetry,
        policy=ANY_EVENT_COUNTS,
        channels=("telegram.bot",),
        max_in_flight=100,
    )
    return levels, clock


async def test_the_loop_judges_and_shows(ledger: Ledger) -> None:
    await ledger.attempts(good=0, bad=1)
    levels, clock = looping(ledger, SCHEMA)
    with pytest.raises(asyncio.CancelledError):
        await levels.run()
    assert clock.now() == NOW + timedelta(seconds=45)
    assert (await ledger.state("telegram.bot"))["stance"] == "tight"
    assert gauges(ledger)["stance", "telegram"] == 1


async def test_a_round_that_fails_is_told_and_followed_by_the_next(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    levels, clock = looping(ledger, "nowhere")
    with pytest.raises(asyncio.CancelledError):
        await levels.run()
    assert clock.pauses == 3
    assert [record.getMessage() for record in caplog.records] == ["service levels were not judged"] * 3
