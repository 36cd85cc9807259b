"""The simulator as an application, and as a server inside the current event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from butlers.clock import Clock
from butlers.errors import ConfigurationError, InternalError
from butlers.simulators.telegram.api import BotApi, not_found, refusal
from butlers.simulators.telegram.connection import DroppableH11, DroppableHttpTools
from butlers.simulators.telegram.control import ControlApi
from butlers.simulators.telegram.delivery import WebhookDelivery, WebhookRetry
from butlers.simulators.telegram.journal import open_journal
from butlers.simulators.telegram.polling import Polls
from butlers.simulators.telegram.world import World

DEFAULT_TOKEN = "777000001:simulated-bot-not-a-secret"  # noqa: S105 - opens nothing but a simulator
DEFAULT_USERNAME = "butlers_sim_bot"
DEFAULT_PORT = 40181

_PROTOCOLS: dict[str, type[asyncio.Protocol]] = {"httptools": DroppableHttpTools, "h11": DroppableH11}
_GRACE_SECONDS = 1  # for a call held up by a delay fault when the server stops


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSimulator:
    """A running simulator."""

    base_url: str  # the Bot API is at base_url + "/bot<token>/<method>"
    port: int
    token: str
    world: World
    polls: Polls


def build_app(world: World, *, polls: Polls | None = None, webhook_retry: WebhookRetry | None = None) -> Starlette:
    """The Bot API and the control API over one world; it must be served by one of our protocol classes to drop."""
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
        routes=[Route("/healthz", _healthy), *control.routes(), *api.routes()],
        exception_handlers={404: _unknown_path},
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
) -> AsyncIterator[TelegramSimulator]:
    """Serve until the block ends; port 0 takes a free one."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(_listener(host, port))
        journal = open_journal(journal_path)
        held.callback(journal.close)
        world = World(clock=clock, journal=journal, randomness=randomness)
        world.add_bot(token, username)
        polls = Polls(world)
        server = _Server(build_app(world, polls=polls, webhook_retry=webhook_retry), http)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await server.is_up(running)
            bound = listener.getsockname()[1]
            yield TelegramSimulator(
                base_url=f"http://{host}:{bound}", port=bound, token=token, world=world, polls=polls
            )
        finally:
            polls.close()
            server.should_exit = True
            await running


class _Server(uvicorn.Server):
    """uvicorn as a guest: it leaves the signals to its host and says when it is ready."""

    def __init__(self, app: Starlette, http: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_PROTOCOLS[http],
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    async def is_up(self, running: asyncio.Task[None]) -> None:
        up = asyncio.create_task(self._up.wait())
        await asyncio.wait({up, running}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if running.done():
            running.result()
        if not self.started:
            raise InternalError("the Telegram simulator could not start")


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's delay off only for sockets that say they are TCP; without it each answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as problem:
        listener.close()
        raise ConfigurationError(
            problem.strerror or "cannot be listened on",
            source="Telegram simulator",
            key=f"{host}:{port}",
            remedy="choose another port, 0 takes a free one",
        ) from problem
    return listener


async def _healthy(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _unknown_path(request: Request, error: Exception) -> Response:
    return refusal(not_found())
