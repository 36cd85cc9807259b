"""Messenger, wired: intake, worker, timers and the channels its modules bring."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from butlers.butler.approvals import migrations as approval_migrations
from butlers.butler.approvals.approvals import Approvals
from butlers.butler.lifecycle_events import delivery_events
from butlers.butler.modules import Module
from butlers.butler.toolbox import Tool
from butlers.channels.adapter import Adapter
from butlers.channels.email.mailbox.reports import MailParser
from butlers.channels.email.mailbox.tools import Mailbox
from butlers.channels.registry import channel_of
from butlers.daemon.compose.base import Butler, Process, base_migrations, build_butler, finish_butler
from butlers.daemon.compose.channels import bot_mailbox, build_channels, receipt_keys
from butlers.daemon.compose.lifecycle_events import add_lifecycle_events
from butlers.daemon.compose.messenger_tools import messenger_tools
from butlers.daemon.compose.modules import build_approvals, calendar_module, memory_migrations
from butlers.daemon.services import Service
from butlers.messenger.admission import Admission
from butlers.messenger.attempt import ChannelPolicy
from butlers.messenger.channel_health import ChannelWatch, probes_of
from butlers.messenger.deliveries import Deliveries, migrations
from butlers.messenger.intake import Intake
from butlers.messenger.observer import Observer
from butlers.messenger.parking import Notices, Parking
from butlers.messenger.preparation import Preparation
from butlers.messenger.receipts import ReceiptIntake, receipt_routes
from butlers.messenger.release import Readmission
from butlers.messenger.service_levels import ServiceLevels
from butlers.messenger.upkeep import Retention, Upkeep
from butlers.messenger.worker import DeliveryWorker, ExecutionPolicy
from butlers.reliability.error_budget import BudgetPolicy
from butlers.roster import ButlerConfig
from butlers.storage.migrations import MigrationSet
from butlers.storage.queries import Queries
from butlers.storage.server_programs import PASSWORD_FILE, read_secret
from butlers.telemetry.redaction import SecretFilter, password_in, secrets_in


def migration_sets(config: ButlerConfig) -> list[MigrationSet]:
    schema = config.schema_name
    return [base_migrations(schema), migrations(schema), approval_migrations(schema), *memory_migrations(config)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What Messenger is made of."""

    channels: dict[str, Adapter]
    admission: Admission
    deliveries: Deliveries
    approvals: Approvals
    preparation: Preparation
    parking: Parking
    worker: DeliveryWorker
    observer: Observer
    intake: Intake
    receipts: ReceiptIntake


def build(process: Process, config: ButlerConfig) -> Butler:
    channels = build_channels(process, config)
    modules = {name: Module(name=name) for name in config.modules.enabled()}
    modules |= {name: Module(name=name, stop=_closing(channels, name)) for name in {c.name for c in channels.values()}}
    if (calendar := calendar_module(process, config)) is not None:
        modules["calendar"] = calendar[0]
    butler = build_butler(process, config, modules=modules)
    parts = _parts(butler, channels)

    async def trace(request_id: UUID) -> dict[str, Any]:
        return {"deliveries": await parts.deliveries.trace(request_id)}

    # Messenger is where messages leave: it must not ask itself to send (no notify, send_message or remind).
    levels = _levels(butler, parts)
    tools = [*messenger_tools(butler, parts, levels), *_mailbox_tools(butler, parts)]
    tools += calendar[1] if calendar else ()
    finish_butler(butler, handle=parts.intake.handle, jobs={}, trace=trace, tools=tools, speaks=False)
    butler.routes += receipt_routes(parts.receipts, keys=receipt_keys(process, config), clock=process.clock)
    butler.add(
        Service(
            name="channels",
            before_doors=True,
            start=partial(parts.deliveries.ensure_channels, channels),
            health=parts.deliveries.channel_findings,
        ),
        Service(
            name="delivery worker",
            before_doors=True,
            start=parts.worker.rescue,
            run=parts.worker.run,
            drain=partial(parts.worker.close, config.butler.shutdown.timeout_s, after=parts.admission.close),
        ),
        Service(name="service levels", run=levels.run),
        *(
            Service(name=name, run=run, every_s=every_s)
            for name, (every_s, run) in _upkeep(butler, parts).timers().items()
        ),
    )
    _add_channel_watch(butler, channels)
    queries = Queries.load("butlers.messenger", schema=config.schema_name)
    add_lifecycle_events(butler, changes=queries.changed_deliveries, events_of=delivery_events)
    return butler


def _parts(butler: Butler, channels: dict[str, Adapter]) -> Parts:
    process, config = butler.process, butler.config
    database, schema, clock = process.database, config.schema_name, process.clock
    observer = Observer(telemetry=butler.telemetry, clock=clock)
    receipts = ReceiptIntake(
        database=database, schema=schema, clock=clock, new_id=process.new_id, on_receipt=observer.receipt
    )
    deliveries = _deliveries(butler, channels, receipts)
    worker = _worker(butler, channels, deliveries, observer)
    admission = Admission(
        database=database,
        schema=schema,
        clock=clock,
        policy=config.delivery,
        new_id=process.new_id,
        executor=worker,
        reached=observer.reached,
    )
    approvals, email = build_approvals(process, config), config.modules.email
    preparation = Preparation(
        contacts=butler.contacts,
        channels=frozenset(channels),
        own_address=process.environment[email.bot.address_env] if email is not None and email.bot.enabled else "",
        secrets=_secret_filter(process, config),
        clock=clock,
        new_id=process.new_id,
    )
    parking = Parking(
        database=database,
        queries=_queries(butler, "butlers.messenger.parking"),
        approvals=approvals,
        admission=admission,
        preparation=preparation,
        observer=observer,
        clock=clock,
    )
    parking.register(_channel_tools(channels))
    intake = Intake(
        preparation=preparation,
        admission=admission,
        parking=parking,
        deliveries=deliveries,
        executor=worker,
        clock=clock,
        observer=observer,
        wait_s=config.butler.registry.route_timeout_s,
    )
    return Parts(
        channels=channels,
        admission=admission,
        deliveries=deliveries,
        approvals=approvals,
        preparation=preparation,
        parking=parking,
        worker=worker,
        observer=observer,
        intake=intake,
        receipts=receipts,
    )


def _deliveries(butler: Butler, channels: dict[str, Adapter], receipts: ReceiptIntake) -> Deliveries:
    return Deliveries(
        database=butler.process.database,
        schema=butler.config.schema_name,
        clock=butler.process.clock,
        new_id=butler.process.new_id,
        breaker=butler.config.delivery.breaker,
        settle_reported=receipts.settle_reported,
        channels=channels,
    )


def _worker(butler: Butler, channels: dict[str, Adapter], deliveries: Deliveries, observer: Observer) -> DeliveryWorker:
    process = butler.process
    return DeliveryWorker(
        deliveries=deliveries,
        channels=channels,
        policy=ExecutionPolicy.of(butler.config.delivery, channels=channels, lease=process.lease),
        wire_directory=process.places.wire_logs,
        name=process.instance,
        clock=process.clock,
        observer=observer,
        new_id=process.new_id,
    )


def _levels(butler: Butler, parts: Parts) -> ServiceLevels:
    process, config = butler.process, butler.config
    return ServiceLevels(
        database=process.database,
        schema=config.schema_name,
        clock=process.clock,
        telemetry=butler.telemetry,
        policy=BudgetPolicy(**config.delivery.error_budget.model_dump()),
        channels=sorted(parts.channels),
        max_in_flight=config.delivery.limits.max_in_flight,
    )


def _upkeep(butler: Butler, parts: Parts) -> Upkeep:
    delivery, process = butler.config.delivery, butler.process
    queries = _queries(butler, "butlers.messenger.upkeep")
    notices = Notices(
        database=process.database,
        queries=_queries(butler, "butlers.messenger.parking"),
        admission=parts.admission,
        preparation=parts.preparation,
        clock=process.clock,
        interval_s=delivery.notice_interval_s,
        asking=frozenset(
            c.name for c in parts.channels.values() if ChannelPolicy.of(delivery, c.name).certainty == "ask"
        ),
    )
    return Upkeep(
        database=process.database,
        queries=queries,
        readmission=Readmission(
            database=process.database,
            queries=_queries(butler, "butlers.messenger.release"),
            admission=parts.admission,
            clock=process.clock,
        ),
        deliveries=parts.deliveries,
        worker=parts.worker,
        parking=parts.parking,
        approvals=parts.approvals,
        notices=notices if delivery.tell_owner else None,
        observer=parts.observer,
        clock=process.clock,
        retention=Retention(
            database=process.database,
            queries=queries,
            clock=process.clock,
            telemetry=butler.telemetry,
            policy=delivery,
        ),
    )


def _add_channel_watch(butler: Butler, channels: dict[str, Adapter]) -> None:
    every_s, mailbox = butler.process.settings.provider_probe_s, bot_mailbox(butler.process, butler.config)
    if every_s <= 0:
        return
    mailboxes = {"email.bot": mailbox} if mailbox is not None else {}
    watch = ChannelWatch(probes=probes_of(channels, mailboxes), clock=butler.process.clock, every_s=every_s)
    butler.add(Service(name="channel watch", run=watch.run), Service(name="credentials", health=watch.known.check))


def _mailbox_tools(butler: Butler, parts: Parts) -> list[Tool]:
    """The mailbox of the bot, with a timer that reads the bounces in it."""
    process, imap = butler.process, bot_mailbox(butler.process, butler.config)
    if imap is None:
        return []
    parser = MailParser()
    mailbox = Mailbox.build(
        imap=imap,
        parser=parser,
        database=process.database,
        schema=butler.config.schema_name,
        clock=process.clock,
        receipts=parts.receipts,
        transport=butler.transport,
    )
    butler.add(
        Service(name="bounces", run=mailbox.watch.run_once, every_s=process.settings.bounce_poll_s, stop=parser.close)
    )
    return mailbox.tools


def _queries(butler: Butler, package: str) -> Queries:
    return Queries.load(package, schema=butler.config.schema_name)


def _closing(channels: dict[str, Adapter], name: str) -> Any:
    """A module that brings channels closes them when it stops."""

    async def close() -> None:
        for channel in channels.values():
            if channel.name == name:
                await channel.close()

    return close


def _channel_tools(channels: dict[str, Adapter]) -> frozenset[str]:
    names = {channel.name for channel in channels.values()}
    replies = {channel_of(name).reply_tool for name in names}
    return frozenset({*replies, *(f"{name}_send_message" for name in names)})


def _secret_filter(process: Process, config: ButlerConfig) -> SecretFilter:
    """Knows what must not leave in a message: tokens, credentials of providers, and the password of the database."""
    passwords = (password_in(process.settings.database_url or ""), read_secret(process.places.root / PASSWORD_FILE))
    fixed = [*secrets_in(process.environment), *(password for password in passwords if password)]
    return SecretFilter(
        lambda: [*fixed, *(token.secret for token in process.tokens.tokens())],
        shapes=config.delivery.filter_credentials,
    )
