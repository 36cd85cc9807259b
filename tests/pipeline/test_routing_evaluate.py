"""`routing-evaluate`: the router of the services on Spark, beside the decisions that are on record."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import Row, SparkSession

from butlers.errors import ValidationError
from butlers.pipeline.connection import transaction
from butlers.pipeline.job import JobContext, Window
from butlers.pipeline.jobs.routing_evaluate import (
    KNOWN,
    SHIPPED,
    Candidate,
    Demands,
    candidate_of,
    cascade_of,
    changes,
    choices,
    evaluation,
    label,
    run,
)
from butlers.pipeline.session import package_archive
from butlers.pipeline.sources.postgres import snapshots
from butlers.storage.embedded import EmbeddedPostgres
from butlers.switchboard.config import RoutingSection
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing import model as models
from butlers.switchboard.routing.decision import MOST_SURE, Decision, RoutingQuestion
from tests.database import cloned_database_uri
from tests.pipeline.routing_record import BUTLERS, MIGRATIONS, Record

START = datetime(2026, 3, 1, tzinfo=UTC)
WINDOW = Window(start=START, end=START + timedelta(days=1))
TEXTS = (
    "I paid the electricity bill, 94 euros",
    "My knee hurts since the run yesterday",
    "Book a flight to Lisbon on Friday",
    "It is Anna's birthday next week, she likes tea",
    "I paid the rent; also my knee hurts",
    "qwrtzp",
)
REGISTERED = tuple(
    RegisteredButler(name=name, eligibility_state="active", triggers=(), capabilities=("route.execute",))
    for name in sorted(BUTLERS)
)


def _candidate(data: bytes | None = None, **settings: Any) -> Candidate:
    data = data or SHIPPED.read_bytes()
    return Candidate(
        model=data,
        model_version=models.load(data).version,
        settings=RoutingSection(**settings).model_dump_json(),
        butlers=REGISTERED,
    )


def _decided(candidate: Candidate, text: str) -> Decision:
    return asyncio.run(cascade_of(candidate).decide(RoutingQuestion(text=text), candidate.butlers))


def _everything_to_health() -> bytes:
    shipped = models.load(SHIPPED.read_bytes())
    bias = [100.0 if name == "health" else -100.0 for name in models.CLASSES]
    header = {**shipped.header, "bias": bias, "version": "all-health"}
    return models.dump(header, shipped.weights, shipped.lexicon)


@pytest.fixture
async def dsn(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with cloned_database_uri(postgres_server, MIGRATIONS) as uri:
        with transaction(uri) as cursor:
            cursor.execute(
                "INSERT INTO switchboard.butler_registry (name, endpoint_url, transport, description, last_seen_at, "
                "registered_at, eligibility_updated_at) "
                "SELECT name, 'in-process', 'local', '', now(), now(), now() "
                "FROM jsonb_array_elements_text($1::text::jsonb) AS name",
                (json.dumps(BUTLERS),),
            )
        yield uri


def _context(spark: SparkSession | None, dsn: str = "", **arguments: str) -> JobContext:
    return JobContext(
        spark=spark,  # type: ignore[arg-type]  # not asked where there is none
        dsn=dsn,
        lake=Path(),
        run_id=uuid4(),
        window=WINDOW,
        arguments=arguments,
    )


def _stored(dsn: str, table: str) -> list[dict[str, Any]]:
    with transaction(dsn) as cursor:
        cursor.execute(f"SELECT *, xmin::text AS written_by FROM pipeline.{table}")
        return [dict(row) for row in cursor.fetch_arrow_table().to_pylist()]


def _record(candidate: Candidate) -> Record:
    """Decisions of the local router as it is now, and others that it had no part in."""
    record, at = Record(random=Random(3)), START
    for text in TEXTS:
        at += timedelta(minutes=1)
        decision = _decided(candidate, text)
        row = record.message(at, text)
        record.decide(row, (decision.router, decision.model_version, None), [s.butler for s in decision.segments])
        record.dispatch(row, 1)
    for version in (("thread", None, None), ("llm", "claude:big", "triage-1"), ("fallback", "claude:big", "triage-1")):
        record.decide(record.message(at, TEXTS[0]), version, ["travel"])
    wrong = record.message(at, TEXTS[0])
    record.decide(wrong, ("local", candidate.model_version, None), ["travel"])
    record.dispatch(wrong, 1, failing={"s1"})
    record.reroute(wrong, 9, "finance", was="errored")
    return record


@pytest.mark.heavy
@pytest.mark.timeout(600)  # on a busy machine
def test_the_router_as_it_is_agrees_with_its_record_and_corrects_what_a_person_did(spark: SparkSession, dsn: str):
    candidate = _candidate()
    record = _record(candidate)
    record.store(dsn)

    with snapshots():
        result = run(_context(spark, dsn, samples="5"))

    assert result.satisfied
    assert result.details["messages"] == len(TEXTS) + 1  # not what a thread or a model decided
    rows = {row["router"]: row for row in _stored(dsn, "routing_evaluations")}
    assert rows.keys() == {"*", "local", "fallback"}
    assert (rows["*"]["messages"], rows["*"]["agreed"]) == (len(TEXTS) + 1, len(TEXTS))
    assert rows["fallback"]["agreement"] == 1.0
    told = ("corrected", "stored_right", "candidate_right", "stored_accuracy", "candidate_accuracy")
    assert [rows["*"][name] for name in told] == [1, 0, 1, 0.0, 1.0]
    [change] = matrix = _stored(dsn, "routing_evaluation_changes")
    assert (change["stored_targets"], change["candidate_targets"], change["messages"]) == ("travel", "finance", 1)
    assert json.loads(change["samples"]) == [record.inbox[-1]["request_id"]]
    assert result.details["decision_p95_ms"] > 0

    with snapshots():
        run(_context(spark, dsn, samples="5"))
    again = {row["router"]: row for row in _stored(dsn, "routing_evaluations")}
    assert (again, _stored(dsn, "routing_evaluation_changes")) == (rows, matrix)


def test_another_model_and_another_threshold_show_what_they_would_change(spark: SparkSession):
    now = _candidate()
    stored = [_decided(now, text) for text in TEXTS]
    known = [
        (str(place), decision.router, "m", "", "finance" if place < 2 else None, _targets(decision))
        for place, decision in enumerate(stored)
    ]
    asked = spark.createDataFrame(
        [(*row, text, "api", "", "", None) for row, text in zip(known, TEXTS, strict=True)],
        ", ".join(f"{name} string" for name in (*KNOWN, "text", "channel", "sender", "endpoint", "pinned_target")),
    )

    moved = choices(asked, _candidate(_everything_to_health())).persist()
    [whole] = [row for row in evaluation(moved).collect() if row["router"] == "*"]
    expected: dict[str, list[str]] = {}
    for place, decision in enumerate(stored):
        if _targets(decision) != "health":
            expected.setdefault(_targets(decision), []).append(str(place))
    assert {row["stored_targets"]: json.loads(row["samples"]) for row in _to(moved, "health")} == expected
    assert whole["agreed"] == len(TEXTS) - sum(map(len, expected.values()))
    assert (whole["corrected"], whole["stored_right"], whole["candidate_right"]) == (2, 1, 0)
    assert Demands.read({"max_fallback_rise": "1"}).misses(whole) == ["max_regression"]
    assert Demands.read({"max_fallback_rise": "1", "max_regression": "0.5", "min_agreement": "0.9"}).misses(whole) == [
        "min_agreement"
    ]

    sure = [min(segment.confidence for segment in decision.segments) for decision in stored]
    threshold = sorted(sure)[2]
    surer = choices(asked, _candidate(confidence_threshold=threshold)).collect()
    fallen = {row["request_id"] for row in surer if row["candidate_router"] == "fallback"}
    assert fallen == {str(place) for place, confidence in enumerate(sure) if min(confidence, MOST_SURE) < threshold}
    assert len(fallen) >= 2


def _targets(decision: Decision) -> str:
    return label(segment.butler for segment in decision.segments)


def _to(moved: Any, target: str) -> Sequence[Row]:
    return [row for row in changes(moved, samples=10).collect() if row["candidate_targets"] == target]


def test_a_version_is_its_model_its_settings_and_its_butlers(tmp_path: Path):
    named = _candidate()
    assert named.name == _candidate().name
    assert cascade_of(named) is cascade_of(_candidate())  # as two tasks of one worker have it
    others = {_candidate(confidence_threshold=0.5).name, _candidate(_everything_to_health()).name}
    assert len(others | {named.name}) == 3
    nonsense = tmp_path / "nonsense.bin"
    nonsense.write_bytes(b"nonsense")
    for arguments, problem in (
        ({"model": str(nonsense)}, "model: is no routing model"),
        ({"model": str(tmp_path / "none.bin")}, "model: cannot be read"),
        ({"roster": "roster", "confidence_threshold": "2"}, "confidence_threshold: must not be more than 1"),
        ({"roster": "roster", "confidence_threshold": "x"}, "confidence_threshold: must be a number"),
    ):
        with pytest.raises(ValidationError, match=problem):
            candidate_of(_context(None, **arguments))
    from_roster = candidate_of(_context(None, roster="roster", confidence_threshold="0.7"))
    assert RoutingSection.model_validate_json(from_roster.settings).confidence_threshold == 0.7
    assert {butler.name for butler in from_roster.butlers} >= set(BUTLERS)


_ON_AN_EXECUTOR = """
import sys
sys.path.insert(0, sys.argv[1])
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import pandas as pd
from butlers.pipeline.jobs import routing_evaluate as place
from butlers.switchboard.routing.decision import Cascade
assert sys.argv[1] in place.__file__, place.__file__
candidate = place.Candidate(
    model=open(sys.argv[2], "rb").read(), model_version="m", settings="{}",
    butlers=tuple(place.RegisteredButler(name=name, eligibility_state="active", triggers=(),
                                         capabilities=("route.execute",)) for name in ("finance", "general")))
row = dict.fromkeys(place.KNOWN, "x") | {"text": "I paid the rent", "channel": "api", "sender": "", "endpoint": "",
                                         "pinned_target": None}
print(place._decided(pd.DataFrame([row]), candidate)["candidate_targets"][0])
"""


def test_an_executor_needs_the_archive_of_this_package_and_nothing_else_of_it(tmp_path: Path):
    model = tmp_path / "routing.bin"
    model.write_bytes(SHIPPED.read_bytes())
    archive = package_archive(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _ON_AN_EXECUTOR, str(archive), str(model)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == "finance", done.stderr
