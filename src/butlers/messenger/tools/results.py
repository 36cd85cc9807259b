"""What Messenger's operational tools answer, as MCP clients are told. Moments and ids are text."""

from __future__ import annotations

from pydantic import Field

from butlers.butler.results import Page
from butlers.butler.surface import Result, Row

_ID = "the delivery, by its id"


class DeliveryResult(Result):
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="where the delivery stands")
    channel: str = Field(description="the channel it leaves by")
    attempts: int = Field(description="how often it was tried")
    provider_delivery_id: str | None = Field(description="the provider's own id of the message")
    latest_attempt: Row | None = Field(description="the last attempt, with its outcome and certainty")


class DeliveryList(Page):
    deliveries: list[Row] = Field(description="the deliveries: id, channel, target, status, attempts and error")


class DeliveryAttempts(Result):
    delivery_id: str = Field(description=_ID)
    attempts: list[Row] = Field(description="the attempts: when, outcome, certainty, error and the provider's answer")


class DeliveryTrace(Result):
    request_id: str = Field(description="the request that was asked about")
    ingress: Row = Field(description="how it came in, or why that is unknown")
    routing: Row = Field(description="who was to deal with it, or why that is unknown")
    deliveries: list[Row] = Field(description="what left because of it, with attempts and receipts")


class DeliveryWhy(Result):
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="where the delivery stands")
    lines: list[str] = Field(description="what happened and what can be done now, in plain words")
    decisions: list[Row] = Field(description="the rules that decided, in order")


class DeadLetterList(Page):
    dead_letters: list[Row] = Field(description="the dead letters: id, delivery, reason, error and replay_eligible")


class DeadLetterResult(Result):
    dead_letter_id: str = Field(description="the dead letter, by its id")
    delivery_id: str = Field(description=_ID)
    original_envelope: Row = Field(description="the notify.v1 that was asked for")
    all_attempt_outcomes: list[Row] = Field(description="everything that was tried")
    replay_eligibility: Row = Field(description="whether it may be sent again, and if not, why")


class DeadLetterEnded(Result):
    dead_letter_id: str = Field(description="the dead letter, by its id")
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="what became of it")
    reason: str = Field(description="why, as the person said")


class DeliveryReleased(Result):
    delivery_id: str = Field(description=_ID)
    status: str = Field(description="where the delivery stands now")
    provider_delivery_id: str | None = Field(default=None, description="the provider's own id of the message")


class NotifyValidity(Result):
    valid: bool = Field(description="whether the envelope would pass the checks")
    errors: list[Row] = Field(description="field and error of everything that is wrong")


class DryRun(Result):
    valid: bool = Field(description="whether the envelope would pass the checks")
    would_be_admitted: bool = Field(description="whether it would be sent now")
    outcome: str = Field(description="what would become of it")
    target_identity: str | None = Field(description="the address it would go to")
    channel_adapter: str | None = Field(description="what would send it")
    headroom: Row | None = Field(description="what is left of the budgets")
    reasons: list[Row] = Field(description="the rules that decide")


class CircuitStatus(Result):
    channels: dict[str, Row] = Field(description="by channel: the state of its circuit, and why")


class RateLimitStatus(Result):
    channels: dict[str, Row] = Field(
        description="by channel: consumed, total, remaining, and until when it is throttled"
    )
    in_flight: Row = Field(description="deliveries that are taken on and not yet ended")
    recipients: Row = Field(description="who is at the limit")


class QueueDepth(Result):
    total: int = Field(description="deliveries on their way")
    by_status: dict[str, int] = Field(description="the same, by status")
    by_phase: dict[str, int] = Field(description="the same, by phase")
    by_channel: dict[str, Row] = Field(description="the same, by channel")
    oldest_age_s: float | None = Field(description="seconds since the oldest was asked for")


class DeliveryStats(Result):
    window: Row = Field(description="since and until")
    total: int = Field(description="deliveries that were asked for in the window")
    delivered: int = Field(description="of these, delivered")
    success_rate: float | None = Field(description="delivered of ended; null: none has ended")
    retry_rate: float | None = Field(description="tried more than once of tried; null: none was tried")
    p50_ms: float | None = Field(description="median milliseconds from asking to the end, of the delivered")
    p95_ms: float | None = Field(description="the same at the 95th percentile")
    groups: list[Row] = Field(description="the same figures by the property that was asked for")


class RecipientList(Page):
    recipients: list[Row] = Field(description="channel, address, rule, reason and since when")


class RecipientResult(Result):
    recipient: Row = Field(description="the rule that holds now")


class RecipientReleased(Result):
    released: Row = Field(description="the rule that held until now")
    released_by: str = Field(description="who decided it")


class DeliveryLevels(Result):
    window: Row = Field(description="since and until")
    objective: float = Field(description="the share of deliveries that should succeed")
    success: list[Row] = Field(description="how many succeeded, by channel")
    error_budget: Row | list[Row] = Field(description="what is left of the error budget, by channel")
