"""What one request may take, and how that differs by policy tier: time, calls, tokens, attempts, model, strictness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.integration.runtimes.stand_ins import CODEX, StandIn
from tests.scenarios.downstream import after, downstream, error, ok
from tests.scenarios.fanout_system import AT_HOME, FanoutSystem, planned
from tests.scenarios.operator_door import letters
from tests.scenarios.routing_model import RoutingModel, routed
from tests.scenarios.switchboard_door import row, rows
from tests.scenarios.test_llm_runtime import roster_with
from tests.scenarios.test_messenger_cli import cli, document
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

WALL_CLOCK_S, ROUTE_TIMEOUT_S = 3.0, 1.5
FAR_LESS_THAN_A_BUTLER_MAY_TAKE_S = 20.0
TIERS = f"""
[routing.tier.default]
attempts = 2

[routing.tier.interactive]
wall_clock_s = {WALL_CLOCK_S}
attempts = 10
strict = true

[routing.tier.high_priority]
max_invocations = 2
attempts = 4
route_timeout_s = {ROUTE_TIMEOUT_S}

[[routing.plan]]
butlers = ["finance", "health"]
mode = "ordered"
"""
ASKING = """
[routing.tier.default]
max_tokens = 100

[routing.tier.interactive]
wall_clock_s = 4
model = "quick"

[routing.tier.high_priority]
max_invocations = 1
model = "careful"
"""
SPENDING = """
[routing.tier.default]
max_tokens = 100

[routing.tier.high_priority]
max_tokens = 1000
"""


def seconds(stored: Any) -> float:
    """From the first hand on it to its end."""
    took: float = (stored["final_state_at"] - stored["progress_at"]).total_seconds()
    return took


async def category(running: RunningSystem, request_id: Any) -> list[str]:
    return [letter["failure_category"] for letter in await letters(running, str(request_id))]


# --- butlers that answer as told -------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[FanoutSystem]:
    tmp_path = tmp_path_factory.mktemp("tiers")
    async with (
        running_system(
            tmp_path, postgres_server, names=AT_HOME, roster_dir=planned(tmp_path, TIERS), request_patience_s=0
        ) as running,
        downstream(running, "finance") as finance,
        downstream(running, "health") as health,
        downstream(running, "travel") as travel,
    ):
        yield FanoutSystem(running=running, finance=finance, health=health, travel=travel)


@pytest_asyncio.fixture(loop_scope="module")
async def fanout(served: FanoutSystem) -> FanoutSystem:
    for butler in (served.finance, served.health, served.travel):
        butler.will(ok())
    return served


@pytest.mark.scenario("S3-102")
async def test_a_butler_that_hangs_ends_with_the_wall_clock(fanout: FanoutSystem) -> None:
    fanout.finance.will(after(asyncio.Event()))
    stored = await fanout.says("finance", tier="interactive")

    told = stored["lifecycle_error"]
    assert (stored["lifecycle_state"], told["class"], told["retryable"]) == ("errored", "timeout", False)
    assert "the request's time was used up" in told["message"]
    assert WALL_CLOCK_S <= seconds(stored) < FAR_LESS_THAN_A_BUTLER_MAY_TAKE_S
    assert await category(fanout.running, stored["request_id"]) == ["budget_exhausted"]


@pytest.mark.scenario("S3-102")
async def test_repeats_end_with_the_wall_clock_too(fanout: FanoutSystem) -> None:
    fanout.finance.will(error("target_unavailable", "not now", retryable=True))
    stored = await fanout.says("finance", tier="interactive")
    assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "timeout")
    assert "the last try: not now" in stored["lifecycle_error"]["message"]
    assert 1 < len(fanout.finance.got) < 10
    assert seconds(stored) < FAR_LESS_THAN_A_BUTLER_MAY_TAKE_S


@pytest.mark.scenario("S3-102")
async def test_calls_of_one_request_are_counted_over_all_its_parts(fanout: FanoutSystem) -> None:
    fanout.finance.will(error("target_unavailable", "not now", retryable=True), ok())
    fanout.travel.will(after(asyncio.Event()))  # its one call is under way when the other wants a second
    stored = await fanout.says("finance", "travel", tier="high_priority")

    assert (len(fanout.finance.got), len(fanout.travel.got)) == (1, 1)
    refused = stored["outcomes"]["finance"]["error"]
    assert (refused["class"], refused["retryable"]) == ("overload_rejected", False)
    assert "the request's calls were used up before finance was done; the last try: not now" in refused["message"]
    assert stored["lifecycle_state"] == "errored"
    assert "budget_exhausted" in await category(fanout.running, stored["request_id"])


@pytest.mark.scenario("S3-103")
async def test_attempts_and_timeouts_differ_by_tier(fanout: FanoutSystem) -> None:
    fanout.finance.will(error("target_unavailable", "not now", retryable=True))
    await fanout.says("finance")
    assert len(fanout.finance.got) == 2

    fanout.finance.will(after(asyncio.Event()))
    stored = await fanout.says("finance", tier="high_priority")
    assert "the last try: finance gave no answer within 1.5 s" in stored["lifecycle_error"]["message"]
    assert len(fanout.finance.got) == 2


@pytest.mark.scenario("S3-103")
async def test_fanout_strictness_differs_by_tier(fanout: FanoutSystem) -> None:
    fanout.health.will(error("validation_error", "not like this"))
    lenient = await fanout.says("health", "finance")
    assert lenient["outcomes"]["finance"]["success"]
    fanout.finance.will(ok())
    strict = await fanout.says("health", "finance", tier="interactive")
    assert strict["outcomes"]["finance"]["skipped"] == "stopped because health failed"
    assert fanout.finance.got == []
    assert (lenient["routing_output"]["plan"]["abort"], strict["routing_output"]["plan"]["abort"]) == (
        "continue",
        "on_required_failure",
    )


@pytest.mark.scenario("S3-103")
async def test_the_policy_of_a_request_is_on_record(fanout: FanoutSystem) -> None:
    running = fanout.running
    policies = [(await fanout.says("finance", tier="high_priority"))["routing_output"]["policy"] for _ in range(2)]
    high = {
        "tier": "high_priority",
        "max_invocations": 2,
        "attempts": 4,
        "route_timeout_s": ROUTE_TIMEOUT_S,
        "strict": False,
    }
    assert policies == [high, high], "the same tier is the same policy"

    request_id = await fanout.hand_in("finance", tier="interactive")
    await fanout.ended(request_id)
    quick = {
        "tier": "interactive",
        "wall_clock_s": WALL_CLOCK_S,
        "max_invocations": 20,
        "attempts": 10,
        "strict": True,
    }
    trace = await running.request(request_id)
    assert (trace["ingress"]["policy_tier"], trace["routing"]["decision"]["policy"]) == ("interactive", quick)
    assert (await document(running, "trace", request_id))["routing"]["decision"]["policy"] == quick
    (told,) = [line for line in (await cli(running, "trace", request_id)).stdout.splitlines() if "budget " in line]
    assert set(told.split("budget", 1)[1].strip().split(", ")) == {f"{name} {value}" for name, value in quick.items()}
    await running.says("I paid the gas bill")  # a person in a chat: the connector says how urgent that is

    async def of_the_chat() -> Any:
        query = "SELECT routing_output -> 'policy' ->> 'tier' FROM switchboard.message_inbox WHERE normalized_text = $1"
        return await running.database.fetchval(query, "I paid the gas bill")

    assert await running.until(of_the_chat) == "interactive"


# --- a model that is asked -------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asked(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[tuple[RunningSystem, RoutingModel]]:
    tmp_path = tmp_path_factory.mktemp("asked")
    model = RoutingModel(tmp_path)
    async with running_system(
        tmp_path, postgres_server, names=AT_HOME, roster_dir=model.roster(ASKING), llm="on"
    ) as running:
        yield running, model


@pytest.mark.scenario("S3-102")
async def test_the_wall_clock_runs_while_the_model_thinks(asked: tuple[RunningSystem, RoutingModel]) -> None:
    running, model = asked
    model.does(sleeps=120)
    try:
        trace = await routed(running, "hm, think about it", policy_tier="interactive")
    finally:
        model.picks("general")
    told = trace["lifecycle_error"]
    assert (trace["lifecycle_state"], told["class"], told["retryable"]) == ("errored", "timeout", False)
    assert told["message"] == "the request's 4 s are used up (tier interactive)"
    stored = await row(running, "switchboard.message_inbox", trace["request_id"])
    assert 4 <= seconds(stored) < FAR_LESS_THAN_A_BUTLER_MAY_TAKE_S
    assert await rows(running, "switchboard.routing_log", trace["request_id"]) == [], "nobody got it"
    assert await category(running, trace["request_id"]) == ["budget_exhausted"]


@pytest.mark.scenario("S3-102")
async def test_asking_a_model_is_a_call_and_costs_tokens(asked: tuple[RunningSystem, RoutingModel]) -> None:
    running, model = asked
    model.picks("general")
    spent = await routed(running, "hm, what is it worth")
    assert (spent["lifecycle_state"], spent["lifecycle_error"]["class"]) == ("errored", "overload_rejected")
    assert spent["lifecycle_error"]["message"] == (
        "the request's 100 tokens are used up: 165 were spent (tier default)"
    )
    assert await rows(running, "general.entries", spent["request_id"]) == [], "it ended before anybody had it"

    called = await routed(running, "hm, who is it for", policy_tier="high_priority")
    assert (called["lifecycle_state"], called["lifecycle_error"]["class"]) == ("errored", "overload_rejected")
    assert "the request's calls were used up before general was done" in called["lifecycle_error"]["message"]
    for trace in (spent, called):
        assert await category(running, trace["request_id"]) == ["budget_exhausted"]


@pytest.mark.scenario("S3-103")
async def test_the_model_differs_by_tier(asked: tuple[RunningSystem, RoutingModel]) -> None:
    running, model = asked
    model.picks("general")
    for tier, name in {"interactive": "quick", "high_priority": "careful", "default": "gpt-5.3-codex-spark"}.items():
        trace = await routed(running, f"hm, {tier}", policy_tier=tier)
        argv = model.triages()[-1].argv
        assert argv[argv.index("--model") + 1] == name
        decision = trace["routing"]["decision"]
        assert (decision["model_version"], decision["policy"]["tier"]) == (f"codex:{name}", tier)


# --- a specialist with a model of its own ----------------------------------------------------------------------------


@pytest.mark.scenario("S3-102")
async def test_what_the_specialists_model_spends_counts(tmp_path: Path, postgres_server: EmbeddedPostgres) -> None:
    stand_in = StandIn(tmp_path)
    stand_in.prints(CODEX.plain_answer("That makes 84 euros."))  # 120 tokens in, 45 out
    roster = roster_with(tmp_path, "finance", CODEX.kind, stand_in.path)
    toml = roster / "switchboard" / "butler.toml"
    toml.write_text(toml.read_text(encoding="utf-8") + SPENDING, encoding="utf-8")
    async with running_system(
        tmp_path, postgres_server, roster_dir=roster, names=[*AT_HOME, "finance"], llm="on"
    ) as running:
        dear = await routed(running, "I paid the electricity bill", pinned_target="finance")
        assert (dear["lifecycle_state"], dear["lifecycle_error"]["class"]) == ("errored", "overload_rejected")
        assert dear["lifecycle_error"]["message"] == (
            "the request's 100 tokens are used up: 165 were spent (tier default)"
        )
        assert dear["lifecycle_error"]["retryable"] is False
        assert await category(running, dear["request_id"]) == ["budget_exhausted"]
        affordable = await routed(
            running, "I paid the water bill", pinned_target="finance", policy_tier="high_priority"
        )
        assert affordable["lifecycle_state"] == "parsed", affordable["lifecycle_error"]
        (outcome,) = affordable["routing"]["outcomes"]
        assert outcome["result"]["usage"] == {"tokens": 165}
