"""The gateway on its port: HTTP and WebSocket together, with the limits of every door of this system."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from butlers.clock import Clock
from butlers.courier.config import CourierConfig
from butlers.courier.gateway import Gateway
from butlers.courier.service import Courier, running
from butlers.courier.websocket import FrameProtocol
from butlers.serving.bounded_http import BoundedHttp
from butlers.serving.connections import Connections, DoorLimits, raise_file_limit
from butlers.serving.server import GuestServer, listen

MOST_CONNECTIONS = 20_000
PONG_S = 20.0  # without an answer to a ping, the other side is gone


class GatewayHttp(BoundedHttp):
    """A WebSocket stays; it is not counted among the connections that must say something now and then."""

    def handle_websocket_upgrade(self) -> None:
        self._book.leave(self, self._address)
        super().handle_websocket_upgrade()


class CourierServer:
    """A courier on its port."""

    def __init__(self, courier: Courier) -> None:
        self.courier = courier
        self.gateway = Gateway(courier)
        config = courier.config.gateway
        limits = DoorLimits(connections=MOST_CONNECTIONS, per_address=MOST_CONNECTIONS)
        connections = Connections(limits.within(raise_file_limit(2 * MOST_CONNECTIONS)))
        self._server = GuestServer(self.gateway.app(), http=GatewayHttp, connections=connections)
        self._server.config.ws = FrameProtocol
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
async def serving(config: CourierConfig, *, clock: Clock) -> AsyncIterator[CourierServer]:
    """The gateway at the address of its configuration, until the block ends; what the journal has is there again."""
    listener = listen(config.gateway.host, config.gateway.port, source="courier", remedy="choose another gateway.port")
    try:
        async with running(config, clock=clock) as courier:
            server = CourierServer(courier)
            await server.open(listener)
            try:
                yield server
            finally:
                await server.close()
    finally:
        listener.close()
