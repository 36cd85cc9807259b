"""One message for several butlers: how it is dispatched, and what is said of their answers together."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.scenarios.downstream import after, error, ok
from tests.scenarios.fanout_system import FanoutSystem, fanout, served

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["fanout", "served"]  # fixtures


# --- what travels ----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-004")
async def test_context_propagation_on_fanout(fanout: FanoutSystem) -> None:
    stored = await fanout.says("finance", "travel")

    assert stored["lifecycle_state"] == "parsed", stored["lifecycle_error"]
    [to_finance], [to_travel] = fanout.finance.got, fanout.travel.got
    assert to_finance["request_context"] == to_travel["request_context"] == stored["request_context"]
    assert UUID(to_finance["request_context"]["request_id"]) == stored["request_id"]
    subrequests = [to_finance["subrequest"], to_travel["subrequest"]]
    assert {one["segment_id"] for one in subrequests} == {
        segment["segment_id"] for segment in stored["routing_output"]["segments"]
    }
    assert len({one["subrequest_id"] for one in subrequests}) == 2
    assert all(one.keys() == {"subrequest_id", "segment_id", "fanout_mode"} for one in subrequests)
    assert fanout.finance.callers == ["switchboard"]
    assert to_finance["input"]["prompt"] != to_travel["input"]["prompt"]


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-096")
async def test_parallel_fanout_mode(fanout: FanoutSystem) -> None:
    together = asyncio.Event()
    fanout.finance.will(after(together))
    fanout.travel.will(after(together))
    request_id = await fanout.hand_in("finance", "travel")
    await fanout.finance.called()
    await fanout.travel.called()  # both are under way, and neither has answered
    together.set()
    stored = await fanout.ended(request_id)

    assert stored["lifecycle_state"] == "parsed"
    assert [one.got[0]["subrequest"]["fanout_mode"] for one in (fanout.finance, fanout.travel)] == ["parallel"] * 2


@pytest.mark.scenario("S3-097")
async def test_ordered_fanout_mode(fanout: FanoutSystem) -> None:
    first = asyncio.Event()
    fanout.health.will(after(first))
    request_id = await fanout.hand_in("finance", "health")  # the plan turns the order of the text round
    await fanout.health.called()
    assert fanout.finance.got == []
    first.set()
    stored = await fanout.ended(request_id)

    assert stored["lifecycle_state"] == "parsed"
    assert [one["target_butler"] for one in stored["dispatch_outcomes"]] == ["health", "finance"]
    assert [one.got[0]["subrequest"]["fanout_mode"] for one in (fanout.health, fanout.finance)] == ["ordered"] * 2


@pytest.mark.scenario("S3-098")
async def test_conditional_fanout_mode(fanout: FanoutSystem) -> None:
    stored = await fanout.says("travel", "health")
    assert stored["lifecycle_state"] == "parsed"
    assert [one["target_butler"] for one in stored["dispatch_outcomes"]] == ["health", "travel"]

    fanout.health.will(error("internal_error"))
    fanout.travel.will(ok())
    stored = await fanout.says("travel", "health")
    assert fanout.travel.got == [], "its condition did not hold"
    assert stored["lifecycle_state"] == "errored"
    skipped = stored["outcomes"]["travel"]
    assert (skipped["success"], skipped["error"], skipped["attempts"]) == (False, None, 0)
    assert skipped["skipped"] == "it depends on health, which did not succeed"
    plan = stored["routing_output"]["plan"]
    assert (plan["mode"], plan["join"], plan["abort"]) == ("conditional", "wait_for_all", "continue")


async def test_a_part_that_is_not_required_does_not_fail_the_request(fanout: FanoutSystem) -> None:
    fanout.relationship.will(error("internal_error"))
    stored = await fanout.says("health", "relationship")

    assert stored["lifecycle_state"] == "parsed"
    assert stored["aggregated_reply"]["answers"] == {"health": "health did it"}
    assert [told["butler"] for told in stored["aggregated_reply"]["failed"]] == ["relationship"]


# --- together --------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-099")
async def test_mixed_success_and_failure(fanout: FanoutSystem) -> None:
    fanout.travel.will(error("target_unavailable", "the airline is closed"))
    stored = await fanout.says("finance", "travel")

    assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "target_unavailable")
    reply = stored["aggregated_reply"]
    assert reply["answers"] == {"finance": "finance did it"}
    [told] = reply["failed"]
    assert (told["butler"], told["class"]) == ("travel", "target_unavailable")
    assert "the airline is closed" in told["message"]
    assert "Send it again later" in told["message"]
    assert reply["text"].startswith("Done: finance.")
    assert (await fanout.running.request(str(stored["request_id"])))["reply"] == reply


@pytest.mark.scenario("S3-095")
async def test_conflict_detection_and_arbitration(fanout: FanoutSystem) -> None:
    fanout.relationship.will(ok("on Saturday"))
    fanout.travel.will(ok("on Sunday"))
    stored = await fanout.says("relationship", "travel")  # one group: travel has the higher priority
    reply = stored["aggregated_reply"]
    assert stored["lifecycle_state"] == "parsed"
    assert reply["answers"] == {"travel": "on Sunday"}
    [judged] = reply["arbitration"]
    assert (judged["winner"]["butler"], judged["by"]) == ("travel", "priority")
    assert [loser["butler"] for loser in judged["losers"]] == ["relationship"]

    fanout.travel.will(ok("on Saturday"))
    agreed = (await fanout.says("relationship", "travel"))["aggregated_reply"]
    assert agreed == {"answers": {"relationship": "on Saturday", "travel": "on Saturday"}}

    fanout.finance.will(ok("not now", key="buy the ticket", decision="no"))
    fanout.travel.will(ok("booked", key="buy the ticket", decision="yes"))
    open_question = (await fanout.says("finance", "travel"))["aggregated_reply"]  # nobody may choose between these
    assert open_question["answers"] == {"finance": "not now", "travel": "booked"}
    [conflict] = open_question["conflicts"]
    assert [(one["butler"], one["decision"]) for one in conflict["between"]] == [("finance", "no"), ("travel", "yes")]
    assert "do not agree about buy the ticket" in open_question["text"]


# --- before the dispatch ---------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-104")
async def test_pre_dispatch_capability_validation(fanout: FanoutSystem) -> None:
    first = asyncio.Event()
    fanout.health.will(after(first))
    request_id = await fanout.hand_in("finance", "health")
    await fanout.health.called()  # the decision is made, and finance is next
    try:
        await fanout.finance.register("ledger.read")
        first.set()
        stored = await fanout.ended(request_id)
    finally:
        await fanout.finance.register()

    assert fanout.finance.got == [], "it was not even tried"
    outcome = stored["outcomes"]["finance"]
    assert (outcome["error"]["class"], outcome["attempts"]) == ("validation_error", 0)
    assert "does not offer route.execute" in outcome["error"]["message"]
    assert stored["lifecycle_error"]["class"] == "validation_error"


@pytest.mark.scenario("S3-104")
async def test_a_butler_of_another_contract_is_not_called(fanout: FanoutSystem) -> None:
    change = "UPDATE switchboard.butler_registry SET route_contract_min = $1, route_contract_max = $1 WHERE name = $2"
    await fanout.running.database.execute(change, "route.v2", "finance")
    try:
        stored = await fanout.says("finance")
    finally:
        await fanout.running.database.execute(change, "route.v1", "finance")

    assert fanout.finance.got == []
    assert stored["outcomes"]["finance"]["error"]["class"] == "validation_error"
    assert "route.v2" in stored["lifecycle_error"]["message"]
