"""A small chaos run with real processes, and the judgement that all such runs rest on."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from benchmarks.chaos import ground_truth
from benchmarks.chaos.assessment import Assessment, Attempt, Kill, Row, assess, percentile
from benchmarks.chaos.caller import Caller, Unanswered
from benchmarks.chaos.messages import make_requests, number_in
from benchmarks.chaos.report import Plan, make_report

REPOSITORY = Path(__file__).parents[3]
T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.timeout(240)
def test_killed_again_and_again_nothing_is_lost_doubled_or_stuck(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "messenger", "--kills", "2", "--messages", "100"]
    completed = subprocess.run(
        [*command, "--seed", "7", "--keep", str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY, timeout=220
    )
    [line] = completed.stdout.splitlines()
    report = json.loads(line)
    # How fast it recovers is judged by scripts/chaos: beside other tests a start alone may take that long.
    goals = {name: reached for name, reached in report["goals"].items() if name != "recovery_p99_s"}
    assert goals == dict.fromkeys(goals, True), completed.stderr
    assert report["passed"] == (completed.returncode == 0) == all(report["goals"].values())
    assert (report["messages"], report["kills"]) == (100, 2)
    assert (report["lost"], report["duplicates"], report["stuck"]) == (0, 0, 0)
    assert report["submissions"] > report["messages"]  # the caller had to ask again, and did
    assert report["recoveries"] > 0  # a kill found something open


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def attempt(started: float, completed: float | None, certainty: str | None) -> Attempt:
    return Attempt(
        started_at=at(started), completed_at=None if completed is None else at(completed), certainty=certainty
    )


def row(status: str, *attempts: Attempt, number: int = 1, channel: str = "telegram", settled: bool = False) -> Row:
    return Row(
        number=number, delivery_id=f"d{number}", channel=channel, status=status, attempts=attempts, settled=settled
    )


def verdict_on(*rows: Row, **given: Any) -> Assessment:
    everything: dict[str, Any] = {"accepted": {1: {"d1"}}, "received": {}, "kills": [], "surfaced": frozenset()}
    return assess(rows=rows, **everything | given)


SENT = attempt(0, 1, "sent")
DOUBT = attempt(0, 1, "uncertain")
NO_RIG: Any = None  # nothing of it is used
PLAN = Plan(kills=0, messages=1, seed=1)
CALLER = Caller(rig=NO_RIG, new_id=uuid4, accepted={1: {"d1"}})


def test_accepted_without_a_row_is_lost() -> None:
    assert verdict_on().lost == [1]


def test_delivered_by_the_row_and_not_received_is_lost() -> None:
    assert verdict_on(row("delivered", SENT)).lost == [1]
    assert verdict_on(row("delivered", SENT), received={1: ["chat"]}).lost == []


def test_a_certain_no_about_something_received_is_false() -> None:
    failed = row("failed", attempt(0, 1, "not_sent"))
    assert verdict_on(failed, received={1: ["chat"]}).false == [1]
    assert verdict_on(failed).false == []


@pytest.mark.parametrize("status", ["failed", "dead_lettered", "expired"])
def test_an_earlier_doubt_does_not_excuse_a_false_no(status: str) -> None:
    refused = row(status, DOUBT, attempt(2, 3, "not_sent"))
    assert verdict_on(refused, received={1: ["chat"]}).false == [1]
    assert verdict_on(row("uncertain", DOUBT), received={1: ["chat"]}).false == []


def test_received_twice_is_a_duplicate_unless_there_was_doubt() -> None:
    assert verdict_on(row("delivered", SENT), received={1: ["chat", "chat"]}).duplicates == [1]
    doubted = verdict_on(row("delivered", DOUBT, SENT), received={1: ["chat", "chat"]})
    assert (doubted.duplicates, doubted.duplicates_uncertain) == ([], [1])


def test_a_mail_sent_again_must_be_the_same_mail() -> None:
    mail = row("delivered", DOUBT, SENT, channel="email")
    assert verdict_on(mail, received={1: ["<a>", "<a>"]}).duplicates_uncertain == [1]
    assert verdict_on(mail, received={1: ["<a>", "<b>"]}).duplicates == [1]


def test_two_rows_for_one_key_are_a_duplicate() -> None:
    assert verdict_on(row("delivered", SENT), row("failed"), received={1: ["chat"]}).duplicates == [1]


def test_open_at_the_end_is_stuck() -> None:
    assert verdict_on(row("awaiting_retry", attempt(0, 1, "not_sent"))).stuck == [1]


def test_doubt_must_be_surfaced() -> None:
    hidden = verdict_on(row("uncertain", DOUBT))
    assert (hidden.uncertain, hidden.uncertain_surfaced) == ([1], [])
    assert verdict_on(row("uncertain", DOUBT), surfaced=frozenset({"d1"})).uncertain_surfaced == [1]
    settled = verdict_on(row("delivered", DOUBT, SENT), received={1: ["chat"]})
    assert (settled.uncertain, settled.uncertain_surfaced) == ([1], [1])


@pytest.mark.parametrize("status", ["failed", "dead_lettered", "expired", "awaiting_retry"])
def test_a_doubt_is_not_surfaced_by_any_other_end(status: str) -> None:
    forgotten = verdict_on(row(status, DOUBT))
    assert (forgotten.uncertain, forgotten.uncertain_surfaced) == ([1], [])
    report = make_report(PLAN, CALLER, [], forgotten, faults=0, duration_s=1)
    assert (report["goals"]["uncertain_surfaced"], report["passed"]) == (False, False)
    assert verdict_on(row(status, DOUBT, settled=True)).uncertain_surfaced == [1]


def test_a_false_no_fails_the_run() -> None:
    false = verdict_on(row("failed", DOUBT, settled=True), received={1: ["chat"]})
    report = make_report(PLAN, CALLER, [], false, faults=0, duration_s=1)
    assert (report["false"], report["goals"]["lost"], report["passed"]) == (1, False, False)
    well = make_report(
        PLAN, CALLER, [], verdict_on(row("delivered", SENT), received={1: ["chat"]}), faults=0, duration_s=1
    )
    assert well["passed"] is True


async def test_the_door_shows_what_is_uncertain_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: dict[Any, dict[str, Any]] = {
        None: {"deliveries": [{"id": "d1"}], "next_cursor": "2"},
        "2": {"deliveries": [{"id": "d2"}]},
    }

    async def answer(_rig: Any, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        assert (tool, arguments["status"]) == ("messenger_delivery_search", "uncertain")
        return pages[arguments.get("cursor")]

    monkeypatch.setattr(ground_truth, "call_tool", answer)
    assert await ground_truth.surfaced(NO_RIG) == {"d1", "d2"}


@pytest.mark.parametrize("answer", [Unanswered("no"), {"status": "error", "error": {"class": "internal_error"}}])
async def test_a_door_that_does_not_answer_shows_nothing(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """What the rows say is no answer: the operator could not see it."""

    async def silent(*_asked: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ground_truth, "call_tool", silent)
    assert await ground_truth.surfaced(NO_RIG) == frozenset()


def recovery(*attempts: Attempt, kills: tuple[float, ...] = (10,), due: float = 0) -> list[float]:
    hit = [Kill(at=at(moment), waiting={"d1": at(due)}) for moment in kills]
    return [found.seconds for found in verdict_on(row("delivered", *attempts), kills=hit).recoveries]


def test_recovery_counts_from_the_kill_to_the_next_attempt_that_ends() -> None:
    assert recovery(attempt(9, 12, "not_sent"), attempt(12, 13, "sent")) == [3]
    assert recovery(attempt(9, 12, "uncertain")) == [2]


def test_recovery_counts_from_when_a_retry_was_due() -> None:
    assert recovery(attempt(8, 9, "not_sent"), attempt(15, 16, "sent"), due=14) == [2]


def test_a_kill_that_comes_too_soon_takes_over_the_measurement() -> None:
    assert recovery(attempt(14, 15, "sent"), kills=(10, 12)) == [3]
    assert recovery(attempt(22, 23, "sent"), kills=(10, 20)) == [13, 3]


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([3.0], 0.99)) == (50, 99, 3)
    assert percentile([], 0.5) is None


def test_every_request_names_its_number_where_the_provider_shows_it() -> None:
    requests = make_requests(300, dice=random.Random(1), new_id=uuid4, now=T0)
    assert [number_in(request.notify["delivery"]["message"]) for request in requests] == list(range(300))
    assert {request.channel for request in requests} == {"telegram", "email"}
    assert {request.notify["delivery"]["intent"] for request in requests} == {"send", "reply"}
    assert len({request.key for request in requests}) == 300
