"""Messenger's tools, wired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from butlers.butler.approvals import ApprovalTools
from butlers.butler.config import ButlerConfig
from butlers.butler.toolbox import AnyTool, Tool
from butlers.daemon.compose.base import Butler
from butlers.daemon.compose.process import Process
from butlers.messenger.admission.rules import AnswerBrake, Limits
from butlers.messenger.admission.state import AdmissionPolicy
from butlers.messenger.channel_tools import ChannelTools
from butlers.messenger.preflight import Preflight
from butlers.messenger.recipients import RecipientPolicy
from butlers.messenger.release import Release
from butlers.messenger.retention import RetentionPolicy
from butlers.messenger.service_levels import ServiceLevels, ServiceLevelTools
from butlers.messenger.settlement import ChannelPolicy
from butlers.messenger.tools.dead_letters import DeadLetterTools, DeedTools
from butlers.messenger.tools.health import HealthTools
from butlers.messenger.tools.recipients import RecipientTools
from butlers.messenger.tools.records import DeliveryRecords
from butlers.messenger.tools.tracking import StatisticsTools, TrackingTools
from butlers.messenger.tools.why import WhyTools
from butlers.messenger.worker import ExecutionPolicy
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.reliability.error_budget import BudgetPolicy
from butlers.reliability.retry import RetryPolicy
from butlers.storage.queries import Queries

if TYPE_CHECKING:
    from butlers.daemon.compose.messenger import Parts


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


REPLAY_WAIT_S = 5.0  # a replay or a settlement that takes longer answers with where it stands


def messenger_tools(butler: Butler, parts: Parts, levels: ServiceLevels) -> list[AnyTool]:
    channels = ChannelTools(
        intake=parts.intake, channels=frozenset(parts.channels), lineage=_asking(butler, "request.lineage")
    )
    service = ServiceLevelTools(levels=levels, clock=butler.process.clock)
    return [
        *channels.tools(),
        *_operational(butler, parts),
        *_deeds(butler, parts).tools(),
        *service.tools(),
        *ApprovalTools(approvals=parts.approvals).tools(),
    ]


def _operational(butler: Butler, parts: Parts) -> list[Tool]:
    process, config = butler.process, butler.config
    clock, records = process.clock, DeliveryRecords.of(process.database, config.schema_name)
    letters = DeadLetterTools(
        records=records, clock=clock, new_id=process.new_id, wake=parts.worker.wake, policy=replay_policy(config)
    )
    health = HealthTools(
        records=records,
        clock=clock,
        channels=sorted(parts.channels),
        breaker=breaker_policy(config),
        limits=_limits(config, sorted(parts.channels)),
    )
    return [
        *TrackingTools(records=records, lineage=_asking(butler, "trace")).tools(),
        *letters.tools(),
        *health.tools(),
        *StatisticsTools(records=records, clock=clock).tools(),
        *WhyTools(records=records, clock=clock, dead_letters=letters).tools(),
        *RecipientTools(records=records, clock=clock).tools(),
    ]


def _deeds(butler: Butler, parts: Parts) -> DeedTools:
    process, schema = butler.process, butler.config.schema_name
    release = Release(
        database=process.database,
        queries=Queries.load("butlers.messenger.release", schema=schema),
        records=DeliveryRecords.of(process.database, schema),
        admission=parts.admission,
        deliveries=parts.deliveries,
        executor=parts.worker,
        observer=parts.observer,
        policy=replay_policy(butler.config),
        channels=parts.channels,
        clock=process.clock,
        new_id=process.new_id,
        wait_s=REPLAY_WAIT_S,
    )
    preflight = Preflight(
        preparation=parts.preparation,
        admission=parts.admission,
        approvals=parts.approvals,
        origins=frozenset(process.roster),
        lineage=_asking(butler, "request.lineage"),
        channels=parts.channels,
        clock=process.clock,
    )
    return DeedTools(release=release, preflight=preflight)


def replay_policy(config: ButlerConfig) -> ReplayPolicy:
    return ReplayPolicy(max_replays=config.delivery.max_replays)


def _limits(config: ButlerConfig, channels: list[str]) -> dict[str, float]:
    limits = config.delivery.limits
    per_channel = limits.channel_per_minute
    return {
        "global": limits.global_per_minute,
        "recipient": limits.recipient_per_minute,
        "in_flight": float(limits.max_in_flight),
        **{f"channel:{name}": per_channel.get(name, per_channel["default"]) for name in channels},
    }


def _asking(butler: Butler, tool: str) -> Callable[[UUID], Awaitable[Mapping[str, Any]]]:
    """What Switchboard knows of a request."""

    async def ask(request_id: UUID) -> Mapping[str, Any]:
        return await butler.transport.call("switchboard", tool, {"request_id": str(request_id)})

    return ask
