"""A channel that writes messages into a file, one JSON line each."""

from __future__ import annotations

import json
from pathlib import Path

from butlers.channels.adapter import AttemptResult, NotSent, Outgoing, Sent, Wire
from butlers.channels.plugins import ChannelSettings
from butlers.errors import TargetUnavailable, ValidationError


class OutboxChannel:
    def __init__(self, settings: ChannelSettings, path: Path) -> None:
        self.name = settings.channel
        self.identity_scope = settings.identity_scope
        self.resumes = False  # a message is one line
        self._path = path

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        if not outgoing.target.startswith("+"):
            return NotSent(error=ValidationError("the recipient is not a number"), answered=True)
        line = json.dumps({"delivery_id": str(outgoing.delivery_id), "to": outgoing.target, "text": outgoing.message})
        wire.leaving()
        try:
            with self._path.open("a", encoding="utf-8") as outbox:
                outbox.write(line + "\n")
        except OSError as error:
            return NotSent(error=TargetUnavailable(f"the outbox cannot be written ({type(error).__name__})"))
        return Sent(provider_delivery_id=f"line-{outgoing.delivery_id}")

    async def find(self, outgoing: Outgoing) -> str | None:
        if not self._path.exists():
            return None
        lines = map(json.loads, self._path.read_text(encoding="utf-8").splitlines())
        there = any(line["delivery_id"] == str(outgoing.delivery_id) for line in lines)
        return f"line-{outgoing.delivery_id}" if there else None

    async def close(self) -> None:
        return


def make_channel(settings: ChannelSettings) -> OutboxChannel:
    path = settings.options.get("path")
    if not isinstance(path, str):
        raise settings.mistake("options.path", "is required", "name the file that messages are written to")
    return OutboxChannel(settings, Path(path))
