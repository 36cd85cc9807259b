"""Life-cycle events: what became of requests and deliveries, for programs that follow them on the courier's streams or
by webhook.

The tables are what happened; this reads their changes and publishes each as an event, in order and with none missed.
A row that changed twice within a second is published in its later state. A crash between publishing and storing the
place publishes again: the event has the same id, and the stream takes it once.

Each row carries `changed_in`, the number of the transaction that wrote it as it is now. All transactions below the
horizon (`pg_snapshot_xmin`) have ended: nothing can appear there any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pydantic import Field

from butlers.contracts.envelope import Identity, Timestamp, Value
from butlers.errors import ClassifiedError, OverloadRejected, TargetUnavailable
from butlers.storage.database import Database
from butlers.telemetry import get_logger

PUBLISH_TOOL = "events.publish"  # of Switchboard, for the courier's streams
WEBHOOKS_TOOL = "webhooks.publish"  # of Switchboard, for webhooks
PUBLISH_EVERY_S = 1.0
BATCH = 500
log = get_logger("butlers.lifecycle_events")


class LifecycleEvent(Value):
    """One thing that happened: ids and states, never what a message holds."""

    id: Identity = Field(description="the same for every repeat of the event")
    at: Timestamp = Field(description="when it happened: RFC 3339 with an offset")
    type: Identity = Field(description="such as request.parsed or delivery.delivered")
    payload: dict[str, Any] = Field(description="ids and states")


class EventBatch(Value):
    events: list[LifecycleEvent] = Field(max_length=BATCH, description="in the order in which they happened")


class Places(Protocol):
    """Where the place is stored: a butler's state."""

    async def get(self, key: str) -> dict[str, Any]: ...

    async def set(self, key: str, value: Any) -> None: ...


EventsOf = Callable[[Mapping[str, Any]], Iterable[LifecycleEvent]]  # of a row


@dataclass(slots=True, kw_only=True)
class LifecyclePublisher:
    database: Database
    changes: str  # SQL: rows with `horizon` and `changed_in`, from $1 on, $2 of them; one row without a change: none
    events_of: EventsOf
    places: Places
    place_key: str  # under which the place is stored
    publish: Callable[[dict[str, Any]], Awaitable[Any]]  # an `EventBatch` on the wire
    _place: int | None = None

    async def begin(self) -> None:
        """Before anything is accepted: what happened before the first start of all is not published."""
        self._place = (await self.places.get(self.place_key))["value"]
        if self._place is None:
            self._place = (await self.database.fetch(self.changes, None, 1))[0]["horizon"]
            await self.places.set(self.place_key, self._place)

    async def publish_changes(self) -> None:
        """Publish what changed since the last call; what cannot be published now waits."""
        try:
            while await self._publish_batch():
                pass
        except (TargetUnavailable, OverloadRejected) as error:
            log.warning("life-cycle events wait", error=error, error_class=error.error_class)
        except ClassifiedError as error:
            if not error.retryable:
                raise
            log.warning("life-cycle events wait", error=error, error_class=error.error_class)

    async def _publish_batch(self) -> bool:
        """True: there is more."""
        start, limit = self._place, BATCH
        rows = await self.database.fetch(self.changes, start, limit)
        while len(rows) == limit and rows[0]["changed_in"] == rows[-1]["changed_in"]:
            limit *= 4  # one large transaction is read whole
            rows = await self.database.fetch(self.changes, start, limit)
        is_full = len(rows) == limit
        end = rows[-1]["changed_in"] if is_full else rows[0]["horizon"]
        found = [event for row in rows if row["changed_in"] is not None for event in self.events_of(dict(row))]
        for first in range(0, len(found), BATCH):
            await self.publish({"events": [event.to_wire() for event in found[first : first + BATCH]]})
        if found:
            await self.places.set(self.place_key, end)
        self._place = end
        return is_full


def request_events(row: Mapping[str, Any]) -> Iterable[LifecycleEvent]:
    """Of a row of `message_inbox`, as it is now."""
    id, state = row["request_id"], row["lifecycle_state"]
    about = {"request_id": str(id), "source_channel": row["source_channel"], "received_at": row["received_at"]}
    about |= {"attempts": row["attempts"], "error_class": row["error_class"]}
    yield _event(f"{id}.{row['changed_in']}", f"request.{state}", row["updated_at"], about)


def delivery_events(row: Mapping[str, Any]) -> Iterable[LifecycleEvent]:
    """Of a row of `delivery_requests`."""
    id, state = row["id"], row["status"]
    about = {"delivery_id": str(id), "request_id": str(row["request_id"]) if row["request_id"] else None}
    about |= {name: row[name] for name in ("origin_butler", "channel", "intent", "attempts", "created_at")}
    about |= {"error_class": row["terminal_error_class"]}
    yield _event(f"{id}.{row['changed_in']}", f"delivery.{state}", row["updated_at"], about)


def _event(id: str, type_: str, at: datetime, about: Mapping[str, Any]) -> LifecycleEvent:
    payload = {name: _plain(value) for name, value in about.items() if value is not None}
    return LifecycleEvent(id=id, at=at, type=type_, payload=payload)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
