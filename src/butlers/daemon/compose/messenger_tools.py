"""Messenger's tools, wired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from butlers.butler.approvals.tools import ApprovalTools
from butlers.butler.toolbox import AnyTool, Tool
from butlers.daemon.compose.base import Butler
from butlers.messenger.channel_tools import ChannelTools
from butlers.messenger.preflight import Preflight
from butlers.messenger.release import Release
from butlers.messenger.service_levels import ServiceLevels
from butlers.messenger.tools.dead_letters import ActionTools, DeadLetterTools
from butlers.messenger.tools.deliveries import DeliveryRecords, RecipientTools, TrackingTools
from butlers.messenger.tools.health import HealthTools
from butlers.messenger.tools.why import WhyTools
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.roster import ButlerConfig
from butlers.storage.queries import Queries

if TYPE_CHECKING:
    from butlers.daemon.compose.messenger import Parts


REPLAY_WAIT_S = 5.0  # a replay or a settlement that takes longer answers with where it stands


def messenger_tools(butler: Butler, parts: Parts, levels: ServiceLevels) -> list[AnyTool]:
    channels = ChannelTools(
        intake=parts.intake, channels=frozenset(parts.channels), lineage=_asking(butler, "request.lineage")
    )
    return [
        *channels.tools(),
        *_operational(butler, parts),
        *_action_tools(butler, parts).tools(),
        *levels.tools(),
        *ApprovalTools(approvals=parts.approvals).tools(),
    ]


def _operational(butler: Butler, parts: Parts) -> list[Tool]:
    process, config = butler.process, butler.config
    clock, records = process.clock, DeliveryRecords.of(process.database, config.schema_name)
    letters = DeadLetterTools(
        records=records,
        clock=clock,
        new_id=process.new_id,
        wake=parts.worker.wake,
        policy=ReplayPolicy(max_replays=config.delivery.max_replays),
    )
    health = HealthTools(
        records=records,
        clock=clock,
        channels=sorted(parts.channels),
        breaker=config.delivery.breaker,
        limits=_limits(config, sorted(parts.channels)),
    )
    return [
        *TrackingTools(records=records, clock=clock, lineage=_asking(butler, "trace")).tools(),
        *letters.tools(),
        *health.tools(),
        *WhyTools(records=records, clock=clock, dead_letters=letters).tools(),
        *RecipientTools(records=records, clock=clock).tools(),
    ]


def _action_tools(butler: Butler, parts: Parts) -> ActionTools:
    process, schema = butler.process, butler.config.schema_name
    release = Release(
        database=process.database,
        queries=Queries.load("butlers.messenger.release", schema=schema),
        records=DeliveryRecords.of(process.database, schema),
        admission=parts.admission,
        deliveries=parts.deliveries,
        executor=parts.worker,
        observer=parts.observer,
        policy=ReplayPolicy(max_replays=butler.config.delivery.max_replays),
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
    return ActionTools(release=release, preflight=preflight)


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
