"""A Telegram Bot API that lives on this machine.

    people (control API) ---> world ---> updates ---> bot (getUpdates or webhook)
                                ^                      |
                                +--- sendMessage, reactions, ... <--- faults stand in the way here

It refuses what Telegram refuses, in Telegram's words, forgets nothing across a crash when it is given a journal, and
fails on demand. What it does not do: media, keyboards, inline queries, channels, answers within a webhook's reply.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from butlers.channels.telegram import SIMULATED_TOKEN
from butlers.channels.telegram.simulator.api import BotApi, Polls, WebhookDelivery, WebhookRetry, not_found, refusal
from butlers.channels.telegram.simulator.control import ControlApi
from butlers.channels.telegram.simulator.model import ApiError
from butlers.channels.telegram.simulator.state import SimulatedTelegram
from butlers.clock import Clock
from butlers.simulators.engine import application, listen_as, serving
from butlers.simulators.journal import Journal

DEFAULT_TOKEN = SIMULATED_TOKEN
DEFAULT_USERNAME = "butlers_sim_bot"
DEFAULT_PORT = 40181


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSimulator:
    base_url: str  # the Bot API is at base_url + "/bot<token>/<method>"
    port: int
    token: str
    world: SimulatedTelegram
    polls: Polls


@contextlib.asynccontextmanager
async def serve_telegram(
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    *,
    clock: Clock,
    journal_path: Path | None = None,
    token: str = DEFAULT_TOKEN,
    username: str = DEFAULT_USERNAME,
    webhook_retry: WebhookRetry | None = None,
    randomness: random.Random | None = None,
    extra_routes: Sequence[BaseRoute] = (),  # served beside: the control APIs of other simulators
) -> AsyncIterator[TelegramSimulator]:
    """Serve until the block ends; port 0 takes a free one. What was received by then is answered."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen_as("Telegram simulator", host, port))
        journal = Journal(journal_path)
        held.callback(journal.close)
        world = SimulatedTelegram(clock=clock, journal=journal, randomness=randomness)
        world.add_bot(token, username)
        polls = Polls(world)
        api = BotApi(world=world, polls=polls)

        @contextlib.asynccontextmanager
        async def delivering(_app: Starlette) -> AsyncIterator[None]:
            delivery = WebhookDelivery(world, webhook_retry or WebhookRetry())
            delivery.start()
            try:
                yield
            finally:
                await delivery.stop()

        app = application(
            [*ControlApi(world=world, log=api.log).routes(), *extra_routes, *api.routes()],
            unavailable=lambda: refusal(ApiError(500, "Internal Server Error")),
            exception_handlers={404: _unknown_path},
            lifespan=delivering,
        )
        async with serving(app, listener, stopping=[polls.close, world.pauses.close]) as bound:
            base_url = f"http://{host}:{bound}"
            yield TelegramSimulator(base_url=base_url, port=bound, token=token, world=world, polls=polls)


async def _unknown_path(_request: Request, _error: Exception) -> Response:
    return refusal(not_found())
