"""A record made up for the books: what a balanced day looks like, oddities included, and one fault of every kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from butlers.pipeline.job import Window
from butlers.pipeline.jobs.reconciliation import Record
from butlers.pipeline.lake.events import ATTEMPTS, DELIVERIES, RECEIPTS, REQUESTS, ROUTING, Event

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
WINDOW = Window(start=FIRST, end=FIRST + timedelta(days=2))
CLOSED = WINDOW.end + timedelta(minutes=30)  # the newest moment of the record
CUTOFF = CLOSED - timedelta(hours=1)
YOUNG = CUTOFF + timedelta(minutes=10)
MINUTE = timedelta(minutes=1)
EVENTS = (REQUESTS, ROUTING, DELIVERIES, ATTEMPTS, RECEIPTS)

Row = dict[str, Any]
SENT, FAILED, DOUBT, OPEN = ("sent", "sent"), ("failed", "not_sent"), ("failed", "uncertain"), (None, None)
ENDS = {"delivered": None, "failed": "validation_error", "dead_lettered": "timeout", "expired": "timeout"}
ENDS |= {"uncertain": "timeout"}


@dataclass(slots=True)
class Ledger:
    """Rows of the lake by event."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {event.name: [] for event in EVENTS})
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def id_at(self, moment: datetime) -> str:
        """As the services make them: ordered by time."""
        return f"{int(moment.timestamp()):012x}-7000-8000-{next(self._numbers):012x}"

    def request(
        self,
        at: datetime,
        *butlers: str,
        state: str = "parsed",
        answers: bool = True,
        logs: bool = True,
        parts: Sequence[Row] = (),
        **changes: Any,
    ) -> str:
        key, ended = self.id_at(at), at + MINUTE
        outcomes = [self._outcome(place, butler) for place, butler in enumerate(butlers)] + list(parts)
        closed = state in {"parsed", "errored"}
        row = {
            "request_id": key,
            "received_at": at,
            "updated_at": ended,
            "lifecycle_state": state,
            "attempts": 1,
            "final_state_at": ended if closed else None,
            "error_class": "routing_error" if state == "errored" else None,
            "outcomes": json.dumps(outcomes) if outcomes else None,
        }
        self._add(REQUESTS, row | changes)
        for outcome in outcomes:
            if logs and outcome["skipped"] is None:
                self.line(key, ended, **{name: outcome[name] for name in ("segment_id", "target_butler", "success")})
            if answers and outcome["success"]:
                self.delivery(at, request_id=key, origin_butler=outcome["target_butler"])
        return key

    def line(self, request_id: str, at: datetime, **values: Any) -> str:
        key = self.id_at(at)
        self._add(ROUTING, {"id": key, "request_id": request_id, "created_at": at} | values)
        return key

    def delivery(
        self,
        at: datetime,
        *tried: tuple[str | None, str | None],
        status: str = "delivered",
        receipts: Sequence[str] | None = None,
        **changes: Any,
    ) -> str:
        key, ends = self.id_at(at), at + MINUTE
        tried = tried or ((SENT,) if status == "delivered" else ())
        row = {
            "id": key,
            "created_at": at,
            "updated_at": ends,
            "next_attempt_at": at,
            "origin_butler": "general",
            "channel": "telegram",
            "intent": "reply",
            "status": status,
            "attempts": len(tried),
            "terminal_at": ends if status in ENDS else None,
            "terminal_error_class": ENDS.get(status),
            "key_digest": f"digest of {key}",
        }
        self._add(DELIVERIES, row | changes)
        for number, (outcome, certainty) in enumerate(tried, 1):
            self.attempt(key, number, at, outcome=outcome, certainty=certainty)
        for kind in ("sent",) * (SENT in tried) if receipts is None else receipts:
            self.receipt(key, ends, receipt_type=kind)
        return key

    def attempt(self, delivery_id: str, number: int, at: datetime, **values: Any) -> str:
        key = self.id_at(at)
        ended = at + MINUTE if values.get("outcome") else None
        row = {"id": key, "delivery_id": delivery_id, "attempt_number": number, "started_at": at, "completed_at": ended}
        self._add(ATTEMPTS, row | values)
        return key

    def receipt(self, delivery_id: str, at: datetime, *, receipt_type: str = "sent", part: int = 1) -> str:
        key = self.id_at(at)
        row = {"id": key, "delivery_id": delivery_id, "received_at": at, "receipt_type": receipt_type, "part": part}
        self._add(RECEIPTS, row)
        return key

    def _outcome(self, place: int, butler: str) -> Row:
        return part(f"s{place}", butler, success=True)

    def _add(self, event: Event, row: Row) -> None:
        unknown = row.keys() - set(event.schema.fieldNames())
        assert not unknown, f"{event.name} has no {unknown}"
        self.rows[event.name].append(dict.fromkeys(event.schema.fieldNames()) | {"change": next(self._numbers)} | row)

    def frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        return {
            event.name: spark.createDataFrame([tuple(row.values()) for row in self.rows[event.name]], event.schema)
            for event in EVENTS
        }

    def record(self, spark: SparkSession) -> Record:
        return Record(**self.frames(spark))


def part(segment_id: str, butler: str, *, success: bool, skipped: str | None = None) -> Row:
    return {"segment_id": segment_id, "target_butler": butler, "success": success, "skipped": skipped}


def write_balanced(ledger: Ledger, *, requests: int, seed: int) -> None:
    """Ordinary traffic of two days, and everything odd that is in order."""
    random = Random(seed)
    for _ in range(requests):
        at = FIRST + timedelta(seconds=random.randrange(int((CUTOFF - FIRST).total_seconds()) - 600))
        butlers = random.sample(["finance", "health", "general", "travel"], random.choice([1, 1, 1, 2]))
        if random.random() < 0.1:
            ledger.request(at, state="errored")
        else:
            ledger.request(at, *butlers)
        if random.random() < 0.2:
            ledger.delivery(at, FAILED, FAILED, SENT)
    _odd_requests(ledger, FIRST + timedelta(hours=3))
    _odd_deliveries(ledger, FIRST + timedelta(hours=5))
    _still_moving(ledger)


def _odd_requests(ledger: Ledger, at: datetime) -> None:
    ledger.request(at, state="errored", error_class="overload_rejected", final_state_at=at, updated_at=at)  # shed
    ledger.request(at, "health", state="errored", override_action="cancel")
    ledger.request(at, override_action="force_complete")
    ledger.request(at, "finance", not_before=at + MINUTE)  # was put off
    failed, left_out = part("s1", "health", success=False), part("s2", "travel", success=False, skipped="s1 failed")
    ledger.request(at, "general", state="errored", parts=[failed, left_out])
    ledger.request(at, "messenger", answers=False)
    tried_twice = ledger.request(at, "finance")
    ledger.line(tried_twice, at, segment_id="s0", target_butler="finance", success=False)


def _odd_deliveries(ledger: Ledger, at: datetime) -> None:
    for status in ("failed", "dead_lettered"):
        ledger.delivery(at, FAILED, status=status)
    ledger.delivery(at, status="expired")
    ledger.delivery(at, status="pending_approval")
    ledger.delivery(at, FAILED, status="failed", receipts=["sent", "bounced"])  # the first part of two, then no more
    ledger.delivery(at, FAILED, SENT, receipts=["sent", "delivered", "read", "bounced"])
    ledger.delivery(at, FAILED, status="delivered", receipts=["delivered"], settled_at=at)
    first = ledger.delivery(at, FAILED, status="dead_lettered")
    second = ledger.delivery(at + MINUTE, FAILED, status="dead_lettered", replay_of=first)
    ledger.delivery(at + 2 * MINUTE, SENT, replay_of=second)
    given_back = ledger.delivery(at, SENT)
    ledger.attempt(given_back, 2, at)
    ledger.delivery(at, SENT, status="delivered", attempts=1)
    ledger.attempt(ledger.rows["deliveries"][-1]["id"], 1, at, change=0)  # given back, and taken again under its number
    long_before = FIRST - timedelta(days=3)
    released = ledger.delivery(long_before, FAILED, SENT, updated_at=at)
    ledger.rows["attempts"][-1]["started_at"] = at
    ledger.rows["receipts"][-1]["received_at"] = at
    assert ledger.rows["attempts"][-1]["delivery_id"] == released
    forgotten = ledger.id_at(FIRST - timedelta(days=300))  # older than all that was read
    ledger.attempt(forgotten, 2, at, outcome="sent", certainty="sent")
    ledger.receipt(forgotten, at)
    ledger.line(forgotten, at, segment_id="s0", target_butler="health", success=True)
    ledger.delivery(at, SENT, replay_of=forgotten)


def _still_moving(ledger: Ledger) -> None:
    """What is on its way when the books are closed, or reached the lake in part."""
    ledger.request(YOUNG, state="accepted")
    ledger.request(YOUNG, "health", state="progress", updated_at=YOUNG, answers=False, logs=False)
    ledger.request(FIRST, state="accepted", override_action="retry", updated_at=YOUNG)
    ledger.request(FIRST, state="accepted", not_before=YOUNG)
    ledger.request(YOUNG, "finance", answers=False, logs=False, updated_at=CLOSED)
    ledger.line(ledger.id_at(YOUNG), YOUNG, segment_id="s0", target_butler="health", success=True)
    ledger.delivery(YOUNG, OPEN, status="in_progress", updated_at=YOUNG)
    ledger.delivery(YOUNG, status="delivered", attempts=1, receipts=[], updated_at=CLOSED)
    ledger.rows["attempts"].pop()
    ledger.delivery(FIRST, FAILED, status="awaiting_retry", next_attempt_at=CLOSED + timedelta(hours=1))
    ledger.attempt(ledger.id_at(YOUNG), 1, YOUNG)
    ledger.receipt(ledger.id_at(YOUNG), YOUNG)
    ledger.delivery(WINDOW.end + MINUTE, status="delivered", receipts=[])  # not of these days


def plant(ledger: Ledger) -> dict[str, str]:
    """One fault of every kind that a single event can have: rule -> the key it must be found under."""
    return {
        **_plant_requests(ledger, FIRST + timedelta(hours=7)),
        **_plant_deliveries(ledger, FIRST + timedelta(hours=9)),
    }


def _plant_requests(ledger: Ledger, at: datetime) -> dict[str, str]:
    unlogged, lost = ledger.request(at, "travel", logs=False), ledger.request(at, "travel", logs=False, attempts=2)
    return {
        "request-left-open": ledger.request(at, state="progress"),
        "request-end-untimed": ledger.request(at, "health", final_state_at=None),
        "request-error-mismatch": ledger.request(at, state="errored", error_class=None),
        "request-without-outcome": ledger.request(at),
        "dispatch-unlogged": unlogged,
        "dispatch-line-lost": lost,
        "answer-missing": ledger.request(at, "finance", answers=False),
        "routing-orphan": ledger.line(ledger.id_at(at), at, segment_id="s0", target_butler="health", success=True),
    }


def _plant_deliveries(ledger: Ledger, at: datetime) -> dict[str, str]:
    first = ledger.delivery(at, SENT)
    keyed = ledger.delivery(at, SENT, key_digest="once")
    twice = ledger.delivery(at + MINUTE, FAILED, status="failed", key_digest="once")
    again = ledger.delivery(at + MINUTE, SENT, key_digest="once")
    assert {keyed, twice, again} - {first}
    miscounted = ledger.delivery(at, FAILED, SENT)
    ledger.rows["attempts"][-2]["attempt_number"] = 3
    open_attempt = ledger.delivery(at, FAILED, OPEN, status="failed", attempts=2)
    assert ledger.rows["attempts"][-1]["delivery_id"] == open_attempt
    return {
        "attempt-left-open": ledger.rows["attempts"][-1]["id"],
        "delivery-left-open": ledger.delivery(at, FAILED, status="in_progress"),
        "delivery-overdue": ledger.delivery(at, FAILED, status="awaiting_retry"),
        "delivery-end-untimed": ledger.delivery(at, FAILED, status="failed", terminal_at=None),
        "delivery-error-missing": ledger.delivery(at, FAILED, status="failed", terminal_error_class=None),
        "delivered-unattempted": ledger.delivery(at, FAILED, status="delivered", receipts=["sent"]),
        "delivered-unreceipted": ledger.delivery(at, SENT, receipts=["bounced"]),
        "attempts-miscounted": miscounted,
        "attempt-orphan": ledger.attempt(ledger.id_at(at), 1, at, outcome="sent", certainty="sent"),
        "receipt-orphan": ledger.receipt(ledger.id_at(at), at),
        "key-sent-twice": again,
        "delivery-sent-twice": ledger.delivery(at, SENT, SENT),
        "replay-without-lineage": ledger.delivery(at, SENT, replay_of=ledger.id_at(at)),
        "delivery-in-doubt": ledger.delivery(at, DOUBT, status="uncertain"),
        "delivery-maybe-twice": ledger.delivery(at, DOUBT, SENT),
    }


def plant_second_of_family(ledger: Ledger) -> str:
    """The tenth of a line of replays was accepted, although the first delivery had been."""
    at = FIRST + timedelta(hours=11)
    above = ledger.delivery(at, SENT)
    for number in range(1, 10):
        above = ledger.delivery(at + number * MINUTE, FAILED, status="dead_lettered", replay_of=above)
    return ledger.delivery(at + 10 * MINUTE, SENT, replay_of=above)
