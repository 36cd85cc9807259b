"""A person takes a butler out of service: no sign of life puts it back, and the history says who and why."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.downstream import downstream
from tests.scenarios.switchboard_door import call
from tests.system import RunningSystem, running_system

BILL = "I paid the electricity bill"


async def taken_by(running: RunningSystem, text: str) -> list[str]:
    trace = await running.finished((await running.ingest(text))["request_id"])
    return [segment["butler"] for segment in trace["routing"]["decision"]["segments"]]


async def post(running: RunningSystem, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    response = await running.http.post(running.url(path=path), json=body, headers=headers)
    return response.status_code, response.json()


async def test_a_held_butler_gets_nothing_until_it_is_released(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server, heartbeat_s=0.1) as running:
        assert await taken_by(running, BILL) == ["finance"]
        operator = running.bearer()
        status, held = await post(running, "/api/butlers/finance/hold", {"reason": "audit"}, **operator)
        assert (status, held["held"]["operator"], held["held"]["reason"]) == (200, "operator", "audit")
        async with running.mcp("switchboard", caller="finance") as client:
            await call(client, "butler.heartbeat")
        assert await taken_by(running, f"{BILL} again") == ["general"]
        status, refused = await post(running, "/api/butlers/finance/hold", {"reason": "again"}, **operator)
        assert status == 422
        assert "is held already" in refused["error"]["message"]
        async with running.mcp("switchboard") as client:
            released = await call(client, "butler.release", {"butler": "finance", "reason": "audit is over"})
            assert released["held"] is None
            history = (await call(client, "butler.history", {"butler": "finance"}))["history"]
        assert [(line["previous"], line["new"]) for line in history[:2]] == [("held", "active"), ("active", "held")]
        assert history[0]["reason"] == "released by operator: audit is over"
        assert await taken_by(running, f"{BILL} a third time") == ["finance"]


async def test_only_the_operator_may_hold_and_only_whom_there_is(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path, postgres_server) as running:
        operator = running.bearer()
        assert (await post(running, "/api/butlers/finance/hold", {"reason": "x"}))[0] == 403
        assert (await post(running, "/api/butlers/finance/hold", {"reason": "x"}, **running.bearer("finance")))[
            0
        ] == 403
        assert (await post(running, "/api/butlers/nobody/hold", {"reason": "x"}, **operator))[0] == 404
        assert (await post(running, "/api/butlers/messenger/hold", {"reason": "x"}, **operator))[0] == 422
        assert (await post(running, "/api/butlers/finance/hold", {}, **operator))[0] == 422
        assert (await post(running, "/api/butlers/finance/release", {"reason": "x"}, **operator))[0] == 422
        rows = await running.database.fetch("select held from switchboard.butler_registry where held is not null")
        assert rows == []
        listed = (await running.http.get(running.url(path="/api/butlers/finance/history?limit=1"))).json()
        assert json.dumps(listed), "anybody on this machine may read it"
        assert listed["history"][0]["new"] == "active"


async def test_a_stored_decision_does_not_reach_a_butler_that_is_held_meanwhile(
    tmp_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    names = ["switchboard", "messenger", "general", "health", "relationship", "travel"]
    async with running_system(tmp_path, postgres_server, names=names, heartbeat_s=0.2) as running:
        async with downstream(running, "finance"):
            pass  # registered, and away
        reply = await running.ingest("remember the milk")
        await running.finished(reply["request_id"])
        rerouted = await running.ingest("remember the bread")
        document = {"target": "finance", "reason": "it is a bill"}
        path = f"/api/requests/{rerouted['request_id']}/reroute"
        await running.until(lambda: _done(running, rerouted["request_id"]))
        await running.database.execute(
            "update switchboard.message_inbox set lifecycle_state = 'errored' where request_id = $1",
            UUID(rerouted["request_id"]),
        )
        assert (await post(running, path, document, **running.bearer()))[0] == 200
        first = await running.until(lambda: _put_off(running, rerouted["request_id"], None), deadline_s=60)
        assert (await post(running, "/api/butlers/finance/hold", {"reason": "audit"}, **running.bearer()))[0] == 200
        async with downstream(running, "finance") as finance:
            await running.until(lambda: _put_off(running, rerouted["request_id"], first), deadline_s=60)
            assert finance.got == [], "it is there again, and held"
            released = {"reason": "audit is over"}
            assert (await post(running, "/api/butlers/finance/release", released, **running.bearer()))[0] == 200
            await finance.called()


async def _put_off(running: RunningSystem, request_id: str, before: datetime | None) -> datetime | None:
    """Until when it waits for finance, once that is another moment than before."""
    query = "select not_before from switchboard.message_inbox where request_id = $1 and waiting_for = $2"
    until: datetime | None = await running.database.fetchval(query, UUID(request_id), ["finance"])
    return until if until != before else None


async def _done(running: RunningSystem, request_id: str) -> bool:
    return bool((await running.request(request_id))["final_state_at"])
