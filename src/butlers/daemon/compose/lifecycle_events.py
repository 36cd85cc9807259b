"""Life-cycle events, wired: Switchboard publishes what becomes of requests, Messenger of deliveries."""

from __future__ import annotations

from typing import Any

from butlers.butler.core_tools import StateStore
from butlers.butler.lifecycle_events import PUBLISH_EVERY_S, PUBLISH_TOOL, EventsOf, LifecyclePublisher
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import Service


def add_lifecycle_events(butler: Butler, *, changes: str, events_of: EventsOf) -> None:
    """Where there is no courier, there is nobody to publish for."""
    process = butler.process
    if process.settings.courier == "off":
        return

    async def publish(batch: dict[str, Any]) -> None:
        await butler.transport.call("switchboard", PUBLISH_TOOL, batch)

    publisher = LifecyclePublisher(
        database=process.database,
        changes=changes,
        events_of=events_of,
        places=StateStore(database=process.database, schema=butler.config.schema_name, clock=process.clock),
        publish=publish,
    )
    butler.add(
        Service(name="place of life-cycle events", before_doors=True, start=publisher.begin),
        Service(name="life-cycle events", run=publisher.publish_changes, every_s=PUBLISH_EVERY_S),
    )
