"""A provider in memory, brought as any other package would bring one: by an entry point of `butlers.channels`.

Messenger's own adapters speak to servers; a figure that contains a server says little about Messenger.
"""

from __future__ import annotations

import sys
from pathlib import Path

from butlers.channels.adapter import AttemptResult, Outgoing, Sent, Wire
from butlers.channels.plugins import ChannelSettings
from butlers.channels.registry import GROUP
from butlers.clock import Clock

ADAPTER = "instant"
CHANNEL = "chat"
_PACKAGE = "butlers_bench-1.0.dist-info"


class InstantChannel:
    """It takes everything, after `seconds`."""

    name = CHANNEL
    identity_scope = "bot"
    resumes = False
    seconds = 0.0  # of all of them, so that a benchmark can slow a running one down

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent = 0

    async def attempt(self, outgoing: Outgoing, *, timeout_s: float, wire: Wire) -> AttemptResult:
        wire.leaving()
        if InstantChannel.seconds:
            await self._clock.sleep(InstantChannel.seconds)
        self._sent += 1
        return Sent(provider_delivery_id=str(self._sent))

    async def find(self, outgoing: Outgoing) -> str | None:
        return None

    async def close(self) -> None:
        return


def make_channel(settings: ChannelSettings) -> InstantChannel:
    return InstantChannel(settings.clock)


def install(folder: Path) -> None:
    """Put a package that names the adapter onto this process's path."""
    package = folder / "packages" / _PACKAGE
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: butlers-bench\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{GROUP}]\n{ADAPTER} = {__name__}:make_channel\n")
    sys.path.append(str(package.parent))
