"""Circuits, limits and queue over real rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from butlers.errors import ValidationError
from tests.integration.messenger_tools.stored_state import START, StoredState


async def bucket(state: StoredState, name: str, tokens: float, *, limit: float, at: datetime = START) -> None:
    full_at = at + timedelta(seconds=(limit - tokens) / (limit / 60))
    row = {"name": name, "capacity": limit, "refill_per_second": limit / 60, "tokens": tokens}
    await state.database.execute("delete from messenger.rate_buckets where name = $1", name)
    await state.insert("rate_buckets", row | {"updated_at": at, "full_at": full_at})


# --- circuits --------------------------------------------------------------------------------------------------------


async def test_a_circuit_that_was_never_used_is_closed(state: StoredState):
    assert (await state.call("circuit_status"))["channels"] == {
        name: {
            "state": "closed",
            "consecutive_failures": 0,
            "trip_reason": None,
            "tripped_at": None,
            "recovery_timeout_s": 60.0,
            "retry_after_s": None,
            "probes_out": 0,
            "probe_successes": 0,
            "failure_threshold": 5,
            "success_threshold": 2,
        }
        for name in ("telegram.bot", "email.bot")
    }


async def test_an_open_circuit_says_why_since_when_and_how_long(state: StoredState):
    row = {"name": "telegram.bot", "state": "open", "consecutive_failures": 5, "trip_reason": "Bad Gateway"}
    moments = {"tripped_at": START - timedelta(seconds=20), "probe_at": START + timedelta(seconds=40)}
    await state.insert("channel_states", row | moments | {"updated_at": START})
    [(name, circuit)] = (await state.call("circuit_status", channel="telegram"))["channels"].items()
    assert (name, circuit["state"], circuit["trip_reason"]) == ("telegram.bot", "open", "Bad Gateway")
    assert (circuit["tripped_at"], circuit["retry_after_s"]) == ("2026-03-01T11:59:40Z", 40.0)
    state.clock.advance(60)
    circuits = (await state.call("circuit_status", channel="telegram.bot"))["channels"]
    assert circuits["telegram.bot"]["retry_after_s"] == 0.0


@pytest.mark.parametrize("tool", ["circuit_status", "rate_limit_status", "queue_depth"])
async def test_a_channel_that_is_not_there_is_named_as_a_mistake(state: StoredState, tool: str):
    with pytest.raises(ValidationError, match=r"no such channel here; there are telegram\.bot, email\.bot"):
        await state.call(tool, channel="pigeon")


# --- limits ----------------------------------------------------------------------------------------------------------


async def test_untouched_budgets_are_whole(state: StoredState):
    limits = await state.call("rate_limit_status")
    whole = {"consumed": 0.0, "remaining": 60.0, "total": 60.0, "resets_at": None, "throttled_until": None}
    assert limits["global"] == whole
    assert limits["in_flight"] == {"consumed": 0, "total": 100.0, "remaining": 100}
    assert {name: layer["total"] for name, layer in limits["channels"].items()} == {
        "telegram.bot": 30.0,
        "email.bot": 20.0,
    }
    recipients = limits["recipients"]
    assert (recipients["active"], recipients["at_limit"], recipients["worst"]) == (False, 0, [])


async def test_a_budget_shows_what_is_consumed_now_and_when_it_is_whole_again(state: StoredState):
    await bucket(state, "global", 20.0, limit=60.0)
    await bucket(state, "channel:telegram.bot", 0.0, limit=30.0)
    state.clock.advance(10)
    limits = await state.call("rate_limit_status", channel="telegram")
    assert (limits["global"]["consumed"], limits["global"]["remaining"]) == (30.0, 30.0)
    assert limits["global"]["resets_at"] == "2026-03-01T12:00:40Z"
    telegram = limits["channels"]["telegram.bot"]
    assert (telegram["consumed"], telegram["remaining"], telegram["total"]) == (25.0, 5.0, 30.0)
    assert limits["channels"].keys() == {"telegram.bot"}
    assert (await state.call("rate_limit_status", identity_scope="user"))["channels"] == {}


async def test_a_tight_stance_and_a_changed_limit_are_shown_as_they_hold(state: StoredState):
    await state.insert(
        "channel_states", {"name": "telegram.bot", "stance": "tight", "burn_rate": 7.5, "updated_at": START}
    )
    await bucket(state, "channel:telegram.bot", 28.0, limit=30.0)
    await bucket(state, "channel:email.bot", 90.0, limit=90.0)
    channels = (await state.call("rate_limit_status"))["channels"]
    telegram = channels["telegram.bot"]
    assert (telegram["total"], telegram["configured"], telegram["remaining"]) == (15.0, 30.0, 15.0)
    assert (telegram["stance"], telegram["burn_rate"]) == ("tight", 7.5)
    assert (channels["email.bot"]["remaining"], channels["email.bot"]["burn_rate"]) == (20.0, None)


async def test_windows_that_a_provider_asked_for_are_shown_while_they_last(state: StoredState):
    for scope, until in (("telegram.bot", 30), ("telegram.bot:7", 90), ("email.bot", -1)):
        row = {"scope": scope, "channel": scope.partition(":")[0], "until": START + timedelta(seconds=until)}
        await state.insert("throttles", row | {"reason": "Too Many Requests", "created_at": START})
    limits = await state.call("rate_limit_status")
    assert limits["channels"]["telegram.bot"]["throttled_until"] == "2026-03-01T12:00:30Z"
    assert limits["channels"]["telegram.bot"]["throttle_reason"] == "Too Many Requests"
    assert limits["channels"]["email.bot"]["throttled_until"] is None
    recipients = limits["recipients"]
    assert (recipients["active"], recipients["at_limit"], recipients["throttled"]) == (True, 0, 1)
    assert recipients["throttles"][0]["target"] == "7"


async def test_recipients_at_their_limit_are_counted_and_the_worst_are_named(state: StoredState):
    for number in range(7):
        await bucket(state, f"recipient:telegram.bot:{number}", number / 10, limit=10.0)
    await bucket(state, "recipient:telegram.bot:plenty", 1.5, limit=10.0)
    await bucket(state, "recipient:email.bot:a:b@example.org", 0.0, limit=10.0)
    telegram = (await state.call("rate_limit_status", channel="telegram"))["recipients"]
    assert (telegram["active"], telegram["at_limit"], telegram["total"]) == (True, 7, 10.0)
    assert [row["target"] for row in telegram["worst"]] == ["0", "1", "2", "3", "4"]
    assert (telegram["worst"][0]["consumed"], telegram["worst"][0]["channel"]) == (10.0, "telegram.bot")
    email = (await state.call("rate_limit_status", channel="email"))["recipients"]
    assert [row["target"] for row in email["worst"]] == ["a:b@example.org"]
    state.clock.advance(6)  # a token comes back every six seconds
    assert not (await state.call("rate_limit_status"))["recipients"]["active"]


# --- queue -----------------------------------------------------------------------------------------------------------


async def test_an_empty_queue_has_no_oldest(state: StoredState):
    await state.delivery()
    depth = await state.call("queue_depth")
    assert (depth["total"], depth["by_channel"], depth["oldest_age_s"]) == (0, {}, None)
    assert depth["by_status"] == {"pending": 0, "in_progress": 0, "awaiting_retry": 0}


async def test_the_queue_is_counted_by_status_phase_and_channel(state: StoredState):
    rows: list[dict[str, Any]] = [
        {"status": "pending", "created_at": START - timedelta(seconds=90)},
        {"status": "pending", "admitted": False},
        {"status": "in_progress"},
        {"status": "in_progress", "channel": "email"},
        {"status": "awaiting_retry", "channel": "email"},
        {"status": "uncertain", "created_at": START - timedelta(days=1)},
        {"status": "pending_approval"},
        {"status": "delivered"},
    ]
    for row in rows:
        await state.delivery(**row)
    depth = await state.call("queue_depth")
    assert depth["total"] == 4  # pending + in_progress
    assert depth["by_status"] == {"pending": 2, "in_progress": 2, "awaiting_retry": 1}
    assert depth["by_phase"] == {"admitted": 1, "awaiting_admission": 1, "awaiting_retry": 1, "in_provider_call": 2}
    assert depth["by_channel"] == {
        "email": {"total": 1, "pending": 0, "in_progress": 1, "awaiting_retry": 1},
        "telegram": {"total": 3, "pending": 2, "in_progress": 1, "awaiting_retry": 0},
    }
    assert depth["parked"] == {"pending_approval": 1, "pending_missing_identifier": 0, "uncertain": 1}
    assert depth["oldest_age_s"] == 90.0
    email = await state.call("queue_depth", channel="email")
    assert (email["total"], email["by_channel"].keys()) == (1, {"email"})
    assert (await state.call("rate_limit_status"))["in_flight"]["consumed"] == 3  # what admission counts
