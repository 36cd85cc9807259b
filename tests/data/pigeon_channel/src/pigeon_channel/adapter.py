"""The way out: a line in loft/out.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

from butlers.channels.adapter import AttemptResult, NotSent, Outgoing, Sent, Wire
from butlers.channels.plugins import ChannelSettings
from butlers.errors import TargetUnavailable


class PigeonAdapter:
    resumes = False  # a message is one slip

    def __init__(self, settings: ChannelSettings, loft: Path) -> None:
        self.name = settings.channel
        self.identity_scope = settings.identity_scope
        self._loft = loft

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        if (self._loft / "storm").exists():
            return NotSent(error=TargetUnavailable("no pigeon flies in a storm"))
        slip = {"delivery_id": str(outgoing.delivery_id), "to": outgoing.target, "text": outgoing.message}
        wire.leaving()
        with (self._loft / "out.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(slip) + "\n")
        return Sent(provider_delivery_id=f"slip-{outgoing.delivery_id}")

    async def find(self, outgoing: Outgoing) -> str | None:
        return None

    async def close(self) -> None:
        return


def make_adapter(settings: ChannelSettings) -> PigeonAdapter:
    loft = settings.options.get("loft")
    if not isinstance(loft, str):
        raise settings.mistake("options.loft", "is required", "name the folder that pigeons come to")
    return PigeonAdapter(settings, Path(loft))
