"""Asking without doing: nothing is stored, and what is said is what would happen (seed 000 "Operational Health
Monitoring", seed 001 section 5.1.3).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import deliver, execute, fault, lineage, route, sends, wish
from tests.scenarios.messenger_time import emptied, ended_attempts, later, limits, standing_still, tool, turned_away
from tests.scenarios.messenger_weather import KNOWN_KEY, LIMITS, ORIGINS, Weather
from tests.system import OWNER_CHAT_ID, RunningSystem

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLES = 300
SILENT = (r"^tell_owner = true", "tell_owner = false")
GATED = (
    r"^\[modules\.calendar\]",
    '[modules.approvals]\ngated_tools = ["email_send_message"]\n\n[modules.calendar]',
)
DENIED = (r"^\[delivery\.breaker\]", '[delivery.recipients]\ndeny = ["telegram:666"]\n\n[delivery.breaker]')


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    changes = (*limits(**LIMITS), SILENT, GATED, DENIED)
    async with standing_still(
        tmp_path_factory.mktemp("system"), postgres_server, *changes, shipped_limits=True
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def running(system: RunningSystem) -> RunningSystem:
    return await emptied(system)


async def everything_stored(running: RunningSystem) -> dict[str, list[str]]:
    """Every row of every table that Messenger has."""
    query = "select table_name from information_schema.tables where table_schema = 'messenger' order by 1"
    names = [row["table_name"] for row in await running.database.fetch(query)]
    assert len(names) > 10
    texts = "select coalesce(array_agg(t::text order by t::text), '{{}}') from messenger.{} as t"
    return {name: await running.database.fetchval(texts.format(f'"{name}"')) for name in names}


async def dry_run(running: RunningSystem, notify: Any) -> dict[str, Any]:
    return await tool(running, "dry_run", notify_request=notify)


# --- validation ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-027")
@pytest.mark.scenario("M1-011")
async def test_envelope_validation(running: RunningSystem) -> None:
    before = await everything_stored(running)
    good = await tool(running, "validate_notify", notify_request=wish("hello", recipient="61"))
    assert good == {"valid": True, "errors": []}
    wrong = {
        "delivery.message": wish("  "),
        "delivery.intent": wish("x", intent="shout"),
        "delivery.channel": wish("x", channel="pigeon"),
        "origin_butler": wish("x", origin_butler=""),
        "schema_version": wish("x") | {"schema_version": "notify.v9"},
        "surprise": wish("x") | {"surprise": 1},
        "contact_id": wish("x", contact_id=str(uuid4())),
        "delivery.recipient": wish("x", recipient="666"),
    }
    for field, notify in wrong.items():
        answer = await tool(running, "validate_notify", notify_request=notify)
        assert answer["valid"] is False
        assert field in [error["field"] for error in answer["errors"]], (field, answer)
    # All that is wrong at once, and never the value.
    both = await tool(running, "validate_notify", notify_request=wish("", intent="secret-shout"))
    assert {error["field"] for error in both["errors"]} >= {"delivery.message", "delivery.intent"}
    assert "secret-shout" not in str(both)
    answer = await tool(running, "validate_notify", notify_request=wish("x", intent="reply"))
    assert "request_context.request_id" in str(answer["errors"])
    assert await everything_stored(running) == before
    assert await sends(running) == 0


# --- dry run ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("M0-028")
@pytest.mark.scenario("M1-012")
async def test_dry_run(running: RunningSystem) -> None:
    assert (await deliver(running, wish("real")))["delivery"]["status"] == "delivered"
    before = await everything_stored(running)
    answer = await dry_run(running, wish("what if"))
    assert answer == {
        "valid": True,
        "target_identity": str(OWNER_CHAT_ID),
        "channel_adapter": "telegram.bot",
        "headroom": {"global": 5.0, "channel": 4.0, "recipient": 2.0},
        "stance": "normal",
        "would_be_admitted": True,
        "outcome": "admitted",
        "reasons": [],
    }
    mail = await dry_run(running, wish("x", channel="email", recipient="friend@elsewhere.example", subject="s"))
    assert (mail["channel_adapter"], mail["outcome"]) == ("email.bot", "pending_approval")
    assert mail["would_be_admitted"] is False
    invalid = await dry_run(running, wish("x", recipient="666"))
    assert (invalid["valid"], invalid["outcome"]) == (False, "invalid")
    assert invalid["reasons"][0]["rule"] == "not_permitted"
    assert await everything_stored(running) == before
    assert await sends(running) == 1


async def test_a_dry_run_says_which_rule_refuses_and_for_how_long(running: RunningSystem) -> None:
    for _ in range(3):
        assert (await deliver(running, wish("real", recipient="61")))["delivery"]["status"] == "delivered"
    flooded = await dry_run(running, wish("x", recipient="61"))
    error = await turned_away(running, wish("x", recipient="61"))
    assert flooded["reasons"] == [{"rule": "recipient", **error}]
    assert (flooded["headroom"]["recipient"], error["retry_after_seconds"]) == (0.0, 20.0)
    assert flooded["would_be_admitted"] is False

    await emptied(running)
    await fault(running, "too_many_requests", retry_after=30, chat_id=62)
    await later(running, wish("real", recipient="62"))
    await ended_attempts(running, 1)
    paused = await dry_run(running, wish("x", recipient="62"))
    error = await turned_away(running, wish("x", recipient="62"))
    assert paused["reasons"] == [{"rule": "throttle", **error}]
    assert (error["class"], error["retry_after_seconds"]) == ("target_unavailable", 30.0)


async def test_a_dry_run_knows_a_repeat(running: RunningSystem) -> None:
    notify = wish("once", request_context=lineage(running))
    first = await deliver(running, notify)
    answer = await dry_run(running, notify)
    assert (answer["outcome"], answer["delivery_id"]) == ("deduplicated", first["delivery"]["delivery_id"])
    assert answer["would_be_admitted"] is False


# --- the property ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was said would happen, or what happened."""

    outcome: str
    error_class: str | None = None
    rule: str | None = None
    retry_after: float | None = None
    target: str | None = None


def foretold(answer: dict[str, Any]) -> Verdict:
    reason = (answer["reasons"] or [{}])[0]
    refused = answer["outcome"] == "rejected"
    return Verdict(
        outcome=answer["outcome"],
        error_class=reason.get("class"),
        rule=reason.get("rule") if refused else None,
        retry_after=reason.get("retry_after_seconds"),
        target=answer["target_identity"] if answer["would_be_admitted"] else None,
    )


async def happened(running: RunningSystem, notify: dict[str, Any]) -> Verdict:
    """Hand it in for real; whatever is taken on may still wait for its circuit."""
    query = "select target_identity, status from messenger.delivery_requests where id <> all($1::uuid[])"
    known = [row["id"] for row in await running.database.fetch("select id from messenger.delivery_requests")]
    task = asyncio.create_task(execute(running, route(running, notify)))

    async def settled() -> bool:
        return task.done() or bool(await running.database.fetchrow(query, known))

    await running.until(settled)
    made = await running.database.fetchrow(query, known)
    if made is None:
        return await _answered(running, await task)
    await _no_longer_sending(running)
    task.cancel()
    if made["status"].startswith("pending_"):
        return Verdict(outcome=made["status"])
    return Verdict(outcome="admitted", target=made["target_identity"])


async def _answered(running: RunningSystem, response: dict[str, Any]) -> Verdict:
    if response["status"] == "ok":
        assert response["result"]["notify_response"]["delivery"]["deduplicated"] is True
        return Verdict(outcome="deduplicated")
    error = response["error"]
    if error["class"] == "validation_error":
        outcome = "suppressed" if "is suppressed since" in error["message"] else "invalid"
        return Verdict(outcome=outcome, error_class="validation_error")
    rule = await running.database.fetchval("select rule from messenger.admission_outcomes where outcome = 'rejected'")
    return Verdict(
        outcome="rejected", error_class=error["class"], rule=rule, retry_after=error.get("retry_after_seconds")
    )


async def _no_longer_sending(running: RunningSystem) -> None:
    query = "select not exists (select 1 from messenger.delivery_requests where status = 'in_progress')"
    await running.until(lambda: running.database.fetchval(query))


async def _without_identifiers(running: RunningSystem) -> UUID:
    identity = uuid4()
    await running.database.execute(
        "insert into shared.contacts (id, name, created_at, updated_at) values ($1, 'Anna', now(), now())", identity
    )
    return identity


@pytest.mark.timeout(120)
async def test_a_dry_run_says_what_happens(running: RunningSystem) -> None:
    weather = Weather(running=running, dice=random.Random(20_260_101), contact=await _without_identifiers(running))
    for origin in ORIGINS:
        await deliver(running, wish("known", origin_butler=origin, recipient="62", idempotency_key=KNOWN_KEY))
    seen: Counter[str] = Counter()
    for number in range(EXAMPLES):
        await weather.change()
        notify = weather.wish()
        told = foretold(await dry_run(running, notify))
        did = await happened(running, notify)
        assert told == did, (number, notify)
        seen[f"rejected by {did.rule}" if did.rule else did.outcome] += 1
    refusals = ("throttle", "in_flight", "global", "channel", "recipient", "fair_share", "breaker")
    outcomes = {"admitted", "invalid", "suppressed", "deduplicated", "pending_approval", "pending_missing_identifier"}
    assert set(seen) == outcomes | {f"rejected by {rule}" for rule in refusals}, seen
    assert min(seen.values()) >= 2, seen
