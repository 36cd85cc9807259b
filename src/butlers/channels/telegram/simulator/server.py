"""The simulator as an application, and as a server inside the current event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from butlers.channels.telegram import SIMULATED_TOKEN
from butlers.channels.telegram.simulator.api import BotApi, not_found, refusal
from butlers.channels.telegram.simulator.control import ControlApi
from butlers.channels.telegram.simulator.model import ApiError
from butlers.channels.telegram.simulator.state import SimulatedTelegram
from butlers.channels.telegram.simulator.updates import Polls, WebhookDelivery, WebhookRetry
from butlers.clock import Clock
from butlers.serving.server import GuestServer
from butlers.simulators.connection import DroppableH11, DroppableHttpTools, listen_as
from butlers.simulators.control import guarded
from butlers.simulators.journal import open_journal

DEFAULT_TOKEN = SIMULATED_TOKEN
DEFAULT_USERNAME = "butlers_sim_bot"
DEFAULT_PORT = 40181

_log = logging.getLogger(__name__)

_PROTOCOLS: dict[str, type[asyncio.Protocol]] = {"httptools": DroppableHttpTools, "h11": DroppableH11}


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSimulator:
    """A running simulator."""

    base_url: str  # the Bot API is at base_url + "/bot<token>/<method>"
    port: int
    token: str
    world: SimulatedTelegram
    polls: Polls


def build_app(
    world: SimulatedTelegram,
    *,
    polls: Polls | None = None,
    webhook_retry: WebhookRetry | None = None,
    extra_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """The Bot API and the control API over one world; it must be served by one of our protocol classes to drop.

    `extra_routes` are served beside them: the mail simulator's control API needs no port of its own then.
    """
    api = BotApi(world=world, polls=polls or Polls(world))
    control = ControlApi(world=world, log=api.log)

    @contextlib.asynccontextmanager
    async def delivering(app: Starlette) -> AsyncIterator[None]:
        delivery = WebhookDelivery(world, webhook_retry or WebhookRetry())
        delivery.start()
        try:
            yield
        finally:
            await delivery.stop()

    return Starlette(
        routes=[Route("/healthz", _healthy), *control.routes(), *extra_routes, *api.routes()],
        exception_handlers={404: _unknown_path, OSError: _unavailable},
        lifespan=delivering,
    )


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
    http: Literal["httptools", "h11"] = "httptools",
    randomness: random.Random | None = None,
    extra_routes: Sequence[BaseRoute] = (),
) -> AsyncIterator[TelegramSimulator]:
    """Serve until the block ends; port 0 takes a free one. What was received by then is answered."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen_as("Telegram simulator", host, port))
        journal = open_journal(journal_path)
        held.callback(journal.close)
        world = SimulatedTelegram(clock=clock, journal=journal, randomness=randomness)
        world.add_bot(token, username)
        polls = Polls(world)
        app = build_app(world, polls=polls, webhook_retry=webhook_retry, extra_routes=extra_routes)
        server = GuestServer(guarded(app, host), http=_PROTOCOLS[http])
        try:
            await server.open(listener)
            bound = listener.getsockname()[1]
            yield TelegramSimulator(
                base_url=f"http://{host}:{bound}", port=bound, token=token, world=world, polls=polls
            )
        finally:
            polls.close()
            world.pauses.close()
            await server.close()


async def _healthy(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _unknown_path(request: Request, error: Exception) -> Response:
    return refusal(not_found())


async def _unavailable(request: Request, error: Exception) -> Response:
    """The journal could not be written: nothing was accepted, and the bot is told so in the usual words."""
    _log.error("the journal could not be written: %s", error)
    return refusal(ApiError(500, "Internal Server Error"))
