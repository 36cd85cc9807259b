"""The streams of life-cycle events: `events/requests` from Switchboard, `events/deliveries` from Messenger.

They are for programs that follow what happens. Nobody has to: a stream that nobody reads lets its oldest events go, and
counts them.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from butlers.butler.identity import Caller
from butlers.butler.lifecycle_events import PUBLISH_TOOL, EventBatch
from butlers.butler.toolbox import Tool
from butlers.courier.config import StreamCaps
from butlers.courier.errors import CourierError
from butlers.courier.messages import Overflow
from butlers.courier.service import Courier
from butlers.errors import Forbidden, TargetUnavailable
from butlers.operations.operation import ADDS_ONCE, Result, Role

STREAMS = {"switchboard": "events/requests", "messenger": "events/deliveries"}  # by who publishes there
EVENTS = "events/*"


def event_caps() -> StreamCaps:
    """Of these streams, unless the configuration says otherwise."""
    return StreamCaps(max_depth=10_000, overflow=Overflow.DROP_OLDEST)


class EventsPublished(Result):
    published: int = Field(description="events that are new to the stream")


class EventStreams:
    def __init__(self) -> None:
        self._courier: Courier | None = None

    async def start(self, courier: Courier) -> None:
        self._courier = courier

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name=PUBLISH_TOOL,
                description="Life-cycle events of the calling system, for its stream on the courier.",
                arguments=EventBatch,
                returns=EventsPublished,
                hints=ADDS_ONCE,
                handler=self._publish,
                roles=frozenset({Role.BUTLER}),
            )
        ]

    async def _publish(self, caller: Caller, batch: EventBatch) -> dict[str, Any]:
        stream = STREAMS.get(caller.name)
        if stream is None:
            raise Forbidden(f"{caller.name} has no stream of events")
        if self._courier is None:
            raise TargetUnavailable("the courier is not up")
        published = 0
        try:
            for event in batch.events:
                wire = event.to_wire()
                head = {"id": wire["id"], "ts": wire["at"], "from": caller.name, "to": stream, "type": wire["type"]}
                published += not (await self._courier.enqueue(head | {"payload": wire["payload"]})).duplicate
            await self._courier.queue.durable()
        except CourierError as error:
            raise TargetUnavailable(
                f"the courier takes no events now: {error}", retry_after=error.retry_after
            ) from error
        return {"published": published}
