"""Switchboard's sections of butler.toml: who gets a message, how its parts are dispatched, and what may be spent.

rule     hard policy: what must, or must never, go where; stands above everything that guesses
plan     how the parts of one message depend on each other
tier     what a request of one policy tier may take: time, calls, tokens
llm      the model that is asked when the local classifier is not sure, and the version that is tried beside it
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Literal

from pydantic import Field, field_validator, model_validator

from butlers.butler.config import Section
from butlers.reliability.circuit_breaker import BreakerPolicy

PolicyTier = Literal["default", "interactive", "high_priority"]
Overflow = Literal["shed", "defer", "reject"]


class RuleSection(Section):
    """What every given condition of applies to goes to `target`, and never to those in `never`."""

    name: str = Field(min_length=1, description="shown by `butlers why`")
    channel: str | None = Field(default=None, description="the source channel")
    sender: str | None = Field(default=None, description="the sender's identity, * stands for any characters")
    endpoint: str | None = Field(default=None, description="the receiving bot or mailbox, * stands for any characters")
    words: list[str] = Field(default=[], description="one of these words or phrases stands in the text")
    target: str | None = Field(default=None, description="the butler that gets the whole message")
    never: list[str] = Field(default=[], description="butlers that do not get it, whoever suggests them")

    @model_validator(mode="after")
    def _check_rule(self) -> RuleSection:
        if not (self.channel or self.sender or self.endpoint or self.words):
            raise ValueError("needs a condition: channel, sender, endpoint or words")
        if (self.target is None) == (not self.never):
            raise ValueError("needs either target or never")
        return self


class PlanNodeSection(Section):
    butler: str = Field(min_length=1, description="the target this is about")
    depends_on: list[str] = Field(default=[], description="butlers of the same plan that come first")
    run_if: Literal["success", "completed", "always"] = Field(
        default="success", description="what those must have come to; always: whatever became of them"
    )
    required: bool = Field(default=True, description="false: its failure does not fail the request")
    arbitration_group: str | None = Field(default=None, description="whose results are alternatives to each other")
    arbitration_priority: int = Field(default=0, description="the highest wins within the group")


class PlanSection(Section):
    """How a message for all of these butlers is dispatched."""

    butlers: list[str] = Field(min_length=2, description="the plan applies when these are the targets, in any order")
    mode: Literal["parallel", "ordered", "conditional"] = Field(
        default="parallel", description="all at once, one after the other, or by depends_on and run_if"
    )
    join: Literal["wait_for_all", "first_success"] = Field(
        default="wait_for_all", description="first_success: one good answer is enough"
    )
    abort: Literal["continue", "on_required_failure", "on_any_failure"] = Field(
        default="continue", description="which failure keeps what has not begun from beginning"
    )
    node: list[PlanNodeSection] = Field(default=[], description="what differs from the default, per butler")

    @model_validator(mode="after")
    def _nodes_are_known(self) -> PlanSection:
        names = [node.butler for node in self.node]
        if len(names) != len(set(names)) or not set(names) <= set(self.butlers):
            raise ValueError("a node must be one of the plan's butlers, each once")
        if any(not set(node.depends_on) <= set(self.butlers) - {node.butler} for node in self.node):
            raise ValueError("depends_on must name other butlers of the plan")
        return self

    @model_validator(mode="after")
    def _mode_fits(self) -> PlanSection:
        if self.mode == "parallel" and any(node.depends_on for node in self.node):
            raise ValueError("depends_on needs mode ordered or conditional")
        if self.mode != "conditional" and any(node.run_if != "success" for node in self.node):
            raise ValueError("run_if needs mode conditional")
        if self.join == "first_success" and self.abort != "continue":
            raise ValueError("abort needs join wait_for_all: after a failure the next one is to step in")
        return self

    @model_validator(mode="after")
    def _nobody_waits_for_himself(self) -> PlanSection:
        try:
            TopologicalSorter({node.butler: node.depends_on for node in self.node}).prepare()
        except CycleError as error:
            raise ValueError(f"depends_on goes round in a circle: {' -> '.join(error.args[1])}") from None
        return self


class CircuitSection(Section):
    """When a butler that cannot be reached is left alone for a while."""

    failure_threshold: int = Field(default=5, ge=1, description="calls in a row without an answer that open it")
    recovery_s: float = Field(default=30.0, gt=0, description="seconds before one call tries whether it is back")
    success_threshold: int = Field(default=1, ge=1, description="such calls that must be answered to close it")

    def policy(self) -> BreakerPolicy:
        return BreakerPolicy(
            failure_threshold=self.failure_threshold,
            recovery_timeout=self.recovery_s,
            success_threshold=self.success_threshold,
        )


class CanarySection(Section):
    """A version of prompt and model that a share of the requests gets, until it proves worse."""

    share: float = Field(gt=0, lt=1, description="of the requests that ask the model at all")
    prompt_version: str | None = Field(default=None, description="default: the same prompt")
    model: str | None = Field(default=None, description="default: the same model")
    max_failure_rate: float = Field(default=0.1, gt=0, le=1, description="more than this, and it is rolled back")
    min_requests: int = Field(default=20, ge=1, description="before it is judged")
    window_s: float = Field(default=86_400, gt=0, description="seconds of its record that it is judged by")


class LlmRouterSection(Section):
    enabled: bool = Field(default=True, description="ask the butler's runtime when unsure; it has to be an LLM")
    ask_below: float = Field(
        default=0.8, ge=0, le=1, description="the model is asked when the local classifier is less sure than this"
    )
    prompt_version: str = Field(default="triage-1", description="the prompt below skills/message-triage")
    timeout_s: float = Field(default=20.0, gt=0, description="seconds before the message goes to general")
    canary: CanarySection | None = Field(default=None)


class TierSection(Section):
    """What one request may take."""

    wall_clock_s: float | None = Field(default=None, gt=0, description="seconds of processing; default: no limit")
    max_invocations: int = Field(default=20, ge=1, description="calls of butlers and models, repeats included")
    max_tokens: int | None = Field(default=None, ge=1, description="tokens of all models together")
    attempts: int = Field(default=3, ge=1, le=10, description="calls of one target before it counts as failed")
    route_timeout_s: float | None = Field(default=None, gt=0, description="for one call; default: the butler's own")
    model: str | None = Field(default=None, description="the model that routes it; default: the runtime's")
    strict: bool = Field(default=False, description="true: the first failed part stops the others")


class TiersSection(Section):
    default: TierSection = TierSection()
    interactive: TierSection = TierSection()
    high_priority: TierSection = TierSection()


class RoutingSection(Section):
    confidence_threshold: float = Field(
        default=0.4, ge=0, le=1, description="less, and the model is asked or the message goes to general"
    )
    follow_up_s: float = Field(
        default=900,
        ge=0,
        description="seconds in which a chat line that says nothing itself goes where the last one went",
    )
    decision_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="seconds for deciding who gets a message, the model included; then it goes to general",
    )
    rule: list[RuleSection] = Field(default=[])
    plan: list[PlanSection] = Field(default=[])
    circuit: CircuitSection = CircuitSection()
    llm: LlmRouterSection = LlmRouterSection()
    tier: TiersSection = TiersSection()

    @field_validator("rule")
    @classmethod
    def _names_are_unique(cls, value: list[RuleSection]) -> list[RuleSection]:
        if len({rule.name for rule in value}) != len(value):
            raise ValueError("rule names must be unique")
        return value


class LifecycleSection(Section):
    """What the author of a message sees of its life, where the channel can show it."""

    enabled: bool = Field(default=True, description="false: no reactions and no error replies")
    progress: str = Field(default="👀", description="the reaction to a message that is being worked on")
    parsed: str = Field(default="👍", description="the reaction to a message that was dealt with")
    errored: str = Field(default="👾", description="the reaction to a message that failed")
    error_replies: bool = Field(default=True, description="say in words what failed and what can be done")


class OverflowSection(Section):
    default: Overflow = Field(default="defer", description="defer: stored, and done when there is room")
    interactive: Overflow = Field(default="reject", description="reject: refused at once, with when to try again")
    high_priority: Overflow = Field(default="defer", description="shed: stored as errored and never done")


class AdmissionSection(Section):
    """What the door does when more comes in than goes out. Of both limits every channel has a share of its own."""

    max_waiting: int = Field(default=2_000, ge=8, description="messages that wait before overflow begins, all channels")
    max_stored: int = Field(default=100_000, ge=8, description="messages that wait before everything is refused")
    retry_after_s: float = Field(default=5.0, gt=0, description="told to whoever is refused")
    overflow: OverflowSection = OverflowSection()

    @model_validator(mode="after")
    def _defers_somewhere(self) -> AdmissionSection:
        if self.max_stored < self.max_waiting:
            raise ValueError("max_stored must not be less than max_waiting")
        return self


class BufferSection(Section):
    """Switchboard's DurableBuffer (seed 003)."""

    queue_capacity: int = Field(default=100, ge=1, description="messages that wait in memory, per tier")
    worker_count: int = Field(default=3, ge=1, description="messages processed at one time")
    scanner_interval_s: float = Field(default=30, gt=0, description="seconds between looks for messages left behind")
    scanner_grace_s: float = Field(default=10, ge=0, description="seconds a message may wait before it counts as left")
    scanner_batch_size: int = Field(default=50, ge=1, description="messages one look brings back")
    max_consecutive_same_tier: int = Field(
        default=10, ge=1, description="messages of one tier in a row before a lower tier gets its turn"
    )
