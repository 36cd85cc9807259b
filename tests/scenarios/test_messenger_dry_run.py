"""Asking without doing: nothing is stored, and what is said is what would happen (seed 000 "Operational Health
Monitoring", seed 001 section 5.1.3).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_decisions import dispatch, dry_run, foretold, happened
from tests.scenarios.messenger_door import deliver, fault, lineage, sends, wish
from tests.scenarios.messenger_faults import KNOWN_CHAT, KNOWN_KEY, LIMITS, ORIGINS, FaultChanges
from tests.scenarios.messenger_intents import Wishes, on_record
from tests.scenarios.messenger_time import (
    emptied,
    ended_attempts,
    later,
    limits,
    standing_still,
    tool,
    turned_away,
)
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
    # Nobody waits for a Messenger that is full: what it says is what is told.
    options: dict[str, Any] = {"names": ["messenger", "switchboard"], "messenger_patience_s": 0.0}
    async with standing_still(
        tmp_path_factory.mktemp("system"), postgres_server, *changes, shipped_limits=True, **options
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


@pytest.mark.scenario("M0-028")
@pytest.mark.scenario("M1-012")
@pytest.mark.parametrize(
    ("source", "wanted", "problem"),
    [
        ("nothing", {"intent": "reply"}, "there is nothing to answer"),
        ("another", {"intent": "reply"}, "on record with other words about its source"),
        ("telegram", {"intent": "reply", "recipient": "61"}, "does not agree with the conversation"),
        ("telegram", {"intent": "react", "emoji": "\N{WHITE HEAVY CHECK MARK}"}, "not among Telegram's reactions"),
        ("no message", {"intent": "react", "emoji": "\N{THUMBS UP SIGN}"}, "names no message to react to"),
        ("machine", {"intent": "reply", "channel": "email"}, "sent by a machine (Auto-Submitted)"),
    ],
)
async def test_an_answer_that_would_be_refused_is_foretold(
    running: RunningSystem, source: str, wanted: dict[str, Any], problem: str
) -> None:
    notify = wish("an answer", request_context=await _asked(running, source), **wanted)
    before = await everything_stored(running)
    told = await dry_run(running, notify)
    checked = await tool(running, "validate_notify", notify_request=notify)
    assert await everything_stored(running) == before
    assert (told["outcome"], told["would_be_admitted"], checked["valid"]) == ("invalid", False, False)
    assert problem in told["reasons"][0]["message"]
    assert problem in str(checked["errors"])
    real = await dispatch(running, notify)
    assert (real["status"], real["error"]["class"]) == ("error", "validation_error")
    assert problem in real["error"]["message"]
    assert (await sends(running), await running.answers()) == (0, [])


async def test_an_answer_that_would_be_given_is_foretold(running: RunningSystem) -> None:
    context = await _asked(running, "telegram")
    for notify in (
        wish("an answer", intent="reply", request_context=context),
        wish("x", intent="react", emoji="\N{THUMBS UP SIGN}", request_context=context),
    ):
        told = await dry_run(running, notify)
        assert (told["outcome"], told["target_identity"]) == ("admitted", str(OWNER_CHAT_ID))
        assert (await dispatch(running, notify))["delivery"]["status"] == "delivered"


async def _asked(running: RunningSystem, source: str) -> dict[str, Any]:
    """A request, and what is said of it."""
    if source == "machine":
        mail = {"source_channel": "email", "source_sender_identity": "robot@far.example"}
        context = lineage(running, source_endpoint_identity="butler@butlers.example", **mail)
        await on_record(
            running, context, {"headers": {"Message-ID": "<1@far.example>", "Auto-Submitted": "auto-replied"}}
        )
        return context
    context, said = lineage(running), await running.says("a question")
    if source != "nothing":
        await on_record(running, context, None if source == "no message" else {"message": said})
    return context | ({"source_sender_identity": "somebody else"} if source == "another" else {})


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


async def _without_identifiers(running: RunningSystem) -> UUID:
    identity = uuid4()
    await running.database.execute(
        "insert into shared.contacts (id, name, created_at, updated_at) values ($1, 'Anna', now(), now())", identity
    )
    return identity


@pytest.mark.timeout(120)
async def test_a_dry_run_says_what_happens(running: RunningSystem) -> None:
    dice, contact = random.Random(20_260_101), await _without_identifiers(running)
    faults, wishes = FaultChanges(running=running, dice=dice), Wishes(running=running, dice=dice, contact=contact)
    for origin in ORIGINS:
        await deliver(running, wish("known", origin_butler=origin, recipient=KNOWN_CHAT, idempotency_key=KNOWN_KEY))
    seen, kinds = Counter[str](), Counter[tuple[str, str, str]]()
    for number in range(EXAMPLES):
        await faults.change()
        notify = await wishes.next()
        told = foretold(await dry_run(running, notify), notify)
        did = await happened(running, notify)
        assert told == did, (number, notify)
        seen[f"rejected by {did.rule}" if did.rule else did.outcome] += 1
        kinds[notify["delivery"]["channel"], notify["delivery"]["intent"], did.outcome] += 1
    refusals = ("throttle", "in_flight", "global", "channel", "recipient", "fair_share", "breaker")
    outcomes = {"admitted", "invalid", "suppressed", "deduplicated", "pending_approval", "pending_missing_identifier"}
    assert set(seen) == outcomes | {f"rejected by {rule}" for rule in refusals}, seen
    assert min(seen.values()) >= 2, seen
    answers = (("telegram", "reply"), ("telegram", "react"), ("email", "reply"))
    assert all(kinds[*kind, outcome] >= 2 for kind in answers for outcome in ("admitted", "invalid", "rejected")), kinds
