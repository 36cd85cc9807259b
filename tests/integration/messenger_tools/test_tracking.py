"""Status, search, attempts and trace over real rows."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from butlers.errors import TargetUnavailable, ValidationError
from tests.integration.messenger_tools.stored_state import HEALTH, START, StoredState

# --- status ----------------------------------------------------------------------------------------------------------


async def test_the_status_has_the_columns_the_latest_attempt_and_the_providers_id(state: StoredState):
    delivery = await state.delivery(attempts=2, terminal_at=START + timedelta(seconds=3))
    await state.failed_attempt(delivery, 1)
    await state.attempt(delivery, 2, latency_ms=25)
    await state.receipt(delivery)
    status = await state.call("delivery_status", delivery_id=delivery)
    assert (status["delivery_id"], status["status"]) == (str(delivery), "delivered")
    assert (status["created_at"], status["terminal_at"]) == ("2026-03-01T12:00:00Z", "2026-03-01T12:00:03Z")
    assert status["provider_delivery_id"] == "42"
    latest = status["latest_attempt"]
    assert (latest["attempt_number"], latest["outcome"], latest["latency_ms"]) == (2, "sent", 25)
    assert not {"claim_token", "lease_expires_at", "envelope"} & status.keys()


async def test_what_was_never_tried_has_no_latest_attempt_and_no_provider_id(state: StoredState):
    status = await state.call("delivery_status", delivery_id=await state.delivery(status="pending", attempts=0))
    assert (status["latest_attempt"], status["provider_delivery_id"], status["terminal_at"]) == (None, None, None)


@pytest.mark.parametrize("tool", ["delivery_status", "delivery_attempts", "delivery_why"])
async def test_an_unknown_delivery_is_refused_as_such(state: StoredState, tool: str):
    with pytest.raises(ValidationError, match="no such delivery"):
        await state.call(tool, delivery_id=uuid4())
    with pytest.raises(ValidationError, match="delivery_id must be a UUID"):
        await state.call(tool, delivery_id="seven")


# --- search ----------------------------------------------------------------------------------------------------------


async def pages(state: StoredState, **filters: Any) -> list[list[str]]:
    """All pages from the first to the last."""
    found, cursor = [], None
    while True:
        page = await state.call("delivery_search", **filters, **({"cursor": cursor} if cursor else {}))
        found.append([row["id"] for row in page["deliveries"]])
        if (cursor := page["next_cursor"]) is None:
            return found


async def test_a_search_shows_the_newest_first_a_page_at_a_time(state: StoredState):
    made = [await state.delivery(created_at=START + timedelta(seconds=n)) for n in range(5)]
    assert await pages(state, limit=2) == [
        [str(made[4]), str(made[3])],
        [str(made[2]), str(made[1])],
        [str(made[0])],
    ]
    assert [len(page) for page in await pages(state, limit=5)] == [5]  # a full last page is the last


async def test_rows_of_the_same_instant_are_each_shown_once(state: StoredState):
    made = {str(await state.delivery(id=uuid4())) for _ in range(17)}
    shown = [row for page in await pages(state, limit=3) for row in page]
    assert (len(shown), set(shown)) == (17, made)


async def test_rows_that_come_in_while_somebody_pages_move_nothing(state: StoredState):
    made = [str(await state.delivery(created_at=START + timedelta(seconds=n // 3))) for n in range(30)]
    stop = asyncio.Event()

    async def keep_coming() -> int:
        count = 0
        while not stop.is_set() or count < 20:
            await state.delivery(created_at=START + timedelta(hours=1, seconds=count))
            count += 1
        return count

    first = await state.call("delivery_search", limit=4)
    coming = asyncio.create_task(keep_coming())
    shown, cursor = [row["id"] for row in first["deliveries"]], first["next_cursor"]
    while cursor:
        page = await state.call("delivery_search", limit=4, cursor=cursor)
        shown += [row["id"] for row in page["deliveries"]]
        cursor = page["next_cursor"]
    stop.set()
    assert await coming >= 20
    assert sorted(shown) == sorted(made)
    assert len(shown) == len(set(shown))


async def test_every_filter_filters(state: StoredState):
    request = state.new_id()
    wanted = await state.delivery(
        origin_butler="finance",
        channel="email",
        intent="reply",
        status="failed",
        request_id=request,
        created_at=START + timedelta(minutes=5),
    )
    await state.delivery()
    for filters in (
        {"origin_butler": "finance"},
        {"channel": "email"},
        {"intent": "reply"},
        {"status": "failed"},
        {"request_id": request},
        {"since": "2026-03-01T12:00:01Z"},
        {"since": "2026-03-01T13:05:00+01:00", "until": "2026-03-01T12:06:00Z"},
    ):
        assert await pages(state, **filters) == [[str(wanted)]], filters
    # From `since` on and before `until`.
    assert await pages(state, until="2026-03-01T12:00:00Z") == [[]]
    assert await pages(state, origin_butler="finance", status="delivered") == [[]]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"limit": 501}, "limit"),
        ({"limit": 0}, "limit"),
        ({"status": "gone"}, "status must be one of"),
        ({"since": "yesterday"}, "RFC 3339"),
        ({"since": "2026-03-02T00:00:00Z", "until": "2026-03-01T00:00:00Z"}, "since: is later than until"),
        ({"cursor": "page-2"}, "cursor: is not the next_cursor"),
        ({"cursor": f"{'f' * 15}-{'0' * 32}"}, "cursor: is not the next_cursor"),
        ({"order": "asc"}, "order is not a known field"),
    ],
)
async def test_wrong_filters_are_typed_errors(state: StoredState, wrong: dict[str, Any], said: str):
    with pytest.raises(ValidationError, match=said):
        await state.call("delivery_search", **wrong)


# --- attempts and trace ----------------------------------------------------------------------------------------------


async def test_the_attempt_log_is_complete_and_in_order(state: StoredState):
    delivery = await state.delivery(attempts=3)
    await state.attempt(delivery, 3)
    await state.failed_attempt(delivery, 1, latency_ms=12)
    await state.failed_attempt(delivery, 2)
    log = await state.call("delivery_attempts", delivery_id=delivery)
    assert log["delivery_id"] == str(delivery)
    assert [attempt["attempt_number"] for attempt in log["attempts"]] == [1, 2, 3]
    first = log["attempts"][0]
    assert (first["outcome"], first["certainty"], first["latency_ms"]) == ("rejected", "not_sent", 12)
    assert (first["error_class"], first["retryable"]) == ("target_unavailable", True)
    assert first["provider_response"] == {"status_code": 502}


async def test_the_trace_joins_the_door_the_routing_and_every_delivery_with_its_replays(state: StoredState):
    request = state.new_id()
    first = await state.delivery(request_id=request, status="dead_lettered")
    await state.failed_attempt(first)
    # A replay belongs to the request by descent, also when it does not repeat the request's id.
    replay = await state.delivery(replay_of=first, created_at=START + timedelta(minutes=1))
    again = await state.delivery(replay_of=replay, created_at=START + timedelta(minutes=2))
    await state.attempt(again)
    await state.receipt(again)
    await state.delivery(request_id=state.new_id())
    state.lineage = {"ingress": {"received_at": "x"}, "routing": {"decision": None, "dispatches": []}}
    trace = await state.call("delivery_trace", request_id=request)
    assert (trace["request_id"], trace["ingress"]) == (str(request), {"received_at": "x"})
    assert trace["routing"] == {"decision": None, "dispatches": []}
    assert [d["id"] for d in trace["deliveries"]] == [str(first), str(replay), str(again)]
    assert [len(d["attempts"]) for d in trace["deliveries"]] == [1, 0, 1]
    assert trace["deliveries"][2]["receipts"][0]["provider_delivery_id"] == "42"
    assert trace["deliveries"][0]["envelope"]["schema_version"] == "notify.v1"


async def test_what_switchboard_does_not_tell_is_unknown_and_not_empty(state: StoredState):
    request = state.new_id()
    await state.delivery(request_id=request)
    for problem in (TargetUnavailable("switchboard is away"), ValidationError("no such request"), None):
        state.lineage = problem
        trace = await state.call("delivery_trace", request_id=request)
        assert trace["ingress"].keys() == trace["routing"].keys() == {"unknown"}
        assert len(trace["deliveries"]) == 1
    state.lineage = TargetUnavailable("switchboard is away")
    assert (await state.call("delivery_trace", request_id=state.new_id()))["ingress"] == {
        "unknown": "switchboard is away"
    }


async def test_a_request_nobody_knows_is_refused(state: StoredState):
    state.lineage = ValidationError("request_id: no such request")
    with pytest.raises(ValidationError, match="no such request"):
        await state.call("delivery_trace", request_id=state.new_id())


async def test_every_butler_may_read(state: StoredState):
    delivery: UUID = await state.delivery()
    assert (await state.call("delivery_status", HEALTH, delivery_id=delivery))["status"] == "delivered"
