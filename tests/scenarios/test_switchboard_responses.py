"""What Switchboard makes of a butler's answer, and of none."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.scenarios.downstream import after, changed, error, ok
from tests.scenarios.fanout_system import SAYS, FanoutSystem, fanout, served
from tests.scenarios.switchboard_door import post, rows

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["fanout", "served"]  # fixtures


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-019")
async def test_successful_downstream_response(fanout: FanoutSystem) -> None:
    fanout.finance.will(ok("the bill is paid", duration_ms=4321, amount=80))
    stored = await fanout.says("finance")

    outcome = stored["outcomes"]["finance"]
    assert (stored["lifecycle_state"], outcome["success"]) == ("parsed", True)
    assert outcome["result"] == {"answer": "the bill is paid", "amount": 80}
    assert outcome["timing"] == {"duration_ms": 4321}
    assert stored["aggregated_reply"] == {"answers": {"finance": "the bill is paid"}}

    fanout.finance.will(changed(request_context={"request_id": str(stored["request_id"])}))  # the lineage of another
    other = await fanout.says("finance")
    assert (other["lifecycle_state"], other["lifecycle_error"]["class"]) == ("errored", "validation_error")
    assert "another request" in other["lifecycle_error"]["message"]


@pytest.mark.scenario("S3-020")
async def test_downstream_failure_response(fanout: FanoutSystem) -> None:
    fanout.finance.will(error("overload_rejected", "the ledger is closed until May", retryable=False))
    stored = await fanout.says("finance")

    outcome = stored["outcomes"]["finance"]
    told = {"class": "overload_rejected", "message": "the ledger is closed until May", "retryable": False}
    assert outcome["error"] == told
    assert outcome["raw_response"]["error"] == told
    assert outcome["raw_response"]["schema_version"] == "route_response.v1"
    assert (stored["lifecycle_state"], stored["lifecycle_error"]) == ("errored", told)
    [line] = await rows(fanout.running, "switchboard.routing_log", str(stored["request_id"]))
    assert (line["success"], line["error_class"], line["error"]) == (False, told["class"], told["message"])


@pytest.mark.scenario("S3-021")
@pytest.mark.parametrize("version", ["route_response.v2", "route_response.v0", "surprise", None])
async def test_unknown_schema_version(fanout: FanoutSystem, version: str | None) -> None:
    fanout.finance.will(changed(schema_version=version))
    stored = await fanout.says("finance")

    outcome = stored["outcomes"]["finance"]
    assert outcome["error"]["class"] == stored["lifecycle_error"]["class"] == "validation_error"
    assert "schema_version" in outcome["error"]["message"]
    assert outcome["raw_response"].get("schema_version") == version
    assert len(fanout.finance.got) == 1, "what cannot be understood is not asked for again"


@pytest.mark.scenario("S3-022", "S3-049")
async def test_route_timeout_with_no_response(fanout: FanoutSystem) -> None:
    never = asyncio.Event()
    fanout.finance.will(after(never))
    stored = await fanout.says("finance", tier="interactive")
    never.set()

    outcome = stored["outcomes"]["finance"]
    assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "timeout")
    assert (outcome["error"]["class"], outcome["raw_response"]) == ("timeout", None)
    assert "within 0.3 s" in outcome["error"]["message"]
    assert 300 <= outcome["duration_ms"] < 5_000


@pytest.mark.scenario("S3-022")
async def test_a_transport_that_fails_before_an_answer_is_an_unavailable_target(fanout: FanoutSystem) -> None:
    await fanout.finance.close()
    try:
        stored = await fanout.says("finance", tier="interactive")
    finally:
        await fanout.finance.open()

    outcome = stored["outcomes"]["finance"]
    assert (stored["lifecycle_state"], stored["lifecycle_error"]["class"]) == ("errored", "target_unavailable")
    assert (outcome["error"]["class"], outcome["raw_response"]) == ("target_unavailable", None)
    assert fanout.finance.got == []


# --- retry -----------------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-050")
async def test_retry_policy(fanout: FanoutSystem) -> None:
    fanout.finance.will(error("overload_rejected", retryable=True), error("target_unavailable", retryable=True), ok())
    stored = await fanout.says("finance")
    assert stored["lifecycle_state"] == "parsed", stored["lifecycle_error"]
    assert stored["outcomes"]["finance"]["attempts"] == len(fanout.finance.got) == 3
    assert len({envelope["subrequest"]["subrequest_id"] for envelope in fanout.finance.got}) == 1
    assert stored["outcomes"]["finance"]["duration_ms"] >= 700, "it waited between the tries"

    fanout.finance.will(error("overload_rejected", retryable=True))
    stored = await fanout.says("finance")
    assert (stored["lifecycle_state"], len(fanout.finance.got)) == ("errored", 3)
    assert stored["lifecycle_error"]["class"] == "overload_rejected"

    fanout.finance.will(error("validation_error", "no such account"))
    stored = await fanout.says("finance")
    assert (stored["lifecycle_error"]["class"], len(fanout.finance.got)) == ("validation_error", 1)


# --- taxonomy --------------------------------------------------------------------------------------------------------


SHARED = ["validation_error", "target_unavailable", "timeout", "overload_rejected", "internal_error"]


@pytest.mark.scenario("S3-058")
async def test_seven_error_classes(fanout: FanoutSystem) -> None:
    for error_class in SHARED:
        fanout.finance.will(error(error_class))
        stored = await fanout.says("finance")
        assert stored["lifecycle_error"]["class"] == error_class
        assert stored["outcomes"]["finance"]["original_class"] is None
    for switchboards_own in ("classification_error", "routing_error"):
        fanout.finance.will(error(switchboards_own))
        stored = await fanout.says("finance")
        assert stored["lifecycle_error"]["class"] == "internal_error", "these are not a butler's to use"
        assert stored["outcomes"]["finance"]["original_class"] == switchboards_own

    pinned = fanout.running.envelope("for the door itself") | {"control": {"pinned_target": "messenger"}}
    request_id = (await post(fanout.running, pinned)).json()["request_id"]
    trace = await fanout.running.finished(request_id)
    assert trace["lifecycle_error"]["class"] == "routing_error"


@pytest.mark.scenario("S3-059")
async def test_unknown_downstream_error_class_normalization(fanout: FanoutSystem) -> None:
    fanout.finance.will(error("coffee_spilled", "the machine broke"))
    stored = await fanout.says("finance")

    outcome = stored["outcomes"]["finance"]
    assert outcome["error"]["class"] == stored["lifecycle_error"]["class"] == "internal_error"
    assert outcome["original_class"] == outcome["raw_response"]["error"]["class"] == "coffee_spilled"
    for shown in (stored["lifecycle_error"], stored["aggregated_reply"]):
        assert "coffee" not in str(shown)


@pytest.mark.scenario("S3-060")
async def test_errored_terminal_state_includes_error_detail(fanout: FanoutSystem) -> None:
    fanout.finance.will(error("validation_error", "the amount is missing"))
    fanout.travel.will(error("timeout", "the airline did not answer"))
    running, chat = fanout.running, 6060
    await running.says(f"{SAYS['finance']}. {SAYS['travel']}.", chat=chat)

    async def handed_in() -> UUID | None:
        found: UUID | None = await running.database.fetchval(
            "SELECT request_id FROM switchboard.message_inbox"
            " WHERE request_context ->> 'source_thread_identity' LIKE $1 || '%'",
            str(chat),
        )
        return found

    stored = await fanout.ended(str(await running.until(handed_in)))
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
