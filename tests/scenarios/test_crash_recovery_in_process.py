"""What a dead process leaves behind, in every table, is finished by the next start, and nothing is said twice.

The rows are written as a process leaves them that dies between two statements; the hard stops at the end are real.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from butlers.butler.specialist import Specialist
from butlers.channels.telegram import OWNER_CHAT
from butlers.contracts.route import RouteEnvelope
from butlers.daemon.places import Places
from butlers.ids import Uuid7Factory
from butlers.messenger.evidence import WireLog, path_of
from butlers.reliability.idempotency import caller_key
from butlers.storage.embedded import EmbeddedPostgres
from tests.scenarios.messenger_door import changed_roster
from tests.scenarios.switchboard_door import all_finished, route, row
from tests.system import RunningSystem, running_system

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEAD = "the dead worker"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> AsyncIterator[RunningSystem]:
    """Leases are short, the queue is small, and nobody is waited for at a stop."""
    directory = tmp_path_factory.mktemp("crash")
    impatience = (r"^\[butler\.security\]", "[butler.shutdown]\ntimeout_s = 0.1\n\n[butler.security]")
    for butler in ("general", "messenger"):
        changed_roster(directory, butler, impatience)
    roster = changed_roster(directory, "switchboard", impatience, ("queue_capacity = 100", "queue_capacity = 5"))
    async with running_system(
        directory, postgres_server, roster_dir=roster, lease_ttl_s=0.5, lease_renew_s=0.1
    ) as system:
        yield system


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def a_clean_transcript(running: RunningSystem) -> None:
    await running.control("POST", "/reset")


class Remains:
    """Writes what dead processes left; the system must be down."""

    def __init__(self, running: RunningSystem) -> None:
        self._running = running
        self._new_id = Uuid7Factory(running.clock)

    async def message(self, text: str, state: str = "accepted", **columns: Any) -> str:
        """A stored request, as it stood when its process died."""
        request_id, now = str(self._new_id()), self._running.clock.now()
        context = route(self._running, "any", text, request_id=request_id)["request_context"]
        values = {
            "request_id": UUID(request_id),
            "received_at": now,
            "request_context": context,
            "raw_payload": {"text": text},
            "normalized_text": text,
            "policy_tier": "default",
            "dedupe_key": f"key-{request_id}",
            "submitted_by": "tests",
            "lifecycle_state": state,
            "schema_version": "ingest.v1",
            "updated_at": now,
        }
        await self._insert(
            "switchboard.message_inbox", values | (self.claim() if state == "progress" else {}) | columns
        )
        return request_id

    async def routed(self, butler: str, text: str, state: str, request_id: str | None = None, **columns: Any) -> str:
        """Routed work, accepted or under way."""
        request_id, now = request_id or str(self._new_id()), self._running.clock.now()
        envelope = route(self._running, butler, text, request_id=request_id)
        values = {
            "id": uuid4(),
            "request_id": UUID(request_id),
            "subrequest_id": UUID(envelope["subrequest"]["subrequest_id"]),
            "segment_id": "s1",
            "envelope": envelope,
            "lifecycle_state": state,
            "created_at": now,
            "updated_at": now,
        }
        claim = self.claim() | {"claimed_at": now} if state == "processing" else {}
        await self._insert(f"{butler}.route_inbox", values | claim | columns)
        return request_id

    async def sending(self, butler: str, answer: str, request_id: str) -> UUID:
        """A delivery whose attempt has begun and has no outcome; returns the attempt."""
        now, delivery_id, attempt_id = self._running.clock.now(), self._new_id(), self._new_id()
        delivery = {"intent": "send", "channel": "telegram", "message": answer}
        values = {
            "id": delivery_id,
            "idempotency_key": caller_key(
                request_id=request_id,
                origin_butler=butler,
                intent="send",
                channel="telegram",
                target_identity=OWNER_CHAT,
                idempotency_key=f"{request_id}:s1:answer",
            ),
            "request_id": UUID(request_id),
            "origin_butler": butler,
            "channel": "telegram",
            "intent": "send",
            "target_identity": OWNER_CHAT,
            "ordering_key": f"telegram:{OWNER_CHAT}",
            "message": f"[{butler}] {answer}",
            "envelope": {"schema_version": "notify.v1", "origin_butler": butler, "delivery": delivery},
            "status": "in_progress",
            "next_attempt_at": now,
            "created_at": now,
            "updated_at": now,
        }
        await self._insert("messenger.delivery_requests", values | self.claim())
        attempt = {"id": attempt_id, "delivery_id": delivery_id, "attempt_number": 1, "worker": DEAD, "started_at": now}
        await self._insert("messenger.delivery_attempts", attempt)
        return attempt_id

    def claim(self, *, left_s: float = -1.0, attempts: int = 1) -> dict[str, Any]:
        """A dead worker's claim, run out unless said otherwise."""
        expires = self._running.clock.now() + timedelta(seconds=left_s)
        return {"claim_token": uuid4(), "claimed_by": DEAD, "lease_expires_at": expires, "attempts": attempts}

    async def _insert(self, table: str, values: dict[str, Any]) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        await self._running.database.execute(
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", *values.values()
        )


def decided(butler: str, text: str) -> dict[str, Any]:
    """A routing decision that was stored before the crash."""
    segment = {"segment_id": "s1", "butler": butler, "start": 0, "end": len(text), "confidence": 1.0, "rationale": "-"}
    return {"routing_output": {"router": "local", "segments": [segment], "why": "-"}}


async def ended(running: RunningSystem, request_id: str, state: str) -> dict[str, Any]:
    trace = await running.finished(request_id)
    assert trace["lifecycle_state"] == state, trace["lifecycle_error"]
    return trace


# --- Switchboard's own rows ------------------------------------------------------------------------------------------


async def test_accepted_and_abandoned_requests_are_finished_after_a_start(running: RunningSystem) -> None:
    await running.stop()
    remains = Remains(running)
    text = "I paid the ferry"
    requests = [
        await remains.message("stored and never begun"),
        await remains.message("begun and left", "progress"),
        await remains.message("begun just now", "progress", **remains.claim(left_s=1.2)),
        await remains.message(text, "progress", **decided("travel", text)),  # routing anew would say finance
    ]
    await running.start()

    traces = [await ended(running, request_id, "parsed") for request_id in requests]
    assert [trace["ingress"]["attempts"] for trace in traces] == [1, 2, 2, 2]
    assert sorted(await running.answers()) == [
        "[general] Noted: begun and left",
        "[general] Noted: begun just now",
        "[general] Noted: stored and never begun",
        "[travel] Noted: I paid the ferry",
    ]


async def test_more_requests_than_the_queue_holds_are_all_recovered(running: RunningSystem) -> None:
    await running.stop()
    remains = Remains(running)
    for number in range(30):
        await remains.message(f"box {number}")
    await running.start()
    await all_finished(running)
    assert sorted(await running.answers()) == sorted(f"[general] Noted: box {number}" for number in range(30))


async def test_a_request_that_kills_its_workers_is_given_up(running: RunningSystem) -> None:
    await running.stop()
    remains = Remains(running)
    last_chance = await remains.message("the third one got it", "progress", **remains.claim(attempts=2))
    poison = await remains.message("nobody got it", "progress", **remains.claim(attempts=3))
    await running.start()

    await ended(running, last_chance, "parsed")
    trace = await ended(running, poison, "errored")
    assert trace["lifecycle_error"]["class"] == "internal_error"
    assert trace["lifecycle_error"]["retryable"] is False
    assert trace["lifecycle_error"]["message"] == (
        "quarantined after 3 attempts that did not end; the last time: the process that worked on it ended"
    )
    assert await running.answers() == ["[general] Noted: the third one got it"]


# --- a butler's rows -------------------------------------------------------------------------------------------------


@pytest.mark.scenario("S3-063")
async def test_route_inbox_lifecycle(running: RunningSystem) -> None:
    await running.control("POST", "/faults", {"method": "sendMessage", "kind": "delay", "seconds": 0.3})
    live = (await running.ingest("my gym bill"))["request_id"]

    async def processing() -> bool:
        states = "SELECT lifecycle_state FROM finance.route_inbox WHERE request_id = $1"
        return bool(await running.database.fetchval(states, UUID(live)) == "processing")

    await running.until(processing)
    await ended(running, live, "parsed")
    assert (await row(running, "finance.route_inbox", live))["lifecycle_state"] == "processed"

    await running.stop()
    remains = Remains(running)
    accepted = await remains.routed("health", "accepted only", "accepted")
    abandoned = await remains.routed("health", "left half way", "processing")
    held = await remains.routed("health", "held by the dead", "processing", **remains.claim(left_s=1.2))
    poison = await remains.routed("health", "deadly", "processing", **remains.claim(attempts=3))
    await running.start()

    async def all_over() -> bool:
        unfinished = "SELECT count(*) FROM health.route_inbox WHERE lifecycle_state IN ('accepted', 'processing')"
        return bool(await running.database.fetchval(unfinished) == 0)

    await running.until(all_over)
    for request_id, state in ((accepted, "processed"), (abandoned, "processed"), (held, "processed")):
        assert (await row(running, "health.route_inbox", request_id))["lifecycle_state"] == state
    errored = await row(running, "health.route_inbox", poison)
    assert (errored["lifecycle_state"], errored["attempts"]) == ("errored", 4)
    assert errored["response"]["error"]["class"] == "internal_error"
    assert sorted(await running.answers())[1:] == [
        "[health] Noted: accepted only",
        "[health] Noted: held by the dead",
        "[health] Noted: left half way",
    ]


async def test_poisonous_work_of_a_butler_ends_its_request_visibly(running: RunningSystem) -> None:
    await running.stop()
    remains = Remains(running)
    text = "three butlers died over me"
    request_id = await remains.message(text, "progress", **decided("health", text))
    await remains.routed("health", text, "processing", request_id, **remains.claim(attempts=3))
    await running.start()

    trace = await ended(running, request_id, "errored")
    assert trace["lifecycle_error"]["class"] == "internal_error"
    assert "quarantined after 3 attempts" in trace["lifecycle_error"]["message"]
    [hop] = trace["butlers"]["health"]["route_inbox"]
    assert hop["lifecycle_state"] == "errored"
    [dispatch] = trace["routing"]["dispatches"]
    assert (dispatch["success"], dispatch["error_class"]) == (False, "internal_error")
    assert await running.answers() == []


# --- all the way down ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bytes_left", "evidence"), [(False, "whole"), (True, "whole"), (True, "cut"), (True, "emptied"), (True, "gone")]
)
async def test_a_crash_in_the_middle_of_a_delivery(running: RunningSystem, bytes_left: bool, evidence: str) -> None:
    """Every hop had begun. With whole evidence that no bytes left, the message is sent; otherwise never again."""
    await running.stop()
    remains = Remains(running)
    text = "my flight is at nine"
    request_id = await remains.message(text, "progress", **decided("travel", text))
    await remains.routed("travel", text, "processing", request_id)
    attempt_id = await remains.sending("travel", f"Noted: {text}", request_id)
    directory = Places(running.settings.data_dir).wire_logs
    wire = WireLog(directory, DEAD)
    before = path_of(directory, DEAD).read_bytes().index(b"\0")
    if bytes_left:
        wire.leaving(attempt_id)
    wire.close(keep=True)
    if evidence == "gone":
        path_of(directory, DEAD).unlink()
    elif evidence != "whole":
        os.truncate(path_of(directory, DEAD), before if evidence == "cut" else 0)
    await running.start()

    trace = await ended(running, request_id, "parsed")
    [delivery] = trace["deliveries"]
    assert delivery["status"] == ("uncertain" if bytes_left else "delivered")
    assert await running.answers() == ([] if bytes_left else [f"[travel] Noted: {text}"])


async def test_requests_in_flight_at_a_hard_stop_are_each_answered_once(running: RunningSystem) -> None:
    texts = [f"parcel {number}" for number in range(40)]
    await asyncio.gather(*(running.ingest(text) for text in texts))
    await running.until(running.answers)
    await running.stop()
    left = "SELECT count(*) FROM switchboard.message_inbox WHERE lifecycle_state IN ('accepted', 'progress')"
    assert await running.database.fetchval(left) > 0
    await running.start()
    await all_finished(running)

    answers = await running.answers()
    uncertain = await running.database.fetch(
        "SELECT message FROM messenger.delivery_requests WHERE status = 'uncertain' AND message LIKE '%parcel%'"
    )
    heard_or_doubtful = {*answers, *(delivery["message"] for delivery in uncertain)}
    assert len(answers) == len(set(answers))
    assert heard_or_doubtful == {f"[general] Noted: {text}" for text in texts}
    assert len(uncertain) <= 1  # one delivery at a time goes to one chat
    states = await running.database.fetch(
        "SELECT DISTINCT lifecycle_state FROM switchboard.message_inbox WHERE normalized_text LIKE 'parcel%'"
    )
    assert [state["lifecycle_state"] for state in states] == ["parsed"]


async def test_a_stop_is_no_death(running: RunningSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle four times, which would be one death too many."""
    begun, handle = asyncio.Event(), Specialist.handle

    async def slow(_self: Specialist, _envelope: RouteEnvelope) -> dict[str, Any]:
        begun.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(Specialist, "handle", slow)
    await running.restart()
    request_id = (await running.ingest("what a day"))["request_id"]
    for _ in range(4):
        async with asyncio.timeout(30):
            await begun.wait()
        await running.stop()
        message = await row(running, "switchboard.message_inbox", request_id)
        routed = await row(running, "general.route_inbox", request_id)
        assert (message["lifecycle_state"], message["attempts"]) == ("progress", 0)
        assert (routed["lifecycle_state"], routed["attempts"]) == ("processing", 0)
        begun.clear()
        await running.start()
    await running.stop()
    monkeypatch.setattr(Specialist, "handle", handle)
    await running.start()
    trace = await ended(running, request_id, "parsed")
    assert trace["ingress"]["attempts"] == 1


async def test_a_patient_stop_finishes_what_is_in_hand(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> None:
    async with running_system(tmp_path_factory.mktemp("patient"), postgres_server) as patient:
        await patient.control("POST", "/faults", {"method": "sendMessage", "kind": "delay", "seconds": 0.3})
        await patient.ingest("one last thing")

        async def in_hand() -> bool:
            return bool(await patient.database.fetchval("SELECT count(*) FROM general.route_inbox"))

        await patient.until(in_hand)
        await patient.stop()
        assert await patient.answers() == ["[general] Noted: one last thing"]
        state = await patient.database.fetchval("SELECT lifecycle_state FROM switchboard.message_inbox")
        assert state == "parsed"
