"""The way in: the lines of loft/in.jsonl, which is read again from its beginning after a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from butlers.channels.connector import Counters, IngestPort, Standing
from butlers.channels.plugins import ChannelSettings
from butlers.clock import Clock
from butlers.contracts.heartbeat import ConnectorCapabilities
from butlers.contracts.ingest import Event, IngestEnvelope, Payload, Sender, Source
from butlers.errors import SenderRefused, ValidationError

LOOK_EVERY_S = 0.2


class PigeonConnector:
    connector_type = "pigeon"
    capabilities = ConnectorCapabilities(backfill=False)

    def __init__(self, *, loft: Path, ingest: IngestPort, clock: Clock) -> None:
        self._slips = loft / "in.jsonl"
        self._ingest = ingest
        self._clock = clock
        self._taken = 0
        self.counters = Counters()

    async def run(self) -> None:
        while True:
            lines = self._slips.read_text(encoding="utf-8").splitlines() if self._slips.exists() else []
            for line in lines[self._taken :]:
                await self._hand_in(json.loads(line))
                self._taken += 1
            await self._clock.sleep(LOOK_EVERY_S)

    async def endpoint(self) -> str:
        return "loft"

    def standing(self) -> Standing:
        return Standing(state="healthy")

    async def close(self) -> None:
        return

    async def _hand_in(self, slip: dict[str, Any]) -> None:
        envelope = IngestEnvelope(
            schema_version="ingest.v1",
            source=Source(channel="pigeon", provider="loft", endpoint_identity="loft"),
            event=Event(external_event_id=slip["ring"], observed_at=self._clock.now()),
            sender=Sender(identity=slip["from"]),
            payload=Payload(raw=slip, normalized_text=slip["text"]),
        )
        try:
            reply = await self._ingest.ingest(envelope)
        except SenderRefused:
            return
        except ValidationError:  # it never will be good: the slips behind it must not wait for it
            self.counters.messages_failed += 1
            return
        self.counters.messages_ingested += 1
        self.counters.dedupe_accepted += not reply.duplicate


def make_connector(settings: ChannelSettings, ingest: IngestPort) -> PigeonConnector:
    return PigeonConnector(loft=Path(str(settings.options["loft"])), ingest=ingest, clock=settings.clock)
