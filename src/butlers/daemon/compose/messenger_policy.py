"""Messenger's delivery policy, from the words of butler.toml to the values the code decides by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from functools import cache

from butlers.butler.config import ButlerConfig
from butlers.daemon.compose.process import Process
from butlers.messenger.admission.rules import AnswerBrake, Limits
from butlers.messenger.admission.state import AdmissionPolicy
from butlers.messenger.recipients import RecipientPolicy
from butlers.messenger.retention import RetentionPolicy
from butlers.messenger.settlement import ChannelPolicy
from butlers.messenger.worker import ExecutionPolicy
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.error_budget import BudgetPolicy
from butlers.reliability.retry import RetryPolicy


def admission_policy(config: ButlerConfig) -> AdmissionPolicy:
    section, recipients = config.delivery.limits, config.delivery.recipients
    return AdmissionPolicy(
        limits=Limits(
            max_in_flight=section.max_in_flight,
            global_per_minute=section.global_per_minute,
            channel_per_minute=section.channel_per_minute,
            recipient_per_minute=section.recipient_per_minute,
            reply_multiplier=section.reply_multiplier,
            reaction_multiplier=section.reaction_multiplier,
            answer_brake=AnswerBrake(**config.delivery.answer_brake.model_dump()),
        ),
        breaker=breaker_policy(config),
        recipients=RecipientPolicy(allow=recipients.allow, deny=recipients.deny),
    )


def breaker_policy(config: ButlerConfig) -> BreakerPolicy:
    section = config.delivery.breaker
    return BreakerPolicy(
        failure_threshold=section.failure_threshold,
        recovery_timeout=section.recovery_timeout_s,
        probe_limit=section.probe_limit,
        success_threshold=section.success_threshold,
    )


def budget_policy(config: ButlerConfig) -> BudgetPolicy:
    section = config.delivery.error_budget
    return BudgetPolicy(
        objective=section.objective,
        short_window_s=section.short_window_s,
        long_window_s=section.long_window_s,
        tighten_at=section.tighten_at,
        relax_below=section.relax_below,
        min_events=section.min_events,
        hold_s=section.hold_s,
    )


def retention_policy(config: ButlerConfig) -> RetentionPolicy:
    section = config.delivery.retention
    return RetentionPolicy(
        deliveries=_kept(section.deliveries_days),
        dead_letters=_kept(section.dead_letters_days),
        actions=_kept(section.actions_days),
        keys=timedelta(days=config.delivery.dedupe_retention_days),
    )


def _kept(days: float) -> timedelta | None:
    return timedelta(days=days) if days else None


def execution_policy(process: Process, config: ButlerConfig, repeatable: Collection[str] = ()) -> ExecutionPolicy:
    """`repeatable`: channels whose provider recognises a repeat by its key, so that nothing has to be in doubt."""

    @cache
    def policy(name: str) -> ChannelPolicy:
        usual = channel_policy(config, name)
        return replace(usual, certainty="never_lose") if name in repeatable else usual

    return ExecutionPolicy(
        channel=policy,
        max_concurrent=config.delivery.max_concurrent_attempts,
        lease=process.lease,
    )


def channel_policy(config: ButlerConfig, channel: str) -> ChannelPolicy:
    retry = config.delivery.retry_for(channel)
    return ChannelPolicy(
        retry=RetryPolicy(
            max_attempts=retry.max_attempts,
            initial_delay=retry.base_delay_s,
            max_delay=retry.max_delay_s,
            jitter=retry.jitter,
        ),
        timeout_s=config.delivery.timeout_for(channel),
        certainty=config.delivery.certainty_for(channel),
    )
