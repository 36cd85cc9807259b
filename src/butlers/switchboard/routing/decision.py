"""Who gets a message: the question, the steps that answer it, and the decision as it is stored and dispatched.

    hard rules  >  the thread it belongs to  >  local classifier  >  LLM, when configured and needed  >  general

Each step either decides or leaves it to the next; what none is sure of goes whole to `general`. Who is eligible, and
whom a rule forbids, is settled before any step guesses, so that no guess can reach further than that. All steps
together have `decision_timeout_s`; a message over which they take longer goes whole to `general`, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol
from uuid import UUID

from butlers.butler.runtime import Turn
from butlers.errors import ClassifiedError, RoutingError
from butlers.switchboard.config import RoutingSection, RuleSection
from butlers.switchboard.registry import FALLBACK, NOT_ROUTABLE, RegisteredButler
from butlers.switchboard.routing.features import holds_one_of
from butlers.telemetry import get_logger

Router = Literal["policy", "thread", "local", "llm", "fallback"]
FallbackReason = Literal["ambiguous", "classification_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the original text and the butler it goes to; offsets keep the author's words."""

    segment_id: str
    butler: str
    start: int
    end: int
    confidence: float
    rationale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    router: Router
    segments: tuple[Segment, ...]
    why: str
    fallback_reason: FallbackReason | None = None
    prompt_version: str | None = None
    model_version: str | None = None  # of the local classifier or of the LLM, whichever was asked last
    tokens: int | None = None  # that the model took to decide; None: it was not asked, or did not say

    @property
    def confidence(self) -> float:
        """Of the least certain segment."""
        return min((segment.confidence for segment in self.segments), default=0.0)

    @classmethod
    def from_wire(cls, stored: Mapping[str, Any]) -> Decision:
        """Also what an earlier version of this program has stored, or a later one."""
        known = {field.name for field in fields(cls)} & stored.keys()
        segments = tuple(Segment(**segment) for segment in stored["segments"])
        return cls(**{name: stored[name] for name in known} | {"segments": segments})


def whole(
    text: str,
    butler: str,
    *,
    router: Router,
    confidence: float,
    why: str,
    fallback_reason: FallbackReason | None = None,
) -> Decision:
    """The whole text to one butler."""
    segment = Segment(
        segment_id="s1", butler=butler, start=0, end=len(text), confidence=round(confidence, 3), rationale=why
    )
    return Decision(router=router, segments=(segment,), why=why, fallback_reason=fallback_reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuestion:
    text: str
    channel: str = "api"
    sender: str = ""
    endpoint: str = ""
    thread: str | None = None
    pinned_target: str | None = None
    policy_tier: str = "default"
    request_id: UUID | None = None  # None: nothing is stored, the caller only asks
    received_at: datetime | None = None
    raw_payload: Mapping[str, Any] | None = None
    history: Sequence[Turn] = ()  # what was said before, oldest first: context, never routed


log = get_logger("butlers.routing")

MOST_SURE = 0.99  # a guess is never certain: a threshold above it has the model asked every time


class LocalRouter(Protocol):
    def classify(self, text: str, butlers: Sequence[RegisteredButler]) -> Decision:
        """Spans of the text for some of these butlers; without segments: it has no idea."""


class ThreadRouter(Protocol):
    async def decide(self, question: RoutingQuestion, names: frozenset[str]) -> Decision | None:
        """The butler that follows from the message's place in a conversation."""


class LlmRouter(Protocol):
    async def route(self, question: RoutingQuestion, butlers: Sequence[RegisteredButler]) -> Decision:
        """Spans and butlers that a model picked, checked. Raises a `ClassifiedError` when there is no usable answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    settings: RoutingSection
    local: LocalRouter
    threads: ThreadRouter | None = None  # none: nothing is on record
    llm: LlmRouter | None = None

    async def decide(self, question: RoutingQuestion, butlers: Sequence[RegisteredButler]) -> Decision:
        """Always a decision, or a `RoutingError` when no butler may take the message."""
        rules = [rule for rule in self.settings.rule if rule_applies(rule, question)]
        barred = frozenset(name for rule in rules for name in rule.never)  # whichever step suggests them
        if (decision := forced_decision(question, rules, butlers, barred)) is not None:
            return decision
        open_to = [butler for butler in butlers if butler.takes_routes and butler.name not in barred]
        names = frozenset(butler.name for butler in open_to)
        limit_s = self.settings.decision_timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._guess(question, open_to, names)
        except TimeoutError:
            if not limit.expired():
                raise
        log.warning("deciding took too long", request_id=question.request_id)
        return _to_general(question, names, f"deciding took longer than {limit_s:g} s", "classification_failed")

    async def _guess(
        self, question: RoutingQuestion, open_to: Sequence[RegisteredButler], names: frozenset[str]
    ) -> Decision:
        if self.threads is not None:
            decision = await self.threads.decide(question, names)
            if decision is not None:
                return decision
        answer = self.local.classify(question.text, open_to)
        enough = self.settings.confidence_threshold
        if self.llm is not None:  # where a model can be asked, the local classifier has to be surer
            enough = max(enough, self.settings.llm.ask_below)
        if answer.segments and min(answer.confidence, MOST_SURE) >= enough:
            return answer
        if self.llm is not None:
            return await self._asked(self.llm, question, open_to, names)
        return replace(_to_general(question, names, answer.why, "ambiguous"), model_version=answer.model_version)

    async def _asked(
        self, llm: LlmRouter, question: RoutingQuestion, butlers: Sequence[RegisteredButler], names: frozenset[str]
    ) -> Decision:
        try:
            answer = await llm.route(question, butlers)
        except ClassifiedError as error:
            log.warning(
                "the model gave no decision", request_id=question.request_id, error=error, error_class=error.error_class
            )
            decision = _to_general(question, names, f"the model was asked: {error.message}", "classification_failed")
            asked = error.partial or {}
            return replace(
                decision, prompt_version=asked.get("prompt_version"), model_version=asked.get("model_version")
            )
        if answer.confidence >= self.settings.confidence_threshold:
            return answer
        return replace(
            _to_general(question, names, "the model is not sure either", "ambiguous"),
            prompt_version=answer.prompt_version,
            model_version=answer.model_version,
            tokens=answer.tokens,
        )


def forced_decision(
    question: RoutingQuestion,
    rules: Iterable[RuleSection],  # that apply to the message
    butlers: Sequence[RegisteredButler],
    barred: frozenset[str],
) -> Decision | None:
    """The target that the source pinned, or that the first rule names; it takes the whole message, or none does."""
    if question.pinned_target is not None:
        target, why = question.pinned_target, "the source pinned the target"
    elif (rule := next((rule for rule in rules if rule.target), None)) is not None:
        target, why = str(rule.target), f"rule {rule.name!r}"
    else:
        return None
    if all(butler.name != target or not butler.takes_routes for butler in butlers):
        raise _takes_nothing(target, butlers, pinned=question.pinned_target is not None)
    if target in barred:
        raise RoutingError(f"a rule forbids {target!r} for this message, and {why} names it")
    return whole(question.text, target, router="policy", confidence=1.0, why=why)


def rule_applies(rule: RuleSection, question: RoutingQuestion) -> bool:
    """Whether every condition of the rule holds."""
    if rule.channel is not None and rule.channel != question.channel:
        return False
    if rule.sender is not None and not _like(question.sender, rule.sender):
        return False
    if rule.endpoint is not None and not _like(question.endpoint, rule.endpoint):
        return False
    return not rule.words or holds_one_of(question.text, rule.words)


def _like(value: str, pattern: str) -> bool:
    return fnmatchcase(value.casefold(), pattern.casefold().replace("[", "[[]"))


def _takes_nothing(name: str, butlers: Sequence[RegisteredButler], *, pinned: bool) -> RoutingError:
    if all(butler.name != name for butler in butlers):
        return RoutingError(f"no butler is called {name!r}")
    what = "the pinned target" if pinned else "the rule's target"
    # A door never takes requests; a butler that is away may come back.
    away = name not in NOT_ROUTABLE
    return RoutingError(f"{what} {name!r} takes no requests" + (" now" if away else ""), retryable=away and not pinned)


def _to_general(question: RoutingQuestion, names: frozenset[str], why: str, reason: FallbackReason) -> Decision:
    if FALLBACK not in names:
        raise RoutingError("no butler takes routes now", retryable=True)
    return whole(question.text, FALLBACK, router="fallback", confidence=0.0, why=why, fallback_reason=reason)
