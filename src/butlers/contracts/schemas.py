"""The JSON Schemas of all envelopes, as exported to docs/contracts/: `python -m butlers.contracts.schemas DIR`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from butlers.contracts.envelope import Envelope
from butlers.contracts.heartbeat import HeartbeatEnvelope
from butlers.contracts.ingest import IngestEnvelope
from butlers.contracts.notify import NotifyEnvelope, NotifyResponse
from butlers.contracts.route import RouteEnvelope, RouteResponse

ENVELOPES: tuple[type[Envelope], ...] = (
    IngestEnvelope,
    RouteEnvelope,
    RouteResponse,
    NotifyEnvelope,
    NotifyResponse,
    HeartbeatEnvelope,
)


def schema_of(envelope: type[Envelope]) -> str:
    """One schema as text, in a stable order."""
    return json.dumps(envelope.model_json_schema(by_alias=True), indent=2, sort_keys=True) + "\n"


def export(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for envelope in ENVELOPES:
        (directory / f"{envelope.VERSION}.schema.json").write_text(schema_of(envelope))


if __name__ == "__main__":
    export(Path(sys.argv[1]))
