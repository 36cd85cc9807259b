"""What another version of the router makes of stored messages: the very code that decides online, on the executors.

    driver                                       executor, per Python worker
    model file, [routing], registry -> Candidate -> cascade, built once -> a decision per message

A version is the trained model (with its lexicon and its gate), the `[routing]` section of Switchboard's butler.toml and
the butlers with their trigger words. The thread and a model in the cloud are not asked: neither is another version of
this router. Texts come in and do not go out.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from butlers.butler.routing_config import RoutingSection
from butlers.clock import Clock, SystemClock
from butlers.errors import RoutingError
from butlers.switchboard.registry import RegisteredButler
from butlers.switchboard.routing.cascade import Cascade
from butlers.switchboard.routing.classifier import LocalClassifier
from butlers.switchboard.routing.decision import Decision, RoutingQuestion
from butlers.switchboard.routing.model import load

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

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
