"""What Switchboard tells at `GET /metrics`, and rows as a process that died would have left them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from butlers.ids import Uuid7Factory
from tests.system import RunningSystem

_SAMPLE = re.compile(r"butlers_(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LEFT = """
    INSERT INTO switchboard.message_inbox
        (request_id, received_at, request_context, normalized_text, policy_tier, dedupe_key, submitted_by,
         schema_version, source_channel, pinned_target, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, 'tests', 'ingest.v1', 'api', $7, $2)
"""

Sample = tuple[dict[str, str], float]


async def scraped(running: RunningSystem) -> dict[str, list[Sample]]:
    """Every sample of ours by its name without `butlers_`."""
    text = (await running.http.get(running.url(path="/metrics"))).text
    samples: dict[str, list[Sample]] = {}
    for found in filter(None, map(_SAMPLE.fullmatch, text.splitlines())):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', found["labels"] or ""))
        own = {name: value for name, value in labels.items() if not name.startswith(("service_", "otel_"))}
        samples.setdefault(found["name"], []).append((own, float(found["value"])))
    return samples


def total(samples: list[Sample], **labels: str) -> float:
    return sum(value for found, value in samples if found | labels == found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """By how much metrics have grown since it was made."""

    running: RunningSystem
    before: dict[str, list[Sample]]

    @classmethod
    async def of(cls, running: RunningSystem) -> Meter:
        return cls(running=running, before=await scraped(running))

    async def grown(self, name: str, **labels: str) -> float:
        now = (await scraped(self.running)).get(name, [])
        return total(now, **labels) - total(self.before.get(name, []), **labels)

    async def shows(self, name: str, grown: float, **labels: str) -> None:
        """Wait until it has grown by that much, and not by more."""

        async def enough() -> bool:
            return await self.grown(name, **labels) >= grown

        await self.running.until(enough)
        assert await self.grown(name, **labels) == grown, (name, labels)


async def gauge(running: RunningSystem, name: str, **labels: str) -> float:
    samples = (await scraped(running)).get(name, [])
    assert samples, name
    return total(samples, **labels)


async def left_behind(
    running: RunningSystem, text: str, *, age_s: float, tier: str = "default", target: str | None = None
) -> str:
    """A row that somebody accepted and put into nobody's queue."""
    request_id, received_at = Uuid7Factory(running.clock)(), running.clock.now() - timedelta(seconds=age_s)
    context: dict[str, Any] = {
        "request_id": str(request_id),
        "received_at": received_at.isoformat(),
        "source_channel": "api",
        "source_endpoint_identity": "tests",
        "source_sender_identity": "tester",
    }
    await running.database.execute(_LEFT, request_id, received_at, context, text, tier, f"tests:{uuid4().hex}", target)
    return str(request_id)
