"""The `[delivery]` part of butler.toml: Messenger's delivery policy (seed 001 section 11.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from butlers.butler.config import Section
from butlers.channels.channel import CertaintyPolicy, Outbound
from butlers.channels.registry import channels
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.retry import RetryPolicy

T = TypeVar("T")
DEFAULT = "default"  # the line of a table for channels that it does not name
_DEFAULT_CERTAINTY: CertaintyPolicy = "never_duplicate"


def _outbound() -> dict[str, Outbound]:
    return {name: channel.outbound for name, channel in channels().items() if channel.outbound is not None}


def _by_channel(value_of: Callable[[Outbound], T | None], default: T) -> dict[str, T]:
    """What each channel brings, and the default."""
    values = {name: value_of(outbound) for name, outbound in _outbound().items()}
    return {**{name: value for name, value in values.items() if value is not None}, DEFAULT: default}


def _limits() -> dict[str, float]:
    each = ((name, scope, limit) for name, out in _outbound().items() for scope, limit in out.per_minute.items())
    return {**{f"{name}.{scope}": limit for name, scope, limit in each}, DEFAULT: 30.0}


def added_to_defaults(section: type[Section], value: Any, info: ValidationInfo) -> Any:
    """A table that names one channel leaves the others as they are."""
    default = section.model_fields[info.field_name or ""].default
    if not isinstance(value, dict):
        return value
    return {**default, **{name: _added(default.get(name), given) for name, given in value.items()}}


def _added(default: Any, given: Any) -> Any:
    """A channel's own table keeps what it does not name, too."""
    return default.model_dump() | given if isinstance(default, Section) and isinstance(given, dict) else given


class RetrySection(Section):
    max_attempts: int = Field(default=3, ge=1, le=20, description="attempts in all, the first one included")
    base_delay_s: float = Field(default=1.0, ge=0, description="seconds before the second attempt; doubles after that")
    max_delay_s: float = Field(default=60.0, ge=0, description="longest pause between attempts")
    jitter: float = Field(default=0.3, ge=0, le=1, description="share of the pause that chance may add or take")

    def policy(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self.max_attempts,
            initial_delay=self.base_delay_s,
            max_delay=self.max_delay_s,
            jitter=self.jitter,
        )


class LimitsSection(Section):
    """How much may be taken on. A bucket holds one minute's worth, so less than one a minute would be none at all."""

    max_in_flight: int = Field(default=100, ge=1, description="deliveries taken on and not yet ended, at one time")
    global_per_minute: float = Field(default=60.0, ge=1, description="deliveries a minute over all channels")
    channel_per_minute: dict[str, float] = Field(
        default=_limits(),
        description="deliveries a minute, by channel and identity scope",
    )
    recipient_per_minute: float = Field(default=10.0, ge=1, description="deliveries a minute to one recipient")
    reply_multiplier: float = Field(default=2.0, ge=1, description="an answer costs one part in so many of a send")
    reaction_multiplier: float = Field(default=50.0, ge=1, description="a reaction costs one part in so many of a send")

    @field_validator("channel_per_minute", mode="before")
    @classmethod
    def _adds_to_the_defaults(cls, value: Any, info: ValidationInfo) -> Any:
        return added_to_defaults(cls, value, info)

    @field_validator("channel_per_minute")
    @classmethod
    def _are_positive(cls, value: dict[str, float]) -> dict[str, float]:
        if not all(limit >= 1 for limit in value.values()):
            raise ValueError("limits must be at least 1")
        return value


class AnswerBrakeSection(Section):
    """How often one correspondent, or one thread, is answered by mail; beyond it mail is kept and not answered."""

    burst: int = Field(default=4, ge=1, le=1000, description="answers in a row to one correspondent or in one thread")
    every_s: float = Field(default=600.0, gt=0, description="seconds after which one more is possible")
    per_day: int = Field(default=30, ge=1, le=100_000, description="answers to one correspondent in a day")


class BreakerSection(Section):
    failure_threshold: int = Field(default=5, ge=1, description="failures in a row that open a channel's circuit")
    recovery_timeout_s: float = Field(default=60.0, gt=0, description="seconds from the trip to the first probe")
    probe_limit: int = Field(default=1, ge=1, description="probes under way at one time while half-open")
    success_threshold: int = Field(default=2, ge=1, description="successful probes that close the circuit")


class BreakersSection(BreakerSection):
    """What holds for every channel, and a table for each channel that differs: `[delivery.breaker.telegram]`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, BreakerSection]

    @model_validator(mode="before")
    @classmethod
    def _names_channels(cls, given: Any) -> Any:
        """A table for a channel that is not there would change nothing, and nobody would notice."""
        known = sorted(_outbound())
        for name in given.keys() - cls.model_fields.keys() if isinstance(given, dict) else ():
            if isinstance(given[name], dict) and name not in known:
                raise ValueError(f"{name} is no channel; there are {', '.join(known)}, and [delivery.breaker] for all")
        return given

    def policy(self, channel: str) -> BreakerPolicy:
        """`channel`: its name, with or without its identity scope.

        A value comes from the channel's own table, else from the channel's default, else from `[delivery.breaker]`, as
        with `[delivery.retry]`, whose line `default` is for channels that bring none.
        """
        name = channel.partition(".")[0]
        own, outbound = self.__pydantic_extra__.get(name), _outbound().get(name)
        values = self.model_dump(include=set(BreakerSection.model_fields))
        if outbound is not None and outbound.breaker is not None:
            values |= {key: value for key, value in asdict(outbound.breaker).items() if value is not None}
        section = BreakerSection(**values | (own.model_dump(exclude_unset=True) if own is not None else {}))
        return BreakerPolicy(
            failure_threshold=section.failure_threshold,
            recovery_timeout=section.recovery_timeout_s,
            probe_limit=section.probe_limit,
            success_threshold=section.success_threshold,
        )


class RecipientsSection(Section):
    allow: list[str] = Field(
        default=[], description="patterns channel:address that may be written to; empty: everybody (* and ? are wild)"
    )
    deny: list[str] = Field(default=[], description="patterns channel:address that may not, whatever allow says")


class ErrorBudgetSection(Section):
    objective: float = Field(default=0.99, gt=0, lt=1, description="share of deliveries that should succeed")
    tighten_at: float = Field(default=6.0, gt=1, description="budget spent so many times too fast: be stricter")
    relax_below: float = Field(default=1.0, gt=0, description="burn rate below which things are as usual again")
    short_window_s: float = Field(default=300.0, gt=0, description="the recent past, in seconds")
    long_window_s: float = Field(default=3600.0, gt=0, description="the longer view, in seconds")
    min_events: int = Field(default=20, ge=1, description="fewer ended deliveries say nothing")
    hold_s: float = Field(default=120.0, ge=0, description="seconds a mode is kept at least")

    @model_validator(mode="after")
    def _cannot_flap(self) -> Self:
        if self.relax_below >= self.tighten_at or self.short_window_s > self.long_window_s:
            raise ValueError("relax_below must be below tighten_at, and the short window not longer than the long one")
        return self


class RetentionSection(Section):
    """Days after their end; 0 keeps them for ever. What still waits for somebody is never removed."""

    deliveries_days: float = Field(
        default=365.0,
        ge=0,
        le=36500,
        description="days a delivery is kept after its end, with its attempts and receipts, and until its key is free;"
        " 0: for ever",
    )
    dead_letters_days: float = Field(
        default=365.0,
        ge=0,
        le=36500,
        description="days a dead letter is kept after it was given up or its message arrived; its delivery stays as"
        " long as it does; 0: for ever",
    )
    actions_days: float = Field(
        default=365.0,
        ge=0,
        le=36500,
        description="days an action is kept after it was executed, rejected or ran out; 0: for ever",
    )


class DeliverySection(Section):
    limits: LimitsSection = LimitsSection()
    answer_brake: AnswerBrakeSection = AnswerBrakeSection()
    breaker: BreakersSection = BreakersSection()
    recipients: RecipientsSection = RecipientsSection()
    error_budget: ErrorBudgetSection = ErrorBudgetSection()
    retention: RetentionSection = RetentionSection()
    retry: dict[str, RetrySection] = Field(
        default=_by_channel(lambda out: RetrySection(**asdict(out.retry)) if out.retry else None, RetrySection()),
        description="how often and how patiently, by channel: max_attempts, base_delay_s, max_delay_s, jitter",
    )
    timeout_s: dict[str, float] = Field(
        default=_by_channel(lambda out: out.timeout_s, 30.0),
        description="seconds one attempt may take, by channel",
    )
    certainty: dict[str, CertaintyPolicy] = Field(
        default=_by_channel(lambda out: out.certainty, _DEFAULT_CERTAINTY),
        description="what follows an attempt that may have arrived, by channel: never_duplicate, never_lose or ask",
    )
    max_concurrent_attempts: int = Field(default=32, ge=1, description="provider calls of one process at one time")
    dedupe_retention_days: float = Field(
        default=30.0, gt=0, description="days after its end for which a delivery answers for its idempotency key"
    )
    max_replays: int = Field(default=3, ge=0, description="how often one dead letter may be replayed")
    filter_credentials: bool = Field(
        default=True,
        description="replace what looks like a private key or a provider's token in messages that leave; the system's"
        " own secrets are replaced in any case",
    )
    tell_owner: bool = Field(
        default=True, description="the owner gets a message about deliveries that need a person's decision"
    )
    notice_interval_s: float = Field(
        default=60.0, ge=0, description="seconds between messages to the owner about what needs a decision"
    )

    @field_validator("retry", "timeout_s", "certainty", mode="before")
    @classmethod
    def _adds_to_the_defaults(cls, value: Any, info: ValidationInfo) -> Any:
        return added_to_defaults(cls, value, info)

    @field_validator("timeout_s")
    @classmethod
    def _are_positive(cls, value: dict[str, float]) -> dict[str, float]:
        if not all(seconds > 0 for seconds in value.values()):
            raise ValueError("timeouts must be positive")
        return value
