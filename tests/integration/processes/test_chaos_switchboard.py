"""A small chaos run against Switchboard with real processes, and the judgement that all such runs rest on."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from benchmarks.chaos.messages import number_in
from benchmarks.chaos.report import Plan
from benchmarks.chaos.switchboard.arrivals import batches, envelope, make_arrivals
from benchmarks.chaos.switchboard.assessment import Assessment, Entry, Evidence, Heard, Kill, Row, assess
from benchmarks.chaos.switchboard.callers import Callers
from benchmarks.chaos.switchboard.gates import Gate, gates
from benchmarks.chaos.switchboard.report import make_report

from butlers.clock import SystemClock
from butlers.contracts.ingest import IngestEnvelope

REPOSITORY = Path(__file__).parents[3]
T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.timeout(300)
def test_killed_again_and_again_nothing_is_lost_done_twice_or_stuck(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "switchboard", "--kills", "2", "--messages", "80"]
    completed = subprocess.run(
        [*command, "--seed", "7", "--keep", str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY, timeout=280
    )
    [line] = completed.stdout.splitlines() or [completed.stderr]
    report = json.loads(line)
    assert report["goals"] == dict.fromkeys(report["goals"], True), completed.stderr
    assert (completed.returncode, report["passed"]) == (0, True)
    assert (report["messages"], report["kills"]) == (80, 2)
    assert (report["lost"], report["processed_twice"], report["stuck"]) == (0, 0, 0)
    assert report["recognised"] >= report["repeats"] > 0  # what came again was known
    assert report["recoveries"] > 0  # a kill found something in hand


FINANCE = ("s1", "finance")
ANSWER = "Noted: I paid the bill chaos-1"
HEARD = Heard(number=1, text=f"[finance] {ANSWER}")
DONE = Entry(butler="finance", request_id="r1", segment_id="s1", answer=ANSWER)
PARSED = Row(number=1, request_id="r1", state="parsed", parts=frozenset({FINANCE}))
NO_RIG: Any = None  # nothing of it is used


def verdict_on(*rows: Row, **given: Any) -> Assessment:
    everything: dict[str, Any] = {
        "accepted": {1: {"r1"}},
        "posted": (),
        "entries": [DONE],
        "ends": Counter({"r1": 1}),
        "heard": [HEARD],
    }
    return assess(Evidence(rows=rows, **everything | given))


def test_what_was_done_once_and_heard_once_is_well() -> None:
    assert verdict_on(PARSED) == Assessment()


@pytest.mark.parametrize("told", [{"accepted": {1: {"r1"}}}, {"accepted": {}, "posted": [1]}])
def test_accepted_or_written_without_a_row_is_lost(told: dict[str, Any]) -> None:
    assert verdict_on(entries=[], heard=[], **told).lost == [1]


@pytest.mark.parametrize(
    "missing", [{"entries": []}, {"heard": []}, {"entries": [replace(DONE, answer=None)]}, {"entries": [], "heard": []}]
)
def test_parsed_and_not_done_or_not_heard_is_lost(missing: dict[str, Any]) -> None:
    assert verdict_on(PARSED, **missing).lost == [1]


def test_every_part_has_to_be_heard() -> None:
    both = replace(PARSED, parts=frozenset({FINANCE, ("s2", "health")}))
    second = Entry(butler="health", request_id="r1", segment_id="s2", answer="Noted: my pulse chaos-1")
    assert verdict_on(both, entries=[DONE, second]).lost == [1]
    heard = [HEARD, Heard(number=1, text="[health] Noted: my\npulse chaos-1")]
    assert verdict_on(both, entries=[DONE, second], heard=heard) == Assessment()


def test_heard_twice_is_processed_twice() -> None:
    assert verdict_on(PARSED, heard=[HEARD, HEARD]).twice == {1: "answered twice"}


def test_one_event_with_two_requests_is_processed_twice() -> None:
    other = replace(PARSED, request_id="r2", state="errored", parts=frozenset(), letter=True)
    assert verdict_on(PARSED, other).twice == {1: "2 requests"}
    assert verdict_on(PARSED, accepted={1: {"r1", "r2"}}).twice == {1: "2 requests"}


def test_two_ends_of_a_request_are_processed_twice() -> None:
    assert verdict_on(PARSED, ends=Counter({"r1": 2})).twice == {1: "ended 2 times"}


def test_a_part_done_by_two_butlers_is_processed_twice() -> None:
    by_another = replace(DONE, butler="general")
    assert verdict_on(PARSED, entries=[DONE, by_another]).twice == {1: "one part done by two butlers"}
    assert 1 in verdict_on(PARSED, entries=[DONE, replace(by_another, segment_id="s9")]).twice


@pytest.mark.parametrize("state", ["accepted", "progress"])
def test_not_ended_is_stuck(state: str) -> None:
    assert verdict_on(replace(PARSED, state=state)).stuck == [1]


def test_an_error_needs_a_letter() -> None:
    failed = replace(PARSED, state="errored", error="away")
    assert verdict_on(failed).unexplained == [1]
    explained = verdict_on(replace(failed, letter=True))
    assert (explained.unexplained, explained.errored, explained.lost) == ([], {1: "away"}, [])


def thread(*numbers: int, butler: str = "finance") -> list[Row]:
    parts = frozenset({("s1", butler)})
    return [Row(number=n, request_id=f"r{n}", state="parsed", parts=parts, thread="chat") for n in numbers]


def order_of(*heard: int, rows: list[Row], written: dict[int, int] | None = None) -> tuple[list[int], list[int]]:
    answers = [Heard(number=number, text="") for number in heard]
    assessment = verdict_on(*rows, heard=answers, written=written or {})
    return assessment.out_of_order, assessment.overtaken


def test_answers_of_one_butler_in_one_thread_keep_the_order() -> None:
    assert order_of(1, 2, 3, rows=thread(1, 2, 3)) == ([], [])
    assert order_of(2, 1, 3, rows=thread(1, 2, 3)) == ([1], [])
    assert order_of(2, 1, 3, rows=thread(1, 2, 3), written={1: 7, 2: 5, 3: 8}) == ([], [])


def test_another_butlers_answer_may_come_first() -> None:
    rows = [*thread(1), *thread(2, butler="health")]
    assert order_of(2, 1, rows=rows) == ([], [1])


def test_recovery_counts_from_the_last_kill_that_hit() -> None:
    ended = replace(PARSED, ended_at=T0 + timedelta(seconds=30))
    kills = [
        Kill(at=T0 + timedelta(seconds=s), in_hand=frozenset({hit})) for s, hit in ((5, "r1"), (10, "r1"), (20, "r2"))
    ]
    assert verdict_on(ended, kills=kills).recoveries == [20.0]


@pytest.mark.parametrize(
    ("assessment", "missed"),
    [
        (Assessment(lost=[1]), "lost"),
        (Assessment(twice={1: "how"}), "processed_twice"),
        (Assessment(stuck=[1]), "stuck"),
        (Assessment(out_of_order=[1]), "out_of_order"),
        (Assessment(unexplained=[1]), "unexplained"),
    ],
)
def test_each_goal_can_be_missed(assessment: Assessment, missed: str) -> None:
    assert _report(Assessment())["passed"] is True
    report = _report(assessment)
    assert ([name for name, reached in report["goals"].items() if not reached], report["passed"]) == ([missed], False)
    assert _report(Assessment(), settled_after_s=None)["goals"]["stuck"] is False


def _report(assessment: Assessment, settled_after_s: float | None = 1.0) -> dict[str, Any]:
    callers = Callers(rig=NO_RIG, door=Gate(target=0, clock=SystemClock()), accepted={1: {"r1"}})
    plan = Plan(kills=0, messages=1, seed=1)
    return make_report(plan, callers, [], [], assessment, faults={}, settled_after_s=settled_after_s, duration_s=1)


def test_arrivals_are_of_every_kind_and_name_their_number() -> None:
    arrivals = make_arrivals(300, dice=random.Random(1))
    assert [number_in(arrival.text) for arrival in arrivals] == list(range(1, 301))
    assert {arrival.channel for arrival in arrivals} == {"telegram", "email", "api"}
    over_http = [arrival for arrival in arrivals if arrival.channel != "telegram"]
    assert all(IngestEnvelope.parse(envelope(arrival, T0)) for arrival in over_http)
    bundled = [arrival for batch in batches(arrivals, dice=random.Random(1)) for arrival in batch]
    assert bundled == [arrival for arrival in arrivals if arrival.in_batch] != []


@asynccontextmanager
async def a_gate() -> AsyncIterator[tuple[Gate, list[bytes]]]:
    """A gate in front of a server that answers everything well and remembers it."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            asked.append(data)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, gates({"finance": server.sockets[0].getsockname()[1]}, SystemClock()) as made:
        yield made["finance"], asked


async def ask(gate: Gate) -> int | None:
    """The status of one call through the gate; None when there was no answer."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        try:
            return (await client.post(f"http://127.0.0.1:{gate.port}/", content=b"x")).status_code
        except httpx2.HTTPError:
            return None


async def test_a_gate_passes_on_and_strikes_one_call() -> None:
    async with a_gate() as (gate, asked):
        assert await ask(gate) == 200
        for fault, status, came_through in (("error", 502, False), ("dropped", None, False), ("lost", None, True)):
            asked.clear()
            gate.faults.append((fault, 0.0))  # type: ignore[arg-type]
            assert (await ask(gate), bool(asked)) == (status, came_through), fault
            assert await ask(gate) == 200
        gate.faults.append(("slow", 0.05))
        assert await ask(gate) == 200


async def test_nobody_is_there_while_a_gate_is_away() -> None:
    async with a_gate() as (gate, asked):
        gate.go_away(60.0)
        assert (await ask(gate), asked) == (None, [])
        gate.go_away(0.0)
        assert await ask(gate) == 200
