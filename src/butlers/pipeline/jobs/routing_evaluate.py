"""`routing-evaluate`: what another version of the router makes of stored messages, before it decides about new ones."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from butlers.contracts.envelope import invalid
from butlers.pipeline.job import Job, JobContext, JobResult, Window
from butlers.pipeline.jobs.routing_quality import decisions_of, messages_of, settled, store
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables.routing import (
    BUTLER_REGISTRY,
    MESSAGES,
    ROUTING_EVALUATION_CHANGES,
    ROUTING_EVALUATIONS,
)
from butlers.pipeline.transforms.routing_evaluation import VERSION, Candidate, changes, choices, evaluation, questions
from butlers.pipeline.transforms.routing_quality import EVERY, emptied, number
from butlers.roster import load_roster
from butlers.switchboard.config import RoutingSection
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing import model as models

SHIPPED = files("butlers.switchboard.routing") / "routing.bin"
ARGUMENTS = {
    "model": "a trained model file; default: the one that is shipped",
    "roster": "a folder with [routing] and the butlers; default: the registry, and [routing] without anything in it",
    "confidence_threshold": "in place of the one of [routing]",
    "samples": "request ids kept per change; default 20",
    "max_regression": "by how much fewer corrected messages may be right; default 0",
    "max_fallback_rise": "by how much the share of fallbacks may rise; default 0.05",
    "min_agreement": "the least share of decisions that stay as they are; default 0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What a version must hold to be good enough."""

    max_regression: float
    max_fallback_rise: float
    min_agreement: float

    @classmethod
    def read(cls, arguments: Mapping[str, str]) -> Self:
        return cls(
            max_regression=number("max_regression", arguments.get("max_regression", "0")),
            max_fallback_rise=number("max_fallback_rise", arguments.get("max_fallback_rise", "0.05")),
            min_agreement=number("min_agreement", arguments.get("min_agreement", "0")),
        )

    def misses(self, row: Row) -> list[str]:
        """What the figures over everything fall short of."""
        regression = (row["stored_accuracy"] or 0.0) - (row["candidate_accuracy"] or 0.0)
        rise = row["candidate_fallback_rate"] - row["stored_fallback_rate"]
        missed = {
            "max_regression": regression > self.max_regression,
            "max_fallback_rise": rise > self.max_fallback_rise,
            "min_agreement": row["agreement"] < self.min_agreement,
        }
        return [name for name, is_missed in missed.items() if is_missed]


def run(context: JobContext) -> JobResult:
    demands, samples = Demands.read(context.arguments), _samples(context.arguments)
    candidate = candidate_of(context)
    # Kept: asking the router again for each of the three results would cost as much again each time.
    answered = choices(_questions(context), candidate).persist()
    try:
        figures = settled(evaluation(answered))
        named = {"candidate": candidate.name}
        written = store(context, figures, ROUTING_EVALUATIONS, gone=emptied(ROUTING_EVALUATIONS), **named)
        gone = emptied(ROUTING_EVALUATION_CHANGES) | {"samples": sf.lit("[]")}
        matrix = settled(changes(answered, samples=samples))
        written += store(context, matrix, ROUTING_EVALUATION_CHANGES, gone=gone, **named)
        return _result(candidate, figures, answered, demands, written)
    finally:
        answered.unpersist()


def candidate_of(context: JobContext) -> Candidate:
    """The version to try, as the arguments name it; read here, so that executors need no files."""
    file, roster = context.arguments.get("model"), context.arguments.get("roster")
    data = _read(Path(file)) if file else SHIPPED.read_bytes()
    version = _version(data)
    settings, butlers = _from_roster(Path(roster)) if roster else (RoutingSection(), _registered(context))
    if (threshold := context.arguments.get("confidence_threshold")) is not None:
        settings = _with_threshold(settings, number("confidence_threshold", threshold))
    return Candidate(model=data, model_version=version, settings=settings.model_dump_json(), butlers=tuple(butlers))


def _questions(context: JobContext) -> DataFrame:
    columns = ["request_id", "request_context", "normalized_text", "pinned_target", "source_channel"]
    table = MESSAGES.within(context.schemas.switchboard)
    messages = read_table(context.spark, context.dsn, table, columns=columns, window=context.window)
    stored = decisions_of(context, messages_of(context, context.window), since=context.window.start)
    return questions(stored, messages)


def _result(candidate: Candidate, figures: DataFrame, answered: DataFrame, demands: Demands, written: int) -> JobResult:
    whole = figures.where(sf.col("router") == EVERY).first()
    if whole is None:
        return JobResult(rows_in=0, rows_out=written, details={"candidate": candidate.name, "messages": 0})
    missed = demands.misses(whole)
    # A time of this run and this machine: told, and not stored among what is the same each time.
    p95 = answered.agg(sf.percentile("decision_ms", 0.95).alias("p95")).collect()[0]["p95"]
    told = {name: value for name, value in whole.asDict().items() if name not in VERSION}
    return JobResult(
        rows_in=whole["messages"],
        rows_out=written,
        satisfied=not missed,
        details={"candidate": candidate.name, **told, "decision_p95_ms": round(p95, 3), "missed": missed},
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise invalid("model", f"cannot be read: {error.strerror}") from None


def _version(data: bytes) -> str:
    try:
        return models.load(data).version
    except (zlib.error, ValueError, LookupError):
        raise invalid("model", "is no routing model of this version of the program") from None


def _from_roster(folder: Path) -> tuple[RoutingSection, list[RegisteredButler]]:
    roster = load_roster(folder)
    if "switchboard" not in roster:
        raise invalid("roster", "has no switchboard, so there is no [routing]")
    butlers = [
        _butler(name, config.butler.description, config.butler.registry.triggers) for name, config in roster.items()
    ]
    return roster["switchboard"].routing, butlers


def _registered(context: JobContext) -> list[RegisteredButler]:
    """Everybody on record, as if all were up: who was away at some moment says nothing about a version."""
    rows = read_table(context.spark, context.dsn, BUTLER_REGISTRY.within(context.schemas.switchboard)).collect()
    if not rows:
        raise invalid("roster", "nobody has registered here, so say which butlers there are")
    found = [(row["name"], row["description"], json.loads(row["triggers"])) for row in rows]
    return [_butler(*card) for card in sorted(found)]


def _butler(name: str, description: str, triggers: list[str]) -> RegisteredButler:
    return RegisteredButler(
        name=name,
        eligibility_state="active",
        triggers=tuple(triggers),
        capabilities=("route.execute",),
        description=description,
    )


def _with_threshold(settings: RoutingSection, threshold: float) -> RoutingSection:
    if threshold > 1:
        raise invalid("confidence_threshold", "must not be more than 1")
    return settings.model_copy(update={"confidence_threshold": threshold})


def _samples(arguments: Mapping[str, str]) -> int:
    return int(number("samples", arguments.get("samples", "20")))


def check(_window: Window, arguments: Mapping[str, str]) -> None:
    Demands.read(arguments)
    _samples(arguments)


JOB = Job(
    name="routing-evaluate",
    about="what another version of the router would change, on stored messages",
    run=run,
    check=check,
    arguments=ARGUMENTS,
)
