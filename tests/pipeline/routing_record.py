"""A made-up record of routing: what Switchboard would have left behind, with everything that happens to requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from butlers.pipeline.connection import transaction
from butlers.pipeline.tables.routing import ROUTING_ALERTS, SLICE
from butlers.storage.migrations import MigrationSet

MIGRATIONS = (
    MigrationSet(schema="switchboard", package="butlers.switchboard", component="switchboard"),
    MigrationSet(schema="pipeline", package="butlers.pipeline"),
)
BUTLERS = ("finance", "health", "travel", "relationship", "general")
VERSIONS = (  # router, model, prompt
    ("local", "local-1", None),
    ("local", "local-2", None),
    ("llm", "claude:big", "triage-1"),
    ("llm", "claude:big", "triage-2"),
    ("policy", None, None),
    ("thread", None, None),
    ("fallback", "local-1", None),
    ("fallback", "claude:big", "triage-1"),
)
Row = dict[str, Any]
_TIMES = {"received_at", "updated_at", "created_at", "performed_at"}


@dataclass
class Record:
    """Rows of the three tables, and how to add to them."""

    random: Random
    inbox: list[Row] = field(default_factory=list)
    log: list[Row] = field(default_factory=list)
    audit: list[Row] = field(default_factory=list)

    def new_id(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def message(self, at: datetime, text: str, *, channel: str = "telegram", **columns: Any) -> Row:
        row: Row = {
            "request_id": self.new_id(),
            "received_at": at,
            "request_context": {"source_sender_identity": "ann", "source_endpoint_identity": "bot"},
            "normalized_text": text,
            "pinned_target": None,
            "routing_output": None,
            "lifecycle_state": "parsed",
            "prompt_version": None,
            "model_version": None,
            "override": None,
            "source_channel": channel,
            "policy_tier": "default",
            "dedupe_key": "",
            "submitted_by": "test",
            "schema_version": "ingest.v1",
            "updated_at": at,
        }
        self.inbox.append(row | columns)
        return self.inbox[-1]

    def decide(self, row: Row, version: tuple[str, str | None, str | None], targets: Iterable[str]) -> None:
        router, model, prompt = version
        names, length = list(targets), len(row["normalized_text"])
        cuts = [length * place // len(names) for place in range(len(names) + 1)]
        segments = [
            {"segment_id": f"s{n + 1}", "butler": name, "start": cuts[n], "end": cuts[n + 1], "confidence": 0.9}
            for n, name in enumerate(names)
        ]
        row["routing_output"] = {
            "router": router,
            "model_version": model,
            "prompt_version": prompt,
            "segments": segments,
        }
        row["model_version"], row["prompt_version"] = model, prompt

    def dispatch(
        self, row: Row, minutes: float, *, failing: Iterable[str] = (), only: Iterable[str] | None = None
    ) -> None:
        """A line per part of the decision that stands."""
        decision, failed = row["routing_output"], set(failing)
        for segment in decision["segments"]:
            if only is None or segment["segment_id"] in only:
                self.line(row, minutes, segment["segment_id"], segment["butler"], segment["segment_id"] not in failed)

    def line(self, row: Row, minutes: float, segment_id: str, target: str, success: bool) -> None:
        decision = row["routing_output"]
        self.log.append(
            {
                "id": self.new_id(),
                "request_id": row["request_id"],
                "segment_id": segment_id,
                "source_channel": row["source_channel"],
                "target_butler": target,
                "success": success,
                "duration_ms": 5,
                "router": decision["router"],
                "prompt_version": decision["prompt_version"],
                "model_version": decision["model_version"],
                "created_at": row["received_at"] + timedelta(minutes=minutes),
            }
        )

    def reroute(self, row: Row, minutes: float, target: str, *, outcome: str = "success", **details: Any) -> None:
        """As `operators` does it: the audit's line, and the decision overwritten."""
        self.audit.append(
            {
                "id": self.new_id(),
                "action": "manual_reroute",
                "request_id": row["request_id"],
                "operator": "op",
                "reason": "wrong",
                "payload": {"target": target},
                "outcome": outcome,
                "outcome_details": {"target": target, **details},
                "performed_at": row["received_at"] + timedelta(minutes=minutes),
            }
        )
        if outcome == "rejected":
            return
        versions = row["model_version"], row["prompt_version"]
        self.decide(row, ("policy", None, None), [target])
        row["routing_output"]["segments"][0]["segment_id"] = "s1~1"
        row["model_version"], row["prompt_version"] = versions
        row["override"] = {"action": "manual_reroute", "target": target, "round": 1}
        row["pinned_target"], row["lifecycle_state"] = target, "parsed"
        self.dispatch(row, minutes + 1)

    def store(self, dsn: str) -> None:
        """Into the real tables; any months the inbox needs are made."""
        months = sorted({row["received_at"].replace(day=1, hour=0, minute=0, second=0) for row in self.inbox})
        with transaction(dsn) as cursor:
            for month in months:
                end = (month + timedelta(days=32)).replace(day=1)
                cursor.execute(
                    f"CREATE TABLE IF NOT EXISTS switchboard.message_inbox_{month:%Y_%m} PARTITION OF "
                    f"switchboard.message_inbox FOR VALUES FROM ('{month:%Y-%m-%d}+00') TO ('{end:%Y-%m-%d}+00')"
                )
            for table, rows in (
                ("message_inbox", self.inbox),
                ("routing_log", self.log),
                ("operator_audit_log", self.audit),
            ):
                if rows:
                    cursor.execute(_insertion(table, rows[0]), (json.dumps(rows, default=datetime.isoformat),))


def _insertion(table: str, row: Mapping[str, Any]) -> str:
    names = ", ".join(row)
    return (
        f"INSERT INTO switchboard.{table} ({names}) SELECT {names} "
        f"FROM jsonb_populate_recordset(NULL::switchboard.{table}, $1::text::jsonb)"
    )


def made_up(seed: int, days: Iterable[tuple[datetime, int]]) -> Record:
    """Some requests on each of these days, of every kind of life."""
    record = Record(random=Random(seed))
    for day, count in days:
        for _ in range(count):
            _live(record, day + timedelta(seconds=record.random.randrange(86_000)))
    return record


def _live(record: Record, at: datetime) -> None:
    random = record.random
    channel = random.choices(("telegram", "email", "api", "whatsapp"), (50, 30, 19, 1))[0]
    row = record.message(at, f"text {random.randrange(60)}", channel=channel)
    kind = random.choices(tuple(_LIVES), tuple(weight for weight, _ in _LIVES.values()))[0]
    version = random.choice(VERSIONS)
    targets = ["general"] if version[0] == "fallback" else random.choices(BUTLERS, k=random.choice((1, 1, 1, 1, 2, 3)))
    if at.month == 3 and version[0] != "fallback" and random.random() < 0.7:
        targets[0] = "travel"  # a drift
    if kind not in ("undecided", "waiting"):
        record.decide(row, version, targets)
    _LIVES[kind][1](record, row)


def _well(record: Record, row: Row) -> None:
    record.dispatch(row, 1)


def _put_off(record: Record, row: Row) -> None:
    record.dispatch(row, 1, failing={"s1"})
    record.dispatch(row, 9, only={"s1"})


def _decided_anew(record: Record, row: Row) -> None:
    """First elsewhere, and in more parts, one of which nobody took up again."""
    record.line(row, 1, "s1", "health", False)
    record.line(row, 1, "s9", "finance", False)
    record.dispatch(row, 7)


def _partly(record: Record, row: Row) -> None:
    record.dispatch(row, 1, failing={"s2"})
    row["lifecycle_state"] = record.random.choice(("parsed", "errored"))


def _badly(record: Record, row: Row) -> None:
    record.dispatch(row, 1, failing={"s1", "s2", "s3"})
    row["lifecycle_state"] = "errored"


def _undecided(_record: Record, row: Row) -> None:
    row["lifecycle_state"] = "errored"


def _waiting(_record: Record, row: Row) -> None:
    row["lifecycle_state"] = "accepted"


def _under_way(record: Record, row: Row) -> None:
    record.dispatch(row, 1, failing={"s1"})
    row["lifecycle_state"] = "progress"


def _cancelled(record: Record, row: Row) -> None:
    record.dispatch(row, 1, failing={"s1"})
    row["lifecycle_state"], row["override"] = "errored", {"action": "abort"}


def _corrected(record: Record, row: Row) -> None:
    record.dispatch(row, 1, failing={"s1"})
    record.reroute(row, 60, record.random.choice(BUTLERS), was="errored")


def _corrected_twice(record: Record, row: Row) -> None:
    record.dispatch(row, 1)
    record.reroute(row, 60, "health", was="progress")
    record.reroute(row, 90, "finance", was="errored")


def _corrected_in_hand(record: Record, row: Row) -> None:
    names = sorted({segment["butler"] for segment in row["routing_output"]["segments"]})
    record.reroute(row, 3, record.random.choice(BUTLERS), outcome="partial", was="progress", handed_to=names)


def _sent_before_a_decision(record: Record, row: Row) -> None:
    row["model_version"] = row["prompt_version"] = None
    record.reroute(row, 0.5, "travel", was="accepted")


def _refused(record: Record, row: Row) -> None:
    record.dispatch(row, 1)
    record.reroute(row, 60, "health", outcome="rejected", problem="has ended well")


def _retried(record: Record, row: Row) -> None:
    record.dispatch(row, 1, failing={"s1"})
    row["routing_output"]["segments"][0]["segment_id"] = "s1~1"
    row["override"] = {"action": "retry", "round": 1}
    record.dispatch(row, 30, only={"s1~1"})


def _forced(_record: Record, row: Row) -> None:
    row["override"] = {"action": "force_complete"}


_LIVES = {
    "well": (60, _well),
    "put_off": (5, _put_off),
    "decided_anew": (5, _decided_anew),
    "partly": (5, _partly),
    "badly": (4, _badly),
    "undecided": (2, _undecided),
    "waiting": (2, _waiting),
    "under_way": (2, _under_way),
    "cancelled": (2, _cancelled),
    "corrected": (5, _corrected),
    "corrected_twice": (2, _corrected_twice),
    "corrected_in_hand": (2, _corrected_in_hand),
    "sent_before_a_decision": (1, _sent_before_a_decision),
    "refused": (1, _refused),
    "retried": (3, _retried),
    "forced": (1, _forced),
}


def stored(dsn: str, table: str) -> list[dict[str, Any]]:
    with transaction(dsn) as cursor:
        cursor.execute(f"SELECT *, xmin::text AS written_by FROM pipeline.{table}")
        return [dict(row) for row in cursor.fetch_arrow_table().to_pylist()]


def by_slice(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    found = {tuple(row[name] for name in SLICE): row for row in rows}
    assert len(found) == len(rows)
    return found


def alerts(dsn: str, state: str = "firing") -> set[tuple[str, ...]]:
    rows = stored(dsn, ROUTING_ALERTS.name)
    return {(row["metric"], *(row[name] for name in SLICE)) for row in rows if row["state"] == state}
