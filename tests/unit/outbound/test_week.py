"""A week of messages on a clock that is moved: nobody is disturbed, forgotten or written to too often.

Every kind of person, message and failure, by chance. `BUTLERS_WEEK_USERS=1000` is the week of docs/systems/outbound.md.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from butlers.contracts.message_state import ENDED, MessageState
from butlers.outbound.delivery import DeliveryReport
from butlers.outbound.service import SendResult
from butlers.outbound.values import Queued, dedupe_key
from tests.unit.outbound.runtime import CHANNELS, EVERYTHING, Left, Runtime, person_id

USERS = int(os.environ.get("BUTLERS_WEEK_USERS", "120"))
MONDAY = datetime(2026, 3, 23, tzinfo=UTC)  # the week in which Europe's clocks go forward
_ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland", "America/Sao_Paulo", "UTC")
_EVENTS = ("message", "invoice", "news", "alarm", "fire")
_LIMITS = {"max_per_minute": 3, "max_per_hour": 10, "max_per_day": 25}


def _person(runtime: Runtime, number: int, chance: random.Random) -> str:
    document: dict[str, Any] = {}
    if chance.random() < 0.7:
        zone = chance.choice(_ZONES)
        document["quietHours"] = [{"start_time": "22:00", "end_time": "07:00", "timezone": zone}]
        if chance.random() < 0.3:
            days = chance.sample(range(1, 8), 2)
            document["quietHours"].append(
                {"start_time": "12:00", "end_time": "13:30", "timezone": zone, "days_of_week": days}
            )
    matrix: dict[str, dict[str, bool]] = defaultdict(dict)
    for event in _EVENTS:
        for channel in CHANNELS:
            if chance.random() < 0.25:
                matrix[event][channel] = chance.random() < 0.5
    document["notifications"] = {"matrix": dict(matrix)}
    if chance.random() < 0.2:
        document["notifications"]["digests"] = {"news": chance.choice((3600, 6 * 3600))}
    channels = chance.choice((CHANNELS, CHANNELS, ("email",), ("telegram",)))
    id = runtime.add(f"user {number}", channels=channels, preferred=chance.choice((None, *CHANNELS)), **document)
    runtime.permissions[id] = chance.choice(
        (EVERYTHING, EVERYTHING, EVERYTHING, frozenset({"messages:receive:email"}), frozenset())
    )
    return id


def _provider(chance: random.Random) -> Any:
    """Most messages arrive; some fail for a while, some for good, some answers are lost."""
    broken = {f"user {number}" for number in range(0, USERS, 17)}

    def answer(left: Left) -> DeliveryReport:
        if left.name in broken and left.channel == "telegram":
            return DeliveryReport(status="failed", error_class="target_unavailable", error="blocked by the user")
        match chance.random():
            case number if number < 0.05:
                away = "the provider is away"
                return DeliveryReport(status="dead_lettered", error_class="timeout", error=away, is_retryable=True)
            case number if number < 0.08:
                return DeliveryReport(status="refused", error_class="timeout", error="no answer")
            case number if number < 0.10:
                return DeliveryReport(status="refused", error_class="overload_rejected", error="busy", retry_after=20.0)
        return DeliveryReport(status="delivered")

    return answer


def _fields(chance: random.Random, now: datetime) -> dict[str, Any]:
    policy: dict[str, Any] = {"throttling": _LIMITS}
    if chance.random() < 0.1:
        policy["quiet_hours"] = {"start_time": "18:00", "end_time": "19:00", "timezone": "UTC"}
    if chance.random() < 0.1:
        policy["urgent_passes_quiet_hours"] = True
    fields: dict[str, Any] = {
        "event_type": chance.choice(_EVENTS),
        "priority": chance.choice(("urgent", "high", "normal", "normal", "low")),
        "delivery_policy": policy,
    }
    if chance.random() < 0.2:
        fields["not_after"] = (now + timedelta(minutes=chance.choice((5, 120, 2_000)))).isoformat()
    return fields


@pytest.mark.timeout(1_200)
async def test_a_week() -> None:
    chance = random.Random(31)
    runtime = Runtime()
    runtime.clock.advance((MONDAY - runtime.clock.now()).total_seconds())
    runtime.defaults["critical_events"] = ["fire"]
    names = {f"user {number}": _person(runtime, number, chance) for number in range(USERS)}
    runtime.answer = _provider(chance)
    results: list[SendResult] = []
    compared = 0
    messages = USERS * 8
    for number in range(messages):
        if number % 5:  # the others come in bursts
            await runtime.run_for(seconds=chance.expovariate(messages * 0.8 / (7 * 86_400)))
        _change_somebody(runtime, chance, list(names.values()))
        pool = sorted(names)[: 10 if chance.random() < 0.2 else USERS]  # some get much
        chosen = chance.sample(pool, min(len(pool), chance.choice((1, 1, 2, 5, 20))))
        fields = _fields(chance, runtime.clock.now())
        document = runtime.message(*chosen, **fields)
        explained = await runtime.explainer.explain(document)
        result = await runtime.service.send_message(document)
        compared += _compare(explained, result)
        results.append(result)
    await runtime.run_for(days=33)  # longer than anything may wait

    _check_ends(runtime, results)
    _check_quiet_hours_and_opt_outs(runtime)
    _check_throttles(runtime)
    states = Counter(work.state.value for work in runtime.records.work.values())
    print(
        f"{USERS} people, {messages} messages, {compared} explained and done; {len(runtime.left)} left; {dict(states)}"
    )
    assert compared >= 1_000


def _change_somebody(runtime: Runtime, chance: random.Random, ids: list[str]) -> None:
    """People mute, unmute, opt out and in again all the time."""
    document = runtime.preferences.setdefault(chance.choice(ids), {})
    match chance.randrange(4):
        case 0:
            until = runtime.clock.now() + timedelta(hours=chance.choice((1, 8, 48)))
            document["mutes"] = [{"until": until.isoformat()}]
        case 1:
            document.pop("mutes", None)
        case 2:
            matrix = document.setdefault("notifications", {}).setdefault("matrix", {})
            matrix.setdefault(chance.choice(_EVENTS), {})[chance.choice(CHANNELS)] = chance.random() < 0.3


def _compare(explained: dict[str, Any], result: SendResult) -> int:
    """An explanation says what the call then does."""
    done: dict[str, tuple[str, ...]] = {q.recipient_id: (q.channel, q.scheduled_at.isoformat()) for q in result.queued}
    done |= {b.recipient_id: (b.reason.value, b.detail) for b in result.blocked}
    said = {
        row["recipient_id"]: (row["channel"], row["scheduled_at"])
        if row["outcome"] == "queued"
        else (row["reason"], row["detail"])
        for row in explained["recipients"]
    }
    assert said == done
    return len(said)


def _check_ends(runtime: Runtime, results: list[SendResult]) -> None:
    works = runtime.records.work
    for result in results:
        for queued in result.queued:
            work = works[dedupe_key(result.message_id, queued.recipient_id)]
            assert work.state in ENDED, work
            assert work.state in (MessageState.DELIVERED, MessageState.DIGESTED) or (work.reason and work.detail), work
            if work.state is MessageState.DIGESTED:
                assert works[dedupe_key(work.digest_id, work.recipient_id)].state in ENDED
        assert all(blocked.reason and blocked.detail for blocked in result.blocked)
    counted = Counter(work.state for work in works.values())
    assert {MessageState.DELIVERED, MessageState.DIGESTED, MessageState.EXPIRED, MessageState.BLOCKED} <= set(counted)
    carried = Counter(key for key, outcome in runtime.records.outcomes.items() if isinstance(outcome, Queued))
    assert set(carried) <= set(works)


def _is_quiet(left: Left) -> bool:
    """By the wall clock of each window, as a person would look at it."""
    stored = left.preferences.get("quietHours", [])
    policy = left.work.document.delivery_policy.quiet_hours or ()
    windows = [*stored, *(window.model_dump() for window in policy)]
    return any(_holds(window, left.at) for window in windows)


def _holds(window: dict[str, Any], at: datetime) -> bool:
    local = at.astimezone(ZoneInfo(window["timezone"]))
    clock, days = local.strftime("%H:%M"), set(window.get("days_of_week") or range(1, 8))
    start, end, today = window["start_time"], window["end_time"], local.isoweekday()
    if start < end:
        return bool(start <= clock < end and today in days)
    yesterday = (today - 2) % 7 + 1
    return bool((clock >= start and today in days) or (clock < end and yesterday in days))


def _check_quiet_hours_and_opt_outs(runtime: Runtime) -> None:
    assert len(runtime.left) > USERS
    for left in runtime.left:
        document = left.work.document
        urgent = document.priority == "urgent" and document.delivery_policy.urgent_passes_quiet_hours
        if document.event != "fire" and not urgent:
            assert not _is_quiet(left), left
            for mute in left.preferences.get("mutes", []):
                assert datetime.fromisoformat(mute["until"]) <= left.at, left
        opinions = left.preferences.get("notifications", {}).get("matrix", {}).get(document.event, {})
        assert opinions.get(left.channel) is not False, left
        assert left.channel in runtime.people[person_id(left.name)].channels
        assert document.not_after is None or left.at < document.not_after


def _check_throttles(runtime: Runtime) -> None:
    times: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    seen: set[tuple[str, int]] = set()
    for left in runtime.left:  # a hand-over under the same key is the same attempt
        if (attempt := (left.work.key, left.work.sends)) not in seen:
            seen.add(attempt)
            times[left.name, left.channel].append(left.at)
    for moments in times.values():
        for window, limit in zip((60, 3_600, 86_400), _LIMITS.values(), strict=True):
            for place in range(limit, len(moments)):
                assert (moments[place] - moments[place - limit]).total_seconds() >= window, moments
