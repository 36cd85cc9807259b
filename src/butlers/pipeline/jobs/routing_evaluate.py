"""`routing-evaluate`: what another version of the router makes of stored messages, before it decides about new ones.

Only what the local router decided can be compared: its own decisions, those of hard rules, and what it left to
`general`. What a thread or a model in the cloud decided stays as it is under any version of this router. A rule's
decision that a person corrected is left out, too: the reroute has overwritten whether the source pinned the target.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from butlers.clock import Clock, SystemClock
from butlers.contracts.envelope import invalid
from butlers.errors import RoutingError
from butlers.pipeline.job import Job, JobContext, JobResult, Window
from butlers.pipeline.jobs.routing_quality import (
    DIGITS,
    EVERY,
    decisions_of,
    emptied,
    messages_of,
    number,
    numbers,
    settled,
    store,
)
from butlers.pipeline.sources.postgres import read_table
from butlers.pipeline.tables.routing import (
    BUTLER_REGISTRY,
    MESSAGES,
    ROUTING_EVALUATION_CHANGES,
    ROUTING_EVALUATIONS,
)
from butlers.roster import load_roster
from butlers.switchboard.config import RoutingSection
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing import model as models
from butlers.switchboard.routing.classifier import LocalClassifier
from butlers.switchboard.routing.decision import Cascade, Decision, RoutingQuestion
from butlers.switchboard.routing.model import load

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

VERSION = ("router", "model_version", "prompt_version")
_KINDS: tuple[tuple[str, ...], ...] = ((), VERSION)
_COUNTS = ("agreed", "stored_fallbacks", "candidate_fallbacks", "corrected", "stored_right", "candidate_right")


def questions(decisions: DataFrame, messages: DataFrame) -> DataFrame:
    """What the router is asked about each message whose stored decision can be compared, and that decision."""
    rerouted = sf.col("right_target").isNotNull()
    local = sf.col("router").isin("local", "fallback") & (sf.col("prompt_version") == "")
    stored = decisions.where(local | ((sf.col("router") == "policy") & ~rerouted)).select(
        "request_id", *VERSION, "right_target", sf.concat_ws("+", "targets").alias("stored_targets")
    )
    context = sf.from_json(
        "request_context", "struct<source_sender_identity: string, source_endpoint_identity: string>"
    )
    asked = messages.select(
        "request_id",
        sf.col("normalized_text").alias("text"),
        sf.col("source_channel").alias("channel"),
        sf.coalesce(context["source_sender_identity"], sf.lit("")).alias("sender"),
        sf.coalesce(context["source_endpoint_identity"], sf.lit("")).alias("endpoint"),
        "pinned_target",
    )
    # A reroute pins the target; what the router was asked had no such pin.
    pinned = sf.when(rerouted, sf.lit(None)).otherwise(sf.col("pinned_target"))
    return asked.join(stored, on="request_id", how="inner").withColumn("pinned_target", pinned)


def evaluation(compared: DataFrame) -> DataFrame:
    """Figures over everything and per stored router and version."""
    kinds = [
        sf.struct(*((sf.col(name) if name in kind else sf.lit(EVERY)).alias(name) for name in VERSION))
        for kind in _KINDS
    ]
    flags = compared.select(
        sf.explode(sf.array(*kinds)).alias("slice"), *(flag.cast("long").alias(name) for name, flag in _flags().items())
    )
    counts = (
        flags.select("slice.*", *_COUNTS)
        .groupBy(*VERSION)
        .agg(sf.count("*").alias("messages"), *(sf.sum(name).alias(name) for name in _COUNTS))
    )
    return counts.select(
        *VERSION,
        "messages",
        *_COUNTS,
        _share("agreed", "messages").alias("agreement"),
        _share("stored_fallbacks", "messages").alias("stored_fallback_rate"),
        _share("candidate_fallbacks", "messages").alias("candidate_fallback_rate"),
        _share("stored_right", "corrected").alias("stored_accuracy"),
        _share("candidate_right", "corrected").alias("candidate_accuracy"),
    )


def changes(compared: DataFrame, *, samples: int) -> DataFrame:
    """From whom to whom, how often, and some requests to look at."""
    changed = compared.where(sf.col("stored_targets") != sf.col("candidate_targets"))
    grouped = changed.groupBy("stored_targets", "candidate_targets").agg(
        sf.count("*").alias("messages"), sf.slice(sf.sort_array(sf.collect_list("request_id")), 1, samples).alias("ids")
    )
    return grouped.select(
        "stored_targets",
        "candidate_targets",
        "messages",
        sf.to_json("ids").alias("samples"),
        sf.size("ids").alias("sampled"),
    )


def _flags() -> dict[str, Column]:
    right, stored, candidate = sf.col("right_target"), sf.col("stored_targets"), sf.col("candidate_targets")
    return {
        "agreed": stored == candidate,
        "stored_fallbacks": sf.col("router") == "fallback",
        "candidate_fallbacks": sf.col("candidate_router") == "fallback",
        "corrected": right.isNotNull(),
        "stored_right": sf.coalesce(stored == right, sf.lit(False)),
        "candidate_right": sf.coalesce(candidate == right, sf.lit(False)),
    }


def _share(part: str, whole: str) -> Column:
    return sf.round(sf.try_divide(sf.col(part), sf.col(whole)), DIGITS)


ASKED = ("text", "channel", "sender", "endpoint", "pinned_target")
KNOWN = ("request_id", "router", "model_version", "prompt_version", "right_target", "stored_targets")  # goes through
CHOSEN = {"candidate_router": "string", "candidate_targets": "string", "decision_ms": "double"}
NOBODY = ""  # targets of a message that nobody may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A version of the router, as it travels to the executors."""

    model: bytes  # the file
    model_version: str
    settings: str  # the `[routing]` section, as JSON
    butlers: tuple[RegisteredButler, ...]

    @property
    def name(self) -> str:
        """Two versions of one name decide alike."""
        rest = repr((self.settings, self.butlers)).encode()
        return f"{self.model_version}+{hashlib.sha256(self.model + rest).hexdigest()[:12]}"


def label(targets: Iterable[str]) -> str:
    """Targets as one word, the same whatever their order."""
    return "+".join(sorted(set(targets)))


def choices(questions: DataFrame, candidate: Candidate) -> DataFrame:
    """Each message's stored decision, and who would get it now."""

    def answered(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        return (_decided(batch, candidate) for batch in batches)

    schema = ", ".join([*(f"{name} string" for name in KNOWN), *(f"{name} {kind}" for name, kind in CHOSEN.items())])
    return questions.select(*KNOWN, *ASKED).mapInPandas(answered, schema)


@lru_cache(maxsize=2)
def cascade_of(candidate: Candidate) -> Cascade:
    """Once per Python worker, which serves many tasks: a model takes longer to load than a thousand messages."""
    settings = RoutingSection.model_validate_json(candidate.settings)
    return Cascade(settings=settings, local=LocalClassifier(load(candidate.model)))


def _decided(batch: pd.DataFrame, candidate: Candidate) -> pd.DataFrame:
    chosen = asyncio.run(_decide_all(batch, candidate, SystemClock()))
    columns = zip(*chosen, strict=True) if chosen else [()] * len(CHOSEN)
    return batch[list(KNOWN)].assign(**{name: list(column) for name, column in zip(CHOSEN, columns, strict=True)})


async def _decide_all(batch: pd.DataFrame, candidate: Candidate, clock: Clock) -> list[tuple[str, str, float]]:
    cascade, chosen = cascade_of(candidate), []
    for asked in batch[list(ASKED)].itertuples(index=False, name=None):
        question = RoutingQuestion(**dict(zip(ASKED, asked, strict=True)))
        started = clock.monotonic()
        router, targets = await _decide(cascade, question, candidate.butlers)
        chosen.append((router, targets, (clock.monotonic() - started) * 1000))
    return chosen


async def _decide(
    cascade: Cascade, question: RoutingQuestion, butlers: tuple[RegisteredButler, ...]
) -> tuple[str, str]:
    try:
        decision: Decision = await cascade.decide(question, butlers)
    except RoutingError:
        return "none", NOBODY
    return decision.router, label(segment.butler for segment in decision.segments)


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

    max_regression: float = 0
    max_fallback_rise: float = 0.05
    min_agreement: float = 0

    @classmethod
    def read(cls, arguments: Mapping[str, str]) -> Self:
        return cls(**numbers(arguments, *(field.name for field in fields(cls))))

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
    table = MESSAGES
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
    measured = {name: value for name, value in whole.asDict().items() if name not in VERSION}
    return JobResult(
        rows_in=whole["messages"],
        rows_out=written,
        satisfied=not missed,
        details={"candidate": candidate.name, **measured, "decision_p95_ms": round(p95, 3), "missed": missed},
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
    rows = read_table(context.spark, context.dsn, BUTLER_REGISTRY).collect()
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
JOBS = (JOB,)
