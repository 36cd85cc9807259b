"""Messenger's operational tools (seed 001 section 5.1): what was sent, what was set aside, how the plane is, and why.

    tracking      status, search, attempts, trace
    dead_letters  list, inspect, discard, quarantine
    health        circuits, limits, queue
    statistics    counts, rates, latencies
    why           the story of one delivery in plain words
    recipients    who is not written to

They read the same rows the worker writes and keep nothing of their own. Whatever changes something may be called by
the operator, and by Switchboard on a person's behalf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from butlers.butler.surface import Tool
from butlers.clock import Clock
from butlers.messenger.tools.dead_letters import DeadLetterTools
from butlers.messenger.tools.health import HealthTools
from butlers.messenger.tools.recipients import RecipientTools
from butlers.messenger.tools.records import DeliveryRecords
from butlers.messenger.tools.statistics import StatisticsTools
from butlers.messenger.tools.tracking import Lineage, TrackingTools
from butlers.messenger.tools.why import WhyTools
from butlers.reliability.circuit_breaker import BreakerPolicy
from butlers.reliability.dead_letter import ReplayPolicy
from butlers.storage.database import Database

__all__ = ["operational_tools"]


def operational_tools(
    *,
    database: Database,
    schema: str,
    clock: Clock,
    new_id: Callable[[], UUID],
    lineage: Lineage,
    wake: Callable[[], None],
    channels: Sequence[str],
    breaker: BreakerPolicy,
    limits: Mapping[str, float],
    replay: ReplayPolicy,
) -> list[Tool]:
    """All of them, over the tables of one schema."""
    records = DeliveryRecords.of(database, schema)
    dead_letters = DeadLetterTools(records=records, clock=clock, new_id=new_id, wake=wake, policy=replay)
    groups = (
        TrackingTools(records=records, lineage=lineage),
        dead_letters,
        HealthTools(records=records, clock=clock, channels=channels, breaker=breaker, limits=limits),
        StatisticsTools(records=records, clock=clock),
        WhyTools(records=records, clock=clock, dead_letters=dead_letters),
        RecipientTools(records=records, clock=clock),
    )
    return [tool for group in groups for tool in group.tools()]
