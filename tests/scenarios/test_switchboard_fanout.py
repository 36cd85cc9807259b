"""One message for several butlers: how it is dispatched, what their answers become, and what is said of them together.

The specialists here are somebody else's: real MCP doors that answer as a test tells them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.downstream import Downstream, after, changed, downstream, error, ok
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_door import post, row, rows
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPECIALISTS = ("finance", "travel", "health", "relationship")
AT_HOME = ["switchboard", "messenger", "general"]
SAYS = {
    "finance": "I paid the electricity bill of 80 euros",
    "travel": "My flight to Lisbon leaves from the airport at ten",
    "health": "I took my blood pressure medication",
    "relationship": "My sister needs a birthday gift",
}

# Which pair of butlers a message is for decides how it is dispatched; finance and travel have no plan.
PLANS = """
[routing.tier.interactive]
attempts = 1
route_timeout_s = 0.3

[[routing.plan]]
butlers = ["finance", "health"]
mode = "ordered"
[[routing.plan.node]]
butler = "finance"
depends_on = ["health"]

[[routing.plan]]
butlers = ["travel", "health"]
mode = "conditional"
join = "wait_for_all"
abort = "continue"
[[routing.plan.node]]
butler = "travel"
depends_on = ["health"]
run_if = "success"

[[routing.plan]]
butlers = ["travel", "relationship"]
[[routing.plan.node]]
butler = "relationship"
arbitration_group = "when"
[[routing.plan.node]]
butler = "travel"
arbitration_group = "when"
arbitration_priority = 10

[[routing.plan]]
butlers = ["health", "relationship"]
[[routing.plan.node]]
butler = "relationship"
required = false
"""


def planned(tmp_path: Path, more: str = PLANS) -> Path:
    roster = changed_roster(tmp_path, "switchboard")
    path = roster / "switchboard" / "butler.toml"
    path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    return roster


class House(SimpleNamespace):
    running: RunningSystem
    finance: Downstream
    travel: Downstream
    health: Downstream
    relationship: Downstream

    async def says(self, *butlers: str, tier: str = "default") -> dict[str, Any]:
        """A message with a part for each of these; its record at the end."""
        reply = await self.hand_in(*butlers, tier=tier)
        return await self.ended(reply)

    async def hand_in(self, *butlers: str, tier: str = "default") -> str:
        text = ". ".join(SAYS[butler] for butler in butlers) + "."
        document = self.running.envelope(text) | {"control": {"policy_tier": tier, "idempotency_key": uuid4().hex}}
        response = await post(self.running, document)
        assert response.status_code == 202, response.text
        request_id: str = response.json()["request_id"]
        return request_id

    async def ended(self, request_id: str) -> dict[str, Any]:
        async def over() -> bool:
            stored = await row(self.running, "switchboard.message_inbox", request_id)
            return stored["final_state_at"] is not None

        await self.running.until(over, deadline_s=60)
        stored = dict(await row(self.running, "switchboard.message_inbox", request_id))
        targets = [segment["butler"] for segment in stored["routing_output"]["segments"]]
        stored["outcomes"] = {outcome["target_butler"]: outcome for outcome in stored["dispatch_outcomes"]}
        assert set(targets) == stored["outcomes"].keys()
        return stored


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres) -> AsyncIterator[House]:
    tmp_path = tmp_path_factory.mktemp("fanout")
    async with (
        running_system(
            tmp_path, postgres_server, names=AT_HOME, roster_dir=planned(tmp_path), request_patience_s=0
        ) as running,
        AsyncExitStack() as stack,
    ):
        butlers = {name: await stack.enter_async_context(downstream(running, name)) for name in SPECIALISTS}
        yield House(running=running, **butlers)


@pytest_asyncio.fixture(loop_scope="module")
async def house(served: House) -> House:
    for name in SPECIALISTS:
        getattr(served, name).will(ok(f"{name} did it"))
    return served


# --- what travels ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-004")
async def test_context_propagation_on_fanout(house: House) -> None:
    stored = await house.says("finance", "travel")

    assert stored["lifecycle_state"] == "parsed", stored["lifecycle_error"]
    [to_finance], [to_travel] = house.finance.got, house.travel.got
    assert to_finance["request_context"] == to_travel["request_context"] == stored["request_context"]
    assert UUID(to_finance["request_context"]["request_id"]) == stored["request_id"]
    subrequests = [to_finance["subrequest"], to_travel["subrequest"]]
    assert {one["segment_id"] for one in subrequests} == {
        segment["segment_id"] for segment in stored["routing_output"]["segments"]
    }
    assert len({one["subrequest_id"] for one in subrequests}) == 2
    assert all(one.keys() == {"subrequest_id", "segment_id", "fanout_mode"} for one in subrequests)
    assert house.finance.callers == ["switchboard"]
    assert to_finance["input"]["prompt"] != to_travel["input"]["prompt"]


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-019")
async def test_successful_downstream_response(house: House) -> None:
    house.finance.will(ok("the bill is paid", duration_ms=4321, amount=80))
    stored = await house.says("finance")

    outcome = stored["outcomes"]["finance"]
    assert (stored["lifecycle_state"], outcome["success"]) == ("parsed", True)
    assert outcome["result"] == {"answer": "the bill is paid", "amount": 80}
    assert outcome["timing"] == {"duration_ms": 4321}
    assert stored["aggregated_reply"] == {"answers": {"finance": "the bill is paid"}}

    house.finance.will(changed(request_context={"request_id": str(stored["request_id"])}))  # the lineage of another
    other = await house.says("finance")
    assert (other["lifecycle_state"], other["lifecycle_error"]["class"]) == ("errored", "validation_error")
    assert "another request" in other["lifecycle_error"]["message"]


@pytest.mark.scenario("S3-020")
async def test_downstream_failure_response(house: House) -> None:
    house.finance.will(error("overload_rejected", "the ledger is closed until May", retryable=False))
    stored = await house.says("finance")

    outcome = stored["outcomes"]["finance"]
    told = {"class": "overload_rejected", "message": "the ledger is closed until May", "retryable": False}
    assert outcome["error"] == told
    assert outcome["raw_response"]["error"] == told
    assert outcome["raw_response"]["schema_version"] == "route_response.v1"
    assert (stored["lifecycle_state"], stored["lifecycle_error"]) == ("errored", told)
    [line] = await rows(house.running, "switchboard.routing_log", str(stored["request_id"]))
    assert (line["success"], line["error_class"], line["error"]) == (False, told["class"], told["message"])


@pytest.mark.scenario("S3-021")
@pytest.mark.parametrize("version", ["route_response.v2", "route_response.v0", "surprise", None])
async def test_unknown_schema_version(house: House, version: str | None) -> None:
    house.finance.will(changed(schema_version=version))
    stored = await house.says("finance")

    outcome = stored["outcomes"]["finance"]
    assert outcome["error"]["class"] == stored["lifecycle_error"]["class"] == "validation_error"
    assert "schema_version" in outcome["error"]["message"]
    assert outcome["raw_response"].get("schema_version") == version
    assert len(house.finance.got) == 1, "what cannot be understood is not asked for again"


@pytest.mark.scenario("S3-022", "S3-049")
async def test_route_timeout_with_no_response(house: House) -> None:
    never = asyncio.Event()
    house.finance.will(after(never))
    stored = await house.says("finance", tier="interactive")
    never.set()

    outcome = stored["outcomes"]["finance"]
    assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "timeout")
    assert (outcome["error"]["class"], outcome["raw_response"]) == ("timeout", None)
    assert "within 0.3 s" in outcome["error"]["message"]
    assert 300 <= outcome["duration_ms"] < 5_000


@pytest.mark.scenario("S3-022")
async def test_a_transport_that_fails_before_an_answer_is_an_unavailable_target(house: House) -> None:
    await house.finance.close()
    try:
        stored = await house.says("finance", tier="interactive")
    finally:
        await house.finance.open()

    outcome = stored["outcomes"]["finance"]
    assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "target_unavailable")
    assert (outcome["error"]["class"], outcome["raw_response"]) == ("target_unavailable", None)
    assert house.finance.got == []


# --- retry -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-050")
async def test_retry_policy(house: House) -> None:
    house.finance.will(error("overload_rejected", retryable=True), error("target_unavailable", retryable=True), ok())
    stored = await house.says("finance")
    assert stored["lifecycle_state"] == "parsed", stored["lifecycle_error"]
    assert stored["outcomes"]["finance"]["attempts"] == len(house.finance.got) == 3
    assert len({envelope["subrequest"]["subrequest_id"] for envelope in house.finance.got}) == 1
    assert stored["outcomes"]["finance"]["duration_ms"] >= 700, "it waited between the tries"

    house.finance.will(error("overload_rejected", retryable=True))
    stored = await house.says("finance")
    assert (stored["lifecycle_state"], len(house.finance.got)) == ("errored", 3)
    assert stored["lifecycle_error"]["class"] == "overload_rejected"

    house.finance.will(error("validation_error", "no such account"))
    stored = await house.says("finance")
    assert (stored["lifecycle_error"]["class"], len(house.finance.got)) == ("validation_error", 1)


# --- taxonomy --------------------------------------------------------------------------------------------------------


SHARED = ["validation_error", "target_unavailable", "timeout", "overload_rejected", "internal_error"]


@pytest.mark.scenario("S3-058")
async def test_seven_error_classes(house: House) -> None:
    for error_class in SHARED:
        house.finance.will(error(error_class))
        stored = await house.says("finance")
        assert stored["lifecycle_error"]["class"] == error_class
        assert stored["outcomes"]["finance"]["original_class"] is None
    for switchboards_own in ("classification_error", "routing_error"):
        house.finance.will(error(switchboards_own))
        stored = await house.says("finance")
        assert stored["lifecycle_error"]["class"] == "internal_error", "these are not a butler's to use"
        assert stored["outcomes"]["finance"]["original_class"] == switchboards_own

    pinned = house.running.envelope("for the door itself") | {"control": {"pinned_target": "messenger"}}
    request_id = (await post(house.running, pinned)).json()["request_id"]
    trace = await house.running.finished(request_id)
    assert trace["lifecycle_error"]["class"] == "routing_error"


@pytest.mark.scenario("S3-059")
async def test_unknown_downstream_error_class_normalization(house: House) -> None:
    house.finance.will(error("coffee_spilled", "the machine broke"))
    stored = await house.says("finance")

    outcome = stored["outcomes"]["finance"]
    assert outcome["error"]["class"] == stored["lifecycle_error"]["class"] == "internal_error"
    assert outcome["original_class"] == outcome["raw_response"]["error"]["class"] == "coffee_spilled"
    for shown in (stored["lifecycle_error"], stored["aggregated_reply"]):
        assert "coffee" not in str(shown)


@pytest.mark.scenario("S3-060")
async def test_errored_terminal_state_includes_error_detail(house: House) -> None:
    house.finance.will(error("validation_error", "the amount is missing"))
    house.travel.will(error("timeout", "the airline did not answer"))
    running, chat = house.running, 6060
    await running.says(f"{SAYS['finance']}. {SAYS['travel']}.", chat=chat)

    async def handed_in() -> UUID | None:
        found: UUID | None = await running.database.fetchval(
            "SELECT request_id FROM switchboard.message_inbox"
            " WHERE request_context ->> 'source_thread_identity' LIKE $1 || '%'",
            str(chat),
        )
        return found

    stored = await house.ended(str(await running.until(handed_in)))
    assert stored["request_context"]["source_channel"] == "telegram"
    assert stored["lifecycle_state"] == "errored"
    assert (stored["lifecycle_error"]["class"], stored["lifecycle_error"]["message"]) == (
        "validation_error",
        "the amount is missing",
    )
    assert {name: one["error"]["class"] for name, one in stored["outcomes"].items()} == {
        "finance": "validation_error",
        "travel": "timeout",
    }
    trace = await running.request(str(stored["request_id"]))
    assert "Say it differently" in trace["reply"]["text"]
    assert "Send it again" in trace["reply"]["text"]


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-096")
async def test_parallel_fanout_mode(house: House) -> None:
    together = asyncio.Event()
    house.finance.will(after(together))
    house.travel.will(after(together))
    request_id = await house.hand_in("finance", "travel")
    await house.finance.called()
    await house.travel.called()  # both are under way, and neither has answered
    together.set()
    stored = await house.ended(request_id)

    assert stored["lifecycle_state"] == "parsed"
    assert [one.got[0]["subrequest"]["fanout_mode"] for one in (house.finance, house.travel)] == ["parallel"] * 2


@pytest.mark.scenario("S3-097")
async def test_ordered_fanout_mode(house: House) -> None:
    first = asyncio.Event()
    house.health.will(after(first))
    request_id = await house.hand_in("finance", "health")  # the plan turns the order of the text round
    await house.health.called()
    assert house.finance.got == []
    first.set()
    stored = await house.ended(request_id)

    assert stored["lifecycle_state"] == "parsed"
    assert [one["target_butler"] for one in stored["dispatch_outcomes"]] == ["health", "finance"]
    assert [one.got[0]["subrequest"]["fanout_mode"] for one in (house.health, house.finance)] == ["ordered"] * 2


@pytest.mark.scenario("S3-098")
async def test_conditional_fanout_mode(house: House) -> None:
    stored = await house.says("travel", "health")
    assert stored["lifecycle_state"] == "parsed"
    assert [one["target_butler"] for one in stored["dispatch_outcomes"]] == ["health", "travel"]

    house.health.will(error("internal_error"))
    house.travel.will(ok())
    stored = await house.says("travel", "health")
    assert house.travel.got == [], "its condition did not hold"
    assert stored["lifecycle_state"] == "errored"
    skipped = stored["outcomes"]["travel"]
    assert (skipped["success"], skipped["error"], skipped["attempts"]) == (False, None, 0)
    assert skipped["skipped"] == "it depends on health, which did not succeed"
    plan = stored["routing_output"]["plan"]
    assert (plan["mode"], plan["join"], plan["abort"]) == ("conditional", "wait_for_all", "continue")


async def test_a_part_that_is_not_required_does_not_fail_the_request(house: House) -> None:
    house.relationship.will(error("internal_error"))
    stored = await house.says("health", "relationship")

    assert stored["lifecycle_state"] == "parsed"
    assert stored["aggregated_reply"]["answers"] == {"health": "health did it"}
    assert [told["butler"] for told in stored["aggregated_reply"]["failed"]] == ["relationship"]


# --- together --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-099")
async def test_mixed_success_and_failure(house: House) -> None:
    house.travel.will(error("target_unavailable", "the airline is closed"))
    stored = await house.says("finance", "travel")

    assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "target_unavailable")
    reply = stored["aggregated_reply"]
    assert reply["answers"] == {"finance": "finance did it"}
    [told] = reply["failed"]
    assert (told["butler"], told["class"]) == ("travel", "target_unavailable")
    assert "the airline is closed" in told["message"]
    assert "Send it again later" in told["message"]
    assert reply["text"].startswith("Done: finance.")
    assert (await house.running.request(str(stored["request_id"])))["reply"] == reply


@pytest.mark.scenario("S3-095")
async def test_conflict_detection_and_arbitration(house: House) -> None:
    house.relationship.will(ok("on Saturday"))
    house.travel.will(ok("on Sunday"))
    stored = await house.says("relationship", "travel")  # one group: travel has the higher priority
    reply = stored["aggregated_reply"]
    assert stored["lifecycle_state"] == "parsed"
    assert reply["answers"] == {"travel": "on Sunday"}
    [judged] = reply["arbitration"]
    assert (judged["winner"]["butler"], judged["by"]) == ("travel", "priority")
    assert [loser["butler"] for loser in judged["losers"]] == ["relationship"]

    house.travel.will(ok("on Saturday"))
    agreed = (await house.says("relationship", "travel"))["aggregated_reply"]
    assert agreed == {"answers": {"relationship": "on Saturday", "travel": "on Saturday"}}

    house.finance.will(ok("not now", key="buy the ticket", decision="no"))
    house.travel.will(ok("booked", key="buy the ticket", decision="yes"))
    open_question = (await house.says("finance", "travel"))["aggregated_reply"]  # nobody may choose between these
    assert open_question["answers"] == {"finance": "not now", "travel": "booked"}
    [conflict] = open_question["conflicts"]
    assert [(one["butler"], one["decision"]) for one in conflict["between"]] == [("finance", "no"), ("travel", "yes")]
    assert "do not agree about buy the ticket" in open_question["text"]


# --- before the dispatch ---------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-104")
async def test_pre_dispatch_capability_validation(house: House) -> None:
    first = asyncio.Event()
    house.health.will(after(first))
    request_id = await house.hand_in("finance", "health")
    await house.health.called()  # the decision is made, and finance is next
    try:
        await house.finance.register("ledger.read")
        first.set()
        stored = await house.ended(request_id)
    finally:
        await house.finance.register()

    assert house.finance.got == [], "it was not even tried"
    outcome = stored["outcomes"]["finance"]
    assert (outcome["error"]["class"], outcome["attempts"]) == ("validation_error", 0)
    assert "does not offer route.execute" in outcome["error"]["message"]
    assert stored["lifecycle_error"]["class"] == "validation_error"


@pytest.mark.scenario("S3-104")
async def test_a_butler_of_another_contract_is_not_called(house: House) -> None:
    change = "UPDATE switchboard.butler_registry SET route_contract_min = $1, route_contract_max = $1 WHERE name = $2"
    await house.running.database.execute(change, "route.v2", "finance")
    try:
        stored = await house.says("finance")
    finally:
        await house.running.database.execute(change, "route.v1", "finance")

    assert house.finance.got == []
    assert stored["outcomes"]["finance"]["error"]["class"] == "validation_error"
    assert "route.v2" in stored["lifecycle_error"]["message"]
