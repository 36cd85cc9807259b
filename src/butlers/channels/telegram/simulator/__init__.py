"""A Telegram Bot API that lives on this machine.

    people (control API) ---> world ---> updates ---> bot (getUpdates or webhook)
                                ^                      |
                                +--- sendMessage, reactions, ... <--- faults stand in the way here

It refuses what Telegram refuses, in Telegram's words, forgets nothing across a crash when it is given a journal, and
fails on demand. What it does not do: media, keyboards, inline queries, channels, answers within a webhook's reply.
"""

from __future__ import annotations

from butlers.channels.telegram.simulator.server import (
    DEFAULT_PORT,
    DEFAULT_TOKEN,
    DEFAULT_USERNAME,
    TelegramSimulator,
    build_app,
    serve_telegram,
)
from butlers.channels.telegram.simulator.state import SimulatedTelegram
from butlers.channels.telegram.simulator.updates import WebhookRetry

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_TOKEN",
    "DEFAULT_USERNAME",
    "SimulatedTelegram",
    "TelegramSimulator",
    "WebhookRetry",
    "build_app",
    "serve_telegram",
]
