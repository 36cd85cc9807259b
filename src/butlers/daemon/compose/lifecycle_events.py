"""Life-cycle events, wired: Switchboard publishes what becomes of requests, Messenger of deliveries.

Each follower (the courier's streams, the webhooks) has a publisher with a place of its own, so that neither waits for
the other.
"""

from __future__ import annotations

from typing import Any

from butlers.butler.core_tools import StateStore
from butlers.butler.lifecycle_events import (
    PUBLISH_EVERY_S,
    PUBLISH_TOOL,
    WEBHOOKS_TOOL,
    EventsOf,
    LifecyclePublisher,
)
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import Service


def add_lifecycle_events(butler: Butler, *, changes: str, events_of: EventsOf) -> None:
    if butler.process.settings.courier == "on":
        _add_publisher(butler, changes, events_of, name="life-cycle events", tool=PUBLISH_TOOL, key="lifecycle_events")
    _add_publisher(butler, changes, events_of, name="webhook events", tool=WEBHOOKS_TOOL, key="webhook_events")


def _add_publisher(butler: Butler, changes: str, events_of: EventsOf, *, name: str, tool: str, key: str) -> None:
    process = butler.process

    async def publish(batch: dict[str, Any]) -> None:
        await butler.transport.call("switchboard", tool, batch)

    publisher = LifecyclePublisher(
        database=process.database,
        changes=changes,
        events_of=events_of,
        places=StateStore(database=process.database, schema=butler.config.schema_name, clock=process.clock),
        place_key=f"{key}.changed_in",
        publish=publish,
    )
    butler.add(
        Service(name=f"place of {name}", before_doors=True, start=publisher.begin),
        Service(name=name, run=publisher.publish_changes, every_s=PUBLISH_EVERY_S),
    )
