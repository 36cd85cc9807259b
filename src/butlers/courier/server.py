"""The gateway on its port: HTTP and WebSocket together, with the limits of every door of this system."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from butlers.clock import Clock
from butlers.courier.config import CourierConfig
from butlers.courier.event_log import EventLog
from butlers.courier.gateway import Gateway
from butlers.courier.journal import Journal
from butlers.courier.journal_stores import open_store
from butlers.courier.service import Courier, Observer
from butlers.ids import Uuid7Factory
from butlers.serving.bounded_http import BoundedHttp
from butlers.serving.connections import Connections, DoorLimits, raise_file_limit
from butlers.serving.server import GuestServer, listen
from butlers.telemetry import get_logger

MOST_CONNECTIONS = 20_000
PONG_S = 20.0  # without an answer to a ping, the other side is gone
log = get_logger(__name__)


class GatewayHttp(BoundedHttp):
    """A WebSocket stays; it is not counted among the connections that must say something now and then."""

    def handle_websocket_upgrade(self) -> None:
        self._book.leave(self, self._address)
        super().handle_websocket_upgrade()


class CourierServer:
    """A courier on its port, with its journal and its event log where they are configured."""

    def __init__(self, courier: Courier, journal: Journal | None) -> None:
        self.courier = courier
        self.gateway = Gateway(courier, durable=journal.flush if journal is not None else None)
        config = courier.config.gateway
        limits = DoorLimits(connections=MOST_CONNECTIONS, per_address=MOST_CONNECTIONS)
        connections = Connections(limits.within(raise_file_limit(2 * MOST_CONNECTIONS)))
        self._server = GuestServer(self.gateway.app(), http=GatewayHttp, connections=connections)
        self._server.config.ws = WebSocketsSansIOProtocol
        self._server.config.ws_max_size = config.max_message_bytes
        self._server.config.ws_ping_interval = config.ping_s
        self._server.config.ws_ping_timeout = PONG_S
        self._server.config.ws_per_message_deflate = False
        self.port = 0

    async def open(self, listener: socket.socket) -> None:
        self.port = listener.getsockname()[1]
        await self._server.open(listener)

    async def close(self) -> None:
        await self._server.close()


@asynccontextmanager
async def serving(
    config: CourierConfig, *, clock: Clock, observers: tuple[Observer, ...] = ()
) -> AsyncIterator[CourierServer]:
    """The gateway at the address of its configuration, until the block ends; what the journal has is there again."""
    listener = listen(config.gateway.host, config.gateway.port, source="courier", remedy="choose another gateway.port")
    async with AsyncExitStack() as stack:
        stack.callback(listener.close)
        store = await open_store(config.journal)
        journal = Journal(store) if store is not None else None
        if journal is not None:
            stack.push_async_callback(journal.close)
            observers = (*observers, journal.observe)
        if config.events is not None:
            events = stack.enter_context(EventLog(Path(config.events), clock))
            observers = (*observers, events.observe)
        courier = Courier(config, clock=clock, epoch=Uuid7Factory(clock)().hex[-12:], observers=observers)
        if journal is not None:
            found = await journal.restore(courier.core)
            log.info("the courier's journal was read", count=found)
        tasks = await stack.enter_async_context(_tasks())
        tasks.append(asyncio.create_task(courier.run(), name="courier timers"))
        if journal is not None:
            tasks.append(asyncio.create_task(journal.run(courier.core, clock), name="courier journal"))
        server = CourierServer(courier, journal)
        await server.open(listener)
        stack.push_async_callback(server.close)
        yield server


@asynccontextmanager
async def _tasks() -> AsyncIterator[list[asyncio.Task[None]]]:
    running: list[asyncio.Task[None]] = []
    try:
        yield running
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
