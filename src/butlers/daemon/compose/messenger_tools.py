"""Messenger's tools, wired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from butlers.butler.surface import AnyTool
from butlers.daemon.compose.base import Butler
from butlers.messenger.channel_tools import ChannelTools

if TYPE_CHECKING:
    from butlers.daemon.compose.messenger import Parts


def messenger_tools(butler: Butler, parts: Parts) -> list[AnyTool]:
    return [*ChannelTools(intake=parts.intake, channels=frozenset(parts.channels)).tools()]
