"""Life-cycle events are published in order, none is missed, and a large transaction holds nothing up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

import pytest

from butlers.butler.lifecycle_events import BATCH, EventBatch, LifecyclePublisher, request_events
from butlers.errors import TargetUnavailable
from butlers.storage.database import Database

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(changed_in: int, state: str = "parsed", **more: Any) -> dict[str, Any]:
    times = {"received_at": NOW, "updated_at": NOW}
    about = {"source_channel": "telegram", "attempts": 1, "error_class": None}
    return {"changed_in": changed_in, "request_id": uuid4(), "lifecycle_state": state} | times | about | more


class Rig:
    """A table, its horizon, a stored place and a stream that checks what it gets."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.horizon = 10
        self.stored: dict[str, Any] = {}
        self.published: list[str] = []
        self.is_away = False
        self.publisher = self.new()

    def new(self) -> LifecyclePublisher:
        database = cast("Database", self)
        return LifecyclePublisher(
            database=database,
            changes="",
            events_of=request_events,
            places=self,
            place_key="tests.changed_in",
            publish=self.publish,
        )

    async def fetch(self, _query: str, place: int | None, limit: int) -> list[dict[str, Any]]:
        found = [one for one in self.rows if place is not None and place <= one["changed_in"] < self.horizon]
        return [one | {"horizon": self.horizon} for one in found[:limit]] or [
            {"horizon": self.horizon, "changed_in": None}
        ]

    async def get(self, key: str) -> dict[str, Any]:
        return {"value": self.stored.get(key)}

    async def set(self, key: str, value: Any) -> None:
        self.stored[key] = value

    async def publish(self, batch: dict[str, Any]) -> None:
        if self.is_away:
            raise TargetUnavailable("the courier is not up")
        self.published += [event.type for event in EventBatch.model_validate(batch, strict=False).events]


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.publisher.begin()
    return rig


async def test_only_what_happens_after_the_first_start_is_published_up_to_the_horizon(rig: Rig):
    rig.rows = [row(5), row(10, "accepted"), row(11), row(20)]
    rig.horizon = 12
    await rig.publisher.publish_changes()
    assert rig.published == ["request.accepted", "request.parsed"]
    rig.horizon = 30
    await rig.publisher.publish_changes()
    await rig.publisher.publish_changes()
    assert len(rig.published) == 3


async def test_a_large_transaction_is_published_whole_and_what_follows_it_too(rig: Rig):
    rig.rows = [*(row(10) for _ in range(3 * BATCH + 7)), row(11, "errored", error_class="timeout")]
    rig.horizon = 12
    await rig.publisher.publish_changes()
    assert len(rig.published) == 3 * BATCH + 8
    assert rig.published[-1] == "request.errored"


async def test_what_cannot_be_published_now_is_published_later_also_by_another_process(rig: Rig):
    rig.rows, rig.horizon, rig.is_away = [row(10), row(11)], 12, True
    await rig.publisher.publish_changes()
    assert rig.published == []
    rig.is_away = False
    other = rig.new()
    await other.begin()
    await other.publish_changes()
    assert len(rig.published) == 2


async def test_a_request_that_is_opened_again_is_published_again(rig: Rig):
    first = row(10)
    ids = [event.id for version in (first, first | {"changed_in": 11}) for event in request_events(version)]
    assert len(set(ids)) == 2
