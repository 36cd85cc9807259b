"""Life-cycle events, wired: Switchboard publishes what becomes of requests, Messenger of deliveries."""

from __future__ import annotations

from typing import Any

from butlers.butler.core_tools import StateStore
from butlers.butler.lifecycle_events import (
    PUBLISH_EVERY_S,
    PUBLISH_TOOL,
    LifecyclePublisher,
    delivery_events,
    request_events,
)
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import Service
from butlers.storage.queries import Queries

_QUERIES = {
    "switchboard": ("butlers.switchboard", "changed_requests", request_events),
    "messenger": ("butlers.messenger", "changed_deliveries", delivery_events),
}


def add_lifecycle_events(butler: Butler) -> None:
    """Where there is no courier, there is nobody to publish for."""
    if butler.process.settings.courier == "off":
        return
    process, schema = butler.process, butler.config.schema_name
    owner, query, events_of = _QUERIES[butler.name]

    async def publish(batch: dict[str, Any]) -> None:
        await butler.transport.call("switchboard", PUBLISH_TOOL, batch)

    publisher = LifecyclePublisher(
        database=process.database,
        changes=Queries.load(owner, schema=schema)[query],
        events_of=events_of,
        places=StateStore(database=process.database, schema=schema, clock=process.clock),
        publish=publish,
    )
    butler.add(Service(name="life-cycle events", run=publisher.publish_changes, every_s=PUBLISH_EVERY_S))
