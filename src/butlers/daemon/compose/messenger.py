"""Messenger, wired: intake, worker and the channels its modules bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from butlers.butler.config import ButlerConfig
from butlers.butler.module import Module
from butlers.daemon.compose.base import Butler, base_migrations, build_butler, finish_butler
from butlers.daemon.compose.process import Process
from butlers.messenger.channel import Channel
from butlers.messenger.channels.email import EmailChannel
from butlers.messenger.channels.telegram import TelegramChannel
from butlers.messenger.deliveries import Deliveries, migrations
from butlers.messenger.execution import DeliveryWorker, ExecutionPolicy
from butlers.messenger.intake import Intake
from butlers.reliability.retry import RetryPolicy
from butlers.storage.migrations import MigrationSet


def migration_sets(config: ButlerConfig) -> list[MigrationSet]:
    return [base_migrations(config.schema_name), migrations(config.schema_name)]


def build(process: Process, config: ButlerConfig) -> Butler:
    channels = _channels(process, config)
    butler = build_butler(process, config, modules=_modules(config, channels))
    deliveries = Deliveries(
        database=process.database, schema=config.schema_name, clock=process.clock, new_id=process.new_id
    )
    worker = DeliveryWorker(
        deliveries=deliveries,
        channels=channels,
        policy=_policy(process, config),
        wire_directory=process.places.wire_logs,
        name=process.instance,
        clock=process.clock,
        telemetry=butler.telemetry,
    )
    intake = Intake(
        deliveries=deliveries,
        contacts=butler.contacts,
        channels=frozenset(channels),
        executor=worker,
        clock=process.clock,
        telemetry=butler.telemetry,
        wait_s=config.butler.registry.route_timeout_s,
    )

    async def trace(request_id: UUID) -> dict[str, Any]:
        return {"deliveries": await deliveries.trace(request_id)}

    async def drain() -> None:
        await worker.close(config.butler.shutdown.timeout_s)

    # Messenger is where messages leave: it must not ask itself to send (no notify, send_message or remind).
    finish_butler(butler, handle=intake.handle, jobs={}, trace=trace, speaks=False)
    butler.drains.append(drain)
    butler.before_loops.append(worker.tidy)
    butler.loops["delivery worker"] = worker.run
    return butler


def _modules(config: ButlerConfig, channels: Mapping[str, Channel]) -> dict[str, Module]:
    """A module that brings a channel closes it when it stops."""
    brought = {name: Module(name=name, stop=channel.close) for name, channel in channels.items()}
    return {name: brought.get(name, Module(name=name)) for name in config.modules.enabled()}


def _channels(process: Process, config: ButlerConfig) -> dict[str, Channel]:
    channels: dict[str, Channel] = {}
    telegram, email = config.modules.telegram, config.modules.email
    if telegram is not None and telegram.bot.enabled:
        token = process.environment[telegram.bot.token_env]
        channels["telegram"] = TelegramChannel(token=token, base_url=process.settings.telegram_api_url)
    if email is not None and email.bot.enabled:
        channels["email"] = EmailChannel(
            host=process.settings.smtp_host,
            port=process.settings.smtp_port,
            address=process.environment[email.bot.address_env],
            password=process.environment[email.bot.password_env],
        )
    return channels


def _policy(process: Process, config: ButlerConfig) -> ExecutionPolicy:
    delivery = config.delivery
    return ExecutionPolicy(
        retry=RetryPolicy(
            max_attempts=delivery.max_attempts,
            initial_delay=delivery.base_delay_s,
            max_delay=delivery.max_delay_s,
            jitter=delivery.jitter,
        ),
        timeout_s=delivery.timeout_s,
        max_in_flight=delivery.max_in_flight,
        lease=process.lease,
    )
