"""Stored decisions beside those of another version of the router: what is asked, and what the answers come to.

Only what the local router decided can be compared: its own decisions, those of hard rules, and what it left to
`general`. What a thread or a model in the cloud decided stays as it is under any version of this router. A rule's
decision that a person corrected is left out, too: the reroute has overwritten whether the source pinned the target.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from butlers.clock import Clock, SystemClock
from butlers.errors import RoutingError
from butlers.pipeline.transforms.routing_quality import DIGITS, EVERY
from butlers.switchboard.config import RoutingSection
from butlers.switchboard.registry import RegisteredButler
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
    said, stored, candidate = sf.col("right_target"), sf.col("stored_targets"), sf.col("candidate_targets")
    return {
        "agreed": stored == candidate,
        "stored_fallbacks": sf.col("router") == "fallback",
        "candidate_fallbacks": sf.col("candidate_router") == "fallback",
        "corrected": said.isNotNull(),
        "stored_right": sf.coalesce(stored == said, sf.lit(False)),
        "candidate_right": sf.coalesce(candidate == said, sf.lit(False)),
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
