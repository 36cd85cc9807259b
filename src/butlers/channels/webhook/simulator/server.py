"""The gateway as a server inside the current event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.applications import Starlette

from butlers.channels.webhook.simulator.api import GatewayApi
from butlers.channels.webhook.simulator.callbacks import Callbacks
from butlers.channels.webhook.simulator.control import ControlApi
from butlers.channels.webhook.simulator.gateway import Gateway
from butlers.clock import Clock
from butlers.serving.server import GuestServer
from butlers.simulators.connection import DroppableHttpTools
from butlers.simulators.control import guarded
from butlers.simulators.pauses import Pauses
from butlers.simulators.ports import listen_as

SIGNING_KEY = "simulated-signing-key"
RECEIPT_KEY = "simulated-receipt-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSimulator:
    """A running gateway."""

    base_url: str
    port: int
    gateway: Gateway
    callbacks: Callbacks

    @property
    def url(self) -> str:
        """Where messages are taken."""
        return f"{self.base_url}/messages"

    @property
    def status_url(self) -> str:
        return f"{self.base_url}/messages/{{delivery_id}}"


@contextlib.asynccontextmanager
async def serve_webhook(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    clock: Clock,
    signing_key: str = SIGNING_KEY,
    receipt_key: str = RECEIPT_KEY,
) -> AsyncIterator[WebhookSimulator]:
    """Serve until the block ends; port 0 takes a free one."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen_as("webhook simulator", host, port))
        gateway = Gateway(signing_key=signing_key, receipt_key=receipt_key)
        callbacks, pauses = Callbacks(gateway, clock), Pauses(clock)
        api = GatewayApi(gateway=gateway, clock=clock, pauses=pauses)
        control = ControlApi(gateway=gateway, callbacks=callbacks)
        app = Starlette(routes=[*control.routes(), *api.routes()])
        server = GuestServer(guarded(app, host), http=DroppableHttpTools)
        try:
            await server.open(listener)
            bound = listener.getsockname()[1]
            yield WebhookSimulator(base_url=f"http://{host}:{bound}", port=bound, gateway=gateway, callbacks=callbacks)
        finally:
            pauses.close()
            await callbacks.close()
            await server.close()
