"""Outgoing webhooks, wired: Switchboard keeps the endpoints and sends."""

from __future__ import annotations

import random
import secrets
from functools import partial

from butlers.butler.toolbox import AnyTool
from butlers.daemon.compose.base import Butler
from butlers.daemon.services import Service
from butlers.storage.queries import Queries
from butlers.telemetry import catalogue
from butlers.webhooks import SCHEMA
from butlers.webhooks.addresses import AddressGuard, SystemResolver
from butlers.webhooks.deliveries import Deliveries, retry_policy
from butlers.webhooks.endpoints import Endpoints
from butlers.webhooks.sender import WebhookSender
from butlers.webhooks.signature import new_secret
from butlers.webhooks.worker import WebhookWorker, WorkerPolicy

UPKEEP_S = 15.0
FORGET_EVERY_S = 3600.0
DRAIN_S = 5.0


def add_webhooks(butler: Butler) -> list[AnyTool]:
    """The tools; the worker and its upkeep are added to the butler."""
    process, settings = butler.process, butler.process.settings
    resolver = SystemResolver()
    guard = AddressGuard(resolve=resolver, private_allowed=settings.webhook_private_networks == "allow")
    sender = WebhookSender(guard=guard, clock=process.clock)
    deliveries = Deliveries(database=process.database, clock=process.clock, new_id=process.new_id)
    worker = WebhookWorker(
        deliveries=deliveries,
        sender=sender,
        policy=WorkerPolicy(retry=retry_policy(settings.webhook_retries), lease=process.lease),
        name=process.instance,
        clock=process.clock,
        random=random.random,
        telemetry=butler.telemetry,
    )
    endpoints = Endpoints(
        database=process.database,
        queries=Queries.load("butlers.webhooks", schema=SCHEMA),
        deliveries=deliveries,
        guard=guard,
        sender=sender,
        clock=process.clock,
        new_id=process.new_id,
        new_secret=partial(new_secret, secrets.token_bytes),
        report=butler.report,
        wake=worker.wake,
    )

    async def keep_up() -> None:
        buried = await deliveries.bury_deliveries_of_disabled()
        butler.telemetry.count(catalogue.WEBHOOK_DEAD_LETTERED, buried)
        butler.telemetry.gauge(catalogue.WEBHOOK_PENDING, await deliveries.count_waiting())

    async def stop() -> None:
        await sender.close()
        resolver.close()

    butler.add(
        Service(
            name="webhooks",
            run=worker.run,
            drain=partial(worker.drain, DRAIN_S),
            stop=stop,
            health=endpoints.check,
        ),
        Service(name="webhook upkeep", run=keep_up, every_s=UPKEEP_S),
        Service(name="old webhooks", run=deliveries.forget, every_s=FORGET_EVERY_S),
    )
    return endpoints.tools()
