"""A message gateway that lives on this machine: what an SMS or chat provider behind a webhook would be.

    POST /messages                signed; kept once for each Idempotency-Key
    GET  /messages/{delivery_id}  whether it is here
    /control/...                  what it received, faults, and receipts to send back

It checks signatures with code of its own, so that a mistake in ours is not made twice. It forgets when it stops.
"""

from __future__ import annotations

from butlers.channels.webhook.simulator.gateway import Fault, FaultKind, Gateway, Taken
from butlers.channels.webhook.simulator.server import WebhookSimulator, serve_webhook

__all__ = ["Fault", "FaultKind", "Gateway", "Taken", "WebhookSimulator", "serve_webhook"]
