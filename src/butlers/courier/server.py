"""The gateway on its port: HTTP and WebSocket together, with the limits of every door of this system."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from butlers.clock import Clock
from butlers.courier.access import Identify
from butlers.courier.config import CourierConfig
from butlers.courier.gateway import Gateway
from butlers.courier.kernel_adapter import Fabric, on_kernel
from butlers.courier.service import Courier, Listeners, running
from butlers.courier.websocket import FrameProtocol
from butlers.errors import OverloadRejected
from butlers.serving.bounded_http import BoundedHttp
from butlers.serving.connections import Connections, DoorLimits, raise_file_limit
from butlers.serving.server import GuestServer, listen
from butlers.telemetry import get_logger

MOST_CONNECTIONS = 20_000
TOKENS_EVERY_S = 2.0
log = get_logger("butlers.courier")
PONG_S = 20.0  # at most: without an answer to a ping, the other side is gone


class GatewayHttp(BoundedHttp):
    """A WebSocket stays; it is not counted among the connections that must say something now and then."""

    def handle_websocket_upgrade(self) -> None:
        if len(self.connections) > self._limits.connections * 9 // 10:  # the others are for producers
            self._refuse(503, OverloadRejected("too many sockets are open", retry_after=1.0))
            return
        self._book.leave(self, self._address)
        super().handle_websocket_upgrade()


class CourierServer:
    """A courier on its port."""

    def __init__(self, courier: Courier, *, identify: Identify | None = None) -> None:
        self.courier = courier
        self.fabric = Fabric()
        self.gateway = Gateway(courier, self.fabric, identify=identify)
        config = courier.config.gateway
        limits = DoorLimits(connections=MOST_CONNECTIONS, per_address=MOST_CONNECTIONS)
        connections = Connections(limits.within(raise_file_limit(2 * MOST_CONNECTIONS)))
        self._server = GuestServer(self.gateway.app(), http=GatewayHttp, connections=connections)
        self._server.config.ws = FrameProtocol
        self._server.config.ws_max_size = config.max_message_bytes
        self._server.config.ws_ping_interval = config.ping_s
        self._server.config.ws_ping_timeout = min(PONG_S, config.ping_s)
        self._server.config.ws_per_message_deflate = False
        self.port = 0

    async def open(self, listener: socket.socket) -> None:
        self.port = listener.getsockname()[1]
        await self._server.open(listener)

    async def close(self) -> None:
        await self._server.close()


@asynccontextmanager
async def serving(
    config: CourierConfig,
    *,
    clock: Clock,
    identify: Identify | None = None,
    listeners: Listeners = Listeners(),
    remedy: str = "choose another gateway.port",
) -> AsyncIterator[CourierServer]:
    """The gateway at the address of its configuration, until the block ends; what the journal has is there again."""
    listener = listen(config.gateway.host, config.gateway.port, source="courier", remedy=remedy)
    try:
        async with running(config, clock=clock, listeners=listeners) as courier:
            server = CourierServer(courier, identify=identify)
            await server.open(listener)
            checks = asyncio.create_task(_check_tokens(server), name="courier tokens") if identify else None
            try:
                async with on_kernel(courier, server.fabric, url=f"http://{config.gateway.host}:{server.port}"):
                    yield server
            finally:
                if checks is not None:
                    checks.cancel()
                server.gateway.end_readers()
                await server.close()
    finally:
        listener.close()


async def _check_tokens(server: CourierServer) -> None:
    """A token that is revoked ends its sockets, too."""
    while True:
        await server.courier.clock.sleep(TOKENS_EVERY_S)
        try:
            await server.gateway.close_refused()
        except Exception as error:  # the file of the tokens cannot be read now
            log.error("the courier cannot check its tokens", error=error)
